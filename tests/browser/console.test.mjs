// What an admin looks for: why a turn did not train, whether it learns, and that the page comes
// back by itself.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { Hone, calm, confirm, launch, open, until } from './hone.mjs'

let hone, browser
before(async () => {
  ;[hone, browser] = await Promise.all([Hone.start(), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

test('an admin finds out why a turn did not train', async () => {
  await hone.chat('What is the capital of Spain?')
  await hone.chat('What is the capital of Malta?', { user: 'u0' })
  const greedy = await hone.chat('What is the capital of Italy?', { temperature: 0 })
  await hone.call('POST', '/v1/feedback', { turn_id: greedy.hone.turn_id, score: 1 })
  await until(async () => (await hone.get(`/v1/turns/${greedy.hone.turn_id}`)).fate.state === 'settled')
  const page = await open(browser, hone)
  await page.goto(hone.url)
  await page.getByTestId('nav-console').click()
  await page.getByTestId('why').waitFor()
  await page.getByTestId('console-turns').click()
  await page.getByTestId('turn-row').nth(2).waitFor()
  const who = await page.getByTestId('turn-who').allInnerTexts()
  assert.deepEqual(who.toSorted(), ['local', 'local', 'local / u0'])
  await page.getByTestId('filter-reason').selectOption('greedy')
  const row = page.getByTestId('turn-row')
  await until(async () => (await row.count()) === 1)
  await row.click()
  assert.ok(page.url().includes(greedy.hone.turn_id), page.url())
  const fate = page.getByTestId('turn-fate')
  await fate.filter({ hasText: 'temperature 0' }).waitFor()
  await page.getByTestId('tokens').waitFor()
  await page.getByText('What is the capital of Italy?').first().waitFor()
  assert.deepEqual(page.complaints, [])
})

test('a version is tried on a share of the chats, promoted, and another one retired', async () => {
  await hone.teach()
  await calm(hone)
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/versions`)
  const newest = (await hone.get('/v1/versions')).current
  const row = (version) => page.locator(`[data-testid="version-row"][data-version="${version}"]`)
  await row(newest).click()
  await page.getByTestId('canary').click()
  await page.getByTestId('canary-share').fill('40')
  await page.getByTestId('canary-begin').click()
  const trial = page.getByTestId('trial')
  await trial.filter({ hasText: '40 % of the sessions' }).waitFor()
  await row(newest).getByText('on trial').waitFor()
  const versions = new Set()
  for (let seed = 0; versions.size < 2; seed += 1) {
    assert.ok(seed < 60, 'sixty sessions got the same version')
    versions.add((await hone.chat('Tell me a joke.', { seed, session_id: `trial ${seed}` })).hone.policy_version)
  }
  assert.ok(versions.has(newest))
  await page.getByTestId('promote').click()
  await trial.waitFor({ state: 'detached' })
  await row(newest).getByText('serves').waitFor()

  // Back to the base, and what was served is retired by typing its name.
  await row(0).click()
  await page.getByTestId('roll-back').click()
  await confirm(page)
  await row(newest).getByText('serves').waitFor({ state: 'detached' })
  await row(newest).click()
  await page.getByTestId('retire').click()
  await confirm(page)
  await row(newest).getByText('retired').waitFor()
  const named = await fetch(`${hone.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: `hone-starter@v${newest}`, messages: [{ role: 'user', content: 'Hello!' }] }),
  })
  assert.equal(named.status, 404)
  await page.getByTestId('unretire').click()
  await row(newest).getByText('retired').waitFor({ state: 'detached' })
  assert.deepEqual(page.complaints, [])
})

test('charts are read as tables and as CSV, and two versions are compared in numbers', async () => {
  await until(async () => {
    const { data } = await hone.get('/v1/versions')
    if (data.length < 2) await hone.teach()
    return data.length >= 2
  })
  await calm(hone)
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/learning`)
  const { data, current } = await hone.get('/v1/versions')
  const plots = page.getByTestId('plot')
  await plots.first().waitFor()

  // Every chart that shows something has its table and its file.
  const charts = page.getByTestId('chart').filter({ has: plots })
  // Versions are fetched on their own, after what is charted over time, maybe.
  for (const name of ['KL', 'Loss']) {
    await charts.filter({ has: page.getByRole('heading', { name, exact: true }) }).waitFor()
  }
  const titles = await charts.locator('h3').allInnerTexts()
  assert.ok(titles.includes('KL') && titles.includes('Loss'), `${titles}`)
  for (const title of titles) {
    await page.getByRole('button', { name: `${title} as a table` }).click()
    const table = page.getByRole('region', { name: `${title}, table` })
    await table.locator('tbody tr').first().waitFor()
    await page.getByRole('button', { name: `${title} as a table` }).click()
  }
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Loss as CSV' }).click()])
  const lines = readFileSync(await file.path(), 'utf8').trim().split('\r\n')
  assert.equal(lines[0], 'version,loss')
  for (const version of data.filter((row) => row.status === 'published')) {
    const told = lines.find((line) => line.startsWith(`${version.version},`))
    assert.equal(Number(told.split(',')[1]), version.report.step.loss)
  }

  // Two versions side by side in numbers, at an address of their own.
  await page.getByTestId('two-a').selectOption('1')
  await page.getByTestId('two-b').selectOption(String(current))
  const two = page.getByTestId('two-versions')
  await two.getByRole('row').filter({ hasText: 'samples' }).first().waitFor()
  assert.match(page.url(), new RegExp(`a=1&b=${current}`))
  await page.reload()
  await two.getByRole('row').filter({ hasText: 'loss' }).waitFor()

  // In a narrower window the charts are drawn narrower, so that the newest stays in sight.
  await page.locator('[data-testid="plot"] .uplot').first().waitFor()
  await page.setViewportSize({ width: 390, height: 860 })
  const drawn = page.locator('[data-testid="plot"]:has(.uplot)').first()
  await until(() => drawn.evaluate((plot) => plot.clientWidth < 390 && plot.querySelector('.uplot').offsetWidth === plot.clientWidth))
  assert.deepEqual(page.complaints, [])
})

test('an admin sees what everybody decided about their data', async () => {
  await hone.call('PUT', '/v1/consent', { learning: 'serve', user: 'carol' })
  await hone.call('POST', '/v1/forget', { all: true, user: 'dave' })
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/people`)
  await page.getByTestId('people-privacy').click()
  await page.getByTestId('consents').filter({ hasText: 'local / carol' }).waitFor()
  await page.getByTestId('forgets').filter({ hasText: 'local / dave' }).getByText('done').waitFor()
  assert.deepEqual(page.complaints, [])
})

