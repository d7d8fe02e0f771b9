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

/** Signs in somebody who has arrived before. */
async function enter(name) {
  const page = await open(browser, hone)
  await page.goto(hone.url)
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
  const first = await hone.firstLink()
  const admin = await arrive(first, 'root')
  await admin.goto(first)
  await admin.getByTestId('sign-in').filter({ hasText: 'You are here as root already' }).waitFor()
  await admin.goto(hone.url)
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
  const page = await enter('root')
  const acts = async (act) => JSON.parse((await ask(page, 'GET', `/admin/v1/audit?limit=200&act=${act}`)).text).data.filter((row) => row.act === act)
  await page.goto(`${hone.url}/#/console/turns`)
  const rows = page.getByTestId('turn-row')
  await rows.first().waitFor()
  const lists = (await acts('turn.list')).length
  assert.ok(lists >= 1)

  // Somebody says something: that there is something new is told without reading it.
  const other = await enter('bob')
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

  // How many of them pass a filter is not known before they are read.
  await page.goto(`${hone.url}/#/console/turns?owner=ann`)
  await rows.first().waitFor()
  await say(other, 'one more word of bob')
  await page.getByTestId('turns-new').filter({ hasText: 'Look for new turns' }).click()
  await page.getByTestId('turns-new').waitFor({ state: 'detached' })
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
  const admin = await enter('root')
  const made = await ask(admin, 'POST', '/admin/v1/invites', { role: 'developer' })
  const dev = await arrive(new URL(JSON.parse(made.text).url, hone.url).href, 'dev')

  // Who writes programs sees the tasks and not the console.
  await dev.getByTestId('nav-tasks').click()
  await dev.getByText('No tasks yet').waitFor()
  assert.equal(await dev.getByTestId('nav-console').count(), 0)

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
  // The dialog's own edge is no way out, nor is a selection that is dragged over it.
  await admin.locator('dialog[open]').click({ position: { x: 8, y: 80 } })
  const field = await admin.getByTestId('limit-requests_per_minute').boundingBox()
  await admin.mouse.move(field.x + 20, field.y + 10)
  await admin.mouse.down()
  await admin.mouse.move(5, 5, { steps: 4 })
  await admin.mouse.up()
  await admin.getByTestId('limits-save').click()
  await team.getByText('60 requests a minute').waitFor()
  await admin.getByRole('button', { name: 'Limits of desk' }).click()
  await admin.locator('dialog[open]').waitFor()
  await admin.mouse.click(5, 5)
  await admin.locator('dialog[open]').waitFor({ state: 'detached' })
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
  // What its calls do with memories is chosen beside it.
  const memories = async () => (await (await fetch(`${hone.url}/v1/memories`, { headers: { 'x-api-key': key.trim() } })).json()).mode
  assert.equal(await memories(), 'off')
  await agent.getByLabel('Memories in calls of server').selectOption('read')
  await until(async () => (await memories()) === 'read')
  await agent.getByLabel('Memories in calls of server').selectOption('default')
  await until(async () => (await memories()) === 'off')

  // A member reads that it is there; nobody else does.
  const agents = async (page) => JSON.parse((await ask(page, 'GET', '/v1/agents')).text).data.map((row) => [row.name, row.manages])
  assert.deepEqual(await agents(dev), [['helper', true]])
  assert.deepEqual(await agents(admin), [])
  const bob = await enter('bob')
  await bob.goto(`${hone.url}/#/account`)
  await bob.getByTestId('agent-row').filter({ hasText: 'helper of the team desk' }).waitFor()
  await bob.getByText('An admin can make you a key.').waitFor()
  for (const offer of ['agent-name', 'key-name']) assert.equal(await bob.getByTestId(offer).count(), 0, offer)
  assert.deepEqual(await issues(bob), [])
  assert.equal(await bob.getByTestId('nav-tasks').count(), 0)
  await bob.goto(`${hone.url}/#/tasks`)
  await bob.getByText('Tasks are for developers and admins.').waitFor()
  await agent.getByTestId('agent-close').click()
  await agent.getByText('closed').waitFor()
  const closed = await fetch(`${hone.url}/v1/me`, { headers: { 'x-api-key': key.trim() } })
  assert.equal(closed.status, 401)
  await admin.goto(`${hone.url}/#/console/people/agents`)
  await admin.getByTestId('all-agents').filter({ hasText: 'the team desk' }).waitFor()
  assert.deepEqual(await issues(admin), [])
})

test('what is refused stays on the screen, and is not shown as done', async () => {
  const page = await enter('root')
  await page.goto(`${hone.url}/#/console/people`)
  const role = page.getByLabel('Role of root')
  await role.selectOption('user')
  await page.getByRole('alert').filter({ hasText: 'your own account' }).waitFor()
  assert.equal(await role.inputValue(), 'admin')
})

test('an auditor is offered nothing that needs an admin', async () => {
  const admin = await enter('root')
  const made = await ask(admin, 'POST', '/admin/v1/invites', { role: 'auditor' })
  const page = await arrive(new URL(JSON.parse(made.text).url, hone.url).href, 'eve')
  await page.goto(`${hone.url}/#/console/versions`)
  const views = page.getByRole('navigation', { name: 'Views of versions' })
  await views.getByRole('link', { name: 'Refused' }).waitFor()
  assert.equal(await views.getByRole('link', { name: 'Compare' }).count(), 0)
})

test('a tab goes on after a sign-in in another one, and begins anew where somebody else signed in', async () => {
  const page = await enter('ann')
  const other = await page.context().newPage()
  await other.goto(hone.url)
  await other.getByTestId('composer').waitFor()
  const signIn = async (name) => {
    const signed = await ask(other, 'POST', '/v1/auth/sign-in', { name, password: `${name} has a long password` })
    assert.ok(signed.status < 300, signed.text)
  }
  await signIn('ann')
  await say(page, 'a word of ann')
  await signIn('bob')
  await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')))
  await page.getByTestId('nav-account').filter({ hasText: 'bob' }).waitFor()
  await page.getByTestId('session').first().waitFor()
  assert.ok(!(await page.locator('body').innerText()).includes('of ann'))
})
