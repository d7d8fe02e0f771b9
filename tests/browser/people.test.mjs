// Two people in two browsers never see each other's data.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Hone, QUICK, issues, launch, open, picture, say, until } from './hone.mjs'

let hone, browser
before(async () => {
  ;[hone, browser] = await Promise.all([Hone.start({ ...QUICK, HONE__PEOPLE__SIGN_IN: 'true' }), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

/** Opens an invitation and chooses a name and a password. */
async function arrive(link, name) {
  const page = await open(browser, hone)
  await page.goto(link)
  await page.getByTestId('name').waitFor()
  await picture(page, 'invite-light')
  assert.deepEqual(await issues(page), [])
  await page.getByTestId('name').fill(name)
  await page.getByTestId('password').fill(`${name} has a long password`)
  await page.getByTestId('sign-in').locator('button.primary').click()
  await page.getByTestId('composer').waitFor()
  return page
}

/** A request as the signed-in page would send it. */
function ask(page, method, path, body) {
  return page.evaluate(
    async ({ method, path, body }) => {
      const me = await (await fetch('/v1/me')).json()
      const reply = await fetch(path, {
        method,
        headers: { 'content-type': 'application/json', 'x-hone-csrf': me.csrf },
        body: body && JSON.stringify(body),
      })
      return { status: reply.status, text: await reply.text() }
    },
    { method, path, body },
  )
}

test('two people in two browsers see only what is theirs', async () => {
  const first = await until(() => /(http\S+#\/invite\/\S+)/.exec(hone.output)?.[1])
  const admin = await arrive(first, 'root')
  const invite = async () => {
    const made = await ask(admin, 'POST', '/admin/v1/invites', { role: 'user' })
    assert.ok(made.status < 300, made.text)
    return new URL(JSON.parse(made.text).url, hone.url).href
  }
  const pages = { ann: await arrive(await invite(), 'ann'), bob: await arrive(await invite(), 'bob') }
  const turns = {}
  for (const [name, page] of Object.entries(pages)) {
    const turn = await say(page, `canary of ${name}`)
    turns[name] = await turn.getAttribute('data-turn')
  }
  for (const [name, page] of Object.entries(pages)) {
    const other = name === 'ann' ? 'bob' : 'ann'
    await page.reload()
    await page.getByTestId('session').first().waitFor()
    const shown = await page.locator('body').innerText()
    assert.ok(shown.includes(`canary of ${name}`), shown)
    assert.ok(!shown.includes(`canary of ${other}`), shown)
    assert.equal(await page.getByTestId('nav-console').count(), 0)
    for (const path of ['/v1/sessions', '/v1/turns', '/v1/versions', '/v1/learned', `/v1/sessions?user=${other}`]) {
      const reply = await ask(page, 'GET', path)
      assert.ok(!reply.text.includes(`canary of ${other}`), `${path}: ${reply.text}`)
    }
    const theirs = await ask(page, 'GET', `/v1/turns/${turns[other]}`)
    assert.equal(theirs.status, 404, theirs.text)
    for (const path of ['/admin/v1/turns', '/admin/v1/status', `/admin/v1/turns/${turns[other]}`]) {
      assert.equal((await ask(page, 'GET', path)).status, 403, path)
    }
  }
})

test('an admin who reads what others said is told that the log keeps it, and reads only when asking', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  await page.getByTestId('name').fill('root')
  await page.getByTestId('password').fill('root has a long password')
  await page.getByTestId('sign-in').locator('button.primary').click()
  await page.getByTestId('composer').waitFor()
  const acts = async (act) => JSON.parse((await ask(page, 'GET', `/admin/v1/audit?limit=200&act=${act}`)).text).data.filter((row) => row.act === act)
  await page.goto(`${hone.url}/#/console/turns`)
  const rows = page.getByTestId('turn-row')
  await rows.first().waitFor()
  const lists = (await acts('turn.list')).length
  assert.ok(lists >= 1)

  // Somebody says something: that there is something new is told without reading it.
  const other = await open(browser, hone)
  await other.goto(hone.url)
  await other.getByTestId('name').fill('bob')
  await other.getByTestId('password').fill('bob has a long password')
  await other.getByTestId('sign-in').locator('button.primary').click()
  await other.getByTestId('composer').waitFor()
  const count = await rows.count()
  const said = await (await say(other, 'a word of bob')).getAttribute('data-turn')
  await page.getByTestId('turns-new').filter({ hasText: '1 new turn' }).waitFor()
  assert.equal(await rows.count(), count)
  assert.equal((await acts('turn.list')).length, lists)
  await page.getByTestId('turns-new').click()
  await page.locator(`a[href*="${said}"]`).click()
  await page.getByTestId('reads-others').filter({ hasText: 'bob' }).waitFor()
  await picture(page, 'turn-of-another-light')
  assert.deepEqual(await issues(page), [])
  const reads = await acts('turn.read')
  assert.equal(reads.at(0).object, said)
  assert.equal(reads.at(0).actor, 'root')
  await page.goto(`${hone.url}/#/console/people/audit`)
  await page.getByTestId('audit').filter({ hasText: 'turn.read' }).waitFor()
})

test('who is not signed in is asked to, and a sign-in lasts over a reload', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  await page.getByTestId('sign-in').waitFor()
  for (const look of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme: look })
    await picture(page, `sign-in-${look}`)
    assert.deepEqual(await issues(page), [])
  }
  await page.getByTestId('name').fill('ann')
  await page.getByTestId('password').fill('ann has a long password')
  await page.getByTestId('sign-in').locator('button.primary').click()
  await page.getByTestId('composer').waitFor()
  await page.reload()
  await page.getByTestId('composer').waitFor()
  await page.goto(`${hone.url}/#/account`)
  await page.getByTestId('sign-out').click()
  await page.getByTestId('sign-in').waitFor()
})

test('a team shares limits, its lead keeps an agent with a key, and others see neither', async () => {
  const admin = await open(browser, hone)
  await admin.goto(hone.url)
  await admin.getByTestId('name').fill('root')
  await admin.getByTestId('password').fill('root has a long password')
  await admin.getByTestId('sign-in').locator('button.primary').click()
  await admin.getByTestId('composer').waitFor()
  const made = await ask(admin, 'POST', '/admin/v1/invites', { role: 'developer' })
  const dev = await arrive(new URL(JSON.parse(made.text).url, hone.url).href, 'dev')

  // The admin makes the team and puts two people into it.
  await admin.goto(`${hone.url}/#/console/people/teams`)
  await admin.getByTestId('team-name').fill('desk')
  await admin.getByTestId('team-create').click()
  const team = admin.getByTestId('team')
  for (const name of ['dev', 'bob']) {
    await team.getByTestId('member-name').fill(name)
    await team.getByTestId('member-add').click()
    await team.getByTestId('members').filter({ hasText: name }).waitFor()
  }
  await team.getByRole('button', { name: 'Make lead' }).last().click()
  await team.locator('li', { hasText: 'dev' }).getByText('lead', { exact: true }).waitFor()
  await admin.getByRole('button', { name: 'Limits of desk' }).click()
  await admin.getByTestId('limit-requests_per_minute').fill('60')
  await admin.getByTestId('limits-save').click()
  await team.getByText('60 requests a minute').waitFor()
  await picture(admin, 'teams-light')
  assert.deepEqual(await issues(admin), [])

  // Its lead makes an agent, a key for it, and decides that it may learn.
  await dev.goto(`${hone.url}/#/account`)
  await dev.reload()
  await dev.getByRole('heading', { name: 'Team desk' }).waitFor()
  await dev.getByTestId('agent-name').fill('helper')
  await dev.getByLabel('of the team desk').check()
  await dev.getByTestId('agent-create').click()
  const agent = dev.getByTestId('agent-row').filter({ hasText: 'helper' })
  await agent.locator('summary').click()
  await agent.getByTestId('agent-consent').selectOption('full')
  await agent.getByTestId('key-name').fill('server')
  await agent.getByTestId('key-create').click()
  await agent.getByTestId('key-row').filter({ hasText: 'server' }).waitFor()
  await picture(dev, 'agent-light')
  assert.deepEqual(await issues(dev), [])
  const key = await agent.getByTestId('key-secret').innerText()
  const me = await (await fetch(`${hone.url}/v1/me`, { headers: { 'x-api-key': key.trim() } })).json()
  assert.deepEqual([me.name, me.role, me.consent], ['helper', 'user', 'full'])

  // A member reads that it is there; nobody else does.
  const agents = async (page) => JSON.parse((await ask(page, 'GET', '/v1/agents')).text).data.map((row) => [row.name, row.manages])
  assert.deepEqual(await agents(dev), [['helper', true]])
  assert.deepEqual(await agents(admin), [])
  await agent.getByTestId('agent-close').click()
  await agent.getByText('closed').waitFor()
  const closed = await fetch(`${hone.url}/v1/me`, { headers: { 'x-api-key': key.trim() } })
  assert.equal(closed.status, 401)
  await admin.goto(`${hone.url}/#/console/people/agents`)
  await admin.getByTestId('all-agents').filter({ hasText: 'the team desk' }).waitFor()
  assert.deepEqual(await issues(admin), [])
})
