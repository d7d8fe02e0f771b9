// What an admin looks for: why a turn did not train, whether it learns, and that the page comes
// back by itself.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Hone, launch, open, until } from './hone.mjs'

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
  const greedy = await hone.chat('What is the capital of Italy?', { temperature: 0 })
  const page = await open(browser, hone)
  await page.goto(hone.url)
  await page.getByTestId('nav-console').click()
  await page.getByTestId('why').waitFor()
  await page.getByTestId('console-turns').click()
  await page.getByTestId('turn-row').nth(1).waitFor()
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