test('an admin sees what every table and the adapters take of the disk', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/storage`)
  const turns = page.getByTestId('storage-tables').getByRole('row').filter({ hasText: 'turn_payloads' })
  await turns.waitFor()
  const bytes = (await hone.call('GET', '/admin/v1/storage')).tables.find(({ name }) => name === 'turn_payloads').bytes
  assert.ok(bytes > 0)
  assert.match(await turns.innerText(), /KiB|MiB/)
  await page.getByTestId('storage-files').getByText('adapters').waitFor()
  await page.getByTestId('storage-count').click()
  await page.getByTestId('storage-count').filter({ hasText: 'Count again' }).waitFor()
  assert.deepEqual(page.complaints, [])
})

test('a loop is paused, the sentence and an alert say so, and it is resumed', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/overview`)
  await page.getByTestId('loop-train').waitFor()
  await page.getByTestId('switch-train').click()
  const why = page.getByTestId('why')
  await why.filter({ hasText: 'paused' }).waitFor()
  await page.getByTestId('alerts').filter({ hasText: 'train' }).waitFor()
  await page.getByTestId('switch-train').click()
  await until(async () => !(await why.innerText()).includes('paused'))
  assert.deepEqual(page.complaints, [])
})

test('keys lead to another view with the focus, and an address that leads nowhere is not kept', async () => {
  const page = await open(browser, hone)
  for (const [wrong, right] of [['#/nonsense/7', '#/chat'], ['#/console/nonsense', '#/console/overview']]) {
    await page.goto(`${hone.url}/${wrong}`)
    await until(() => page.url().endsWith(right))
  }
  const focused = () => page.evaluate(() => document.activeElement?.id)
  await page.getByTestId('nav-learned').click()
  await page.getByTestId('learned-sentence').waitFor()
  await page.keyboard.press('g')
  await page.keyboard.press('o')
  await page.getByTestId('why').waitFor()
  assert.equal(await focused(), 'main')

  // What was typed into is gone: the view begins anew, and nothing is drawn around all of it.
  await page.goto(`${hone.url}/#/chat`)
  await page.getByTestId('composer').pressSequentially('A word')
  await page.evaluate(() => (location.hash = '#/learned'))
  await page.getByTestId('learned-sentence').waitFor()
  await until(async () => (await focused()) === 'main')
  assert.equal(await page.locator('#main').evaluate((main) => getComputedStyle(main).outlineStyle), 'none')
  assert.deepEqual(page.complaints, [])
})

test('the page comes back after a restart without a reload, and shows nothing twice', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/overview`)
  const live = page.getByTestId('live')
  await page.locator('[data-testid="live"][data-connected="true"]').waitFor()
  await page.evaluate(() => {
    window.mark = 'still here'
    window.samples = []
    const source = new EventSource('/admin/v1/events')
    source.addEventListener('sample', (event) => window.samples.push(Number(event.lastEventId)))
  })
  const samples = () => page.evaluate(() => window.samples)
  await until(async () => (await samples()).length >= 3)
  const before_restart = (await samples()).length
  await hone.end()
  await page.locator('[data-testid="live"][data-connected="false"]').waitFor()
  await hone.run(new URL(hone.url).host)
  await page.locator('[data-testid="live"][data-connected="true"]').waitFor()
  await until(async () => (await samples()).length >= before_restart + 3)
  const seen = await samples()
  const rising = seen.every((at, index) => index === 0 || at > seen[index - 1])
  assert.ok(rising, `samples came twice or out of order: ${seen}`)
  assert.equal(await page.evaluate(() => window.mark), 'still here')
  assert.match(await live.innerText(), /Live/)
})
