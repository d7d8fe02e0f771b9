// What moves by itself: charts keep to four times a second however fast events come, and the list
// of turns takes in new ones without moving under the reader.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { Hone, QUICK, launch, open, until } from './hone.mjs'

/** A sample every tenth of a second: the fastest that can be configured. */
const FAST = { ...QUICK, HONE__CONSOLE__SAMPLE_STEP_MS: '100', HONE__CONSOLE__COARSE_STEP_MS: '1000' }
const WATCHED_MS = 5_000
const UPDATES_PER_S_MAX = 4

let hone, browser
before(async () => {
  ;[hone, browser] = await Promise.all([Hone.start(FAST), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

/** Waits until a chart's own numbers, as it saves them, are all that the server measured; their times. */
async function measured(page) {
  const save = page.getByRole('button', { name: 'Tokens as CSV' })
  const known = (await hone.get('/admin/v1/series?names=tokens_per_s')).data.tokens_per_s.map(([at]) => at)
  let times = []
  const missing = () => known.filter((at) => !times.includes(at))
  await until(async () => {
    const [file] = await Promise.all([page.waitForEvent('download'), save.click()])
    const lines = readFileSync(await file.path(), 'utf8').trim().split('\r\n').slice(1)
    times = lines.map((line) => Date.parse(line.split(',')[0]))
    return missing().length === 0
  }, 10_000).catch(() => assert.fail(`samples are missing: ${missing()}`))
  assert.ok(times.every((at, index) => index === 0 || at > times[index - 1]), `not in order, or twice: ${times}`)
  return times
}

test('charts are drawn at most four times a second while samples come far faster', async () => {
  const page = await open(browser, hone)
  await page.addInitScript(() => {
    window.draws = new Map()
    const clear = CanvasRenderingContext2D.prototype.clearRect
    CanvasRenderingContext2D.prototype.clearRect = function (...args) {
      const times = window.draws.get(this.canvas) ?? []
      window.draws.set(this.canvas, [...times, performance.now()])
      return clear.apply(this, args)
    }
  })
  await page.goto(`${hone.url}/#/console/serving`)
  await page.locator('[data-testid="chart"] canvas').first().waitFor()
  const computed = await page.locator('[data-testid="computed"]').innerText()
  assert.match(computed, /with \d+ threads · products of \w+ · weights of .+ · keys and values of f(16|32), room for [\d,]+ tokens/)
  await hone.chat('Hello!')
  const watched = await page.evaluate(async (watched_ms) => {
    const samples = []
    const source = new EventSource('/admin/v1/events')
    source.addEventListener('sample', () => samples.push(performance.now()))
    await new Promise((wake) => setTimeout(wake, 1_000))
    const [from, to] = [performance.now(), performance.now() + watched_ms]
    await new Promise((wake) => setTimeout(wake, watched_ms))
    source.close()
    const within = (times) => times.filter((at) => at >= from && at < to).length / (watched_ms / 1_000)
    return { samples: within(samples), draws: [...window.draws.values()].map(within) }
  }, WATCHED_MS)
  const most = Math.max(...watched.draws)
  console.log(`${watched.samples.toFixed(1)} samples and ${most.toFixed(1)} drawings of a chart per second`)
  assert.ok(watched.samples > 1.5 * UPDATES_PER_S_MAX, `only ${watched.samples} samples per second came`)
  assert.ok(most > 1, `${most} drawings per second are no live chart`)
  assert.ok(most <= UPDATES_PER_S_MAX, `${most} drawings per second`)
  assert.deepEqual(page.complaints, [])
})

test('new turns come into the list by themselves, and wait while one reads', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/turns`)
  const rows = page.getByTestId('turn-row')
  await rows.first().waitFor()
  const count = await rows.count()
  await hone.chat('Tell me a joke.')
  await until(async () => (await rows.count()) === count + 1)

  // Under the pointer nothing moves; a button says what came.
  await rows.first().hover()
  const first = await rows.first().getAttribute('href')
  await hone.chat('Tell me another joke.')
  const more = page.getByTestId('turns-new')
  await more.filter({ hasText: '1 new turn' }).waitFor()
  assert.equal(await rows.first().getAttribute('href'), first)
  await hone.chat('And one more.')
  await more.filter({ hasText: '2 new turns' }).waitFor()
  await more.click()
  await until(async () => (await rows.count()) === count + 3)
  assert.notEqual(await rows.first().getAttribute('href'), first)

  // What became of a turn is shown where it stands.
  const liked = await hone.chat('Good morning!')
  await until(async () => (await rows.count()) >= count + 3)
  await hone.call('POST', '/v1/feedback', { turn_id: liked.hone.turn_id, score: 1 })
  await page.mouse.move(5, 5)
  const row = page.locator(`a[href*="${liked.hone.turn_id}"]`)
  await row.filter({ hasText: '+1' }).waitFor()
  assert.deepEqual(page.complaints, [])
})

test('after a restart charts and lists hold everything once, and nothing is missing', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/serving`)
  const live = (connected) => page.locator(`[data-testid="live"][data-connected="${connected}"][data-filled="true"]`).waitFor()
  await live(true)
  await hone.chat('Before the restart.')
  await page.evaluate(() => (location.hash = '#/console/turns'))
  const rows = page.getByTestId('turn-row')
  await until(async () => (await rows.count()) === (await hone.get('/v1/turns?limit=200')).data.length)
  const count = await rows.count()
  const ended_ms = Date.now()
  await hone.end()
  await live(false)
  await hone.run(new URL(hone.url).host)
  await live(true)
  await hone.chat('After the restart.')
  await until(async () => (await rows.count()) === count + 1)
  const places = await rows.evaluateAll((all) => all.map((row) => row.getAttribute('href')))
  assert.equal(new Set(places).size, count + 1)

  await page.evaluate(() => (location.hash = '#/console/serving'))
  const times = await measured(page)
  assert.ok(times[0] < ended_ms, 'what was shown before the restart is gone')
})

test('a hidden page holds no connection, and gets what it missed when it is seen again', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/serving`)
  const live = (connected) => page.locator(`[data-testid="live"][data-connected="${connected}"][data-filled="true"]`).waitFor()
  const see = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden })
      document.dispatchEvent(new Event('visibilitychange'))
    }, hidden)
  await live(true)
  await see(true)
  await live(false)
  await hone.chat('While nobody looks.')
  await see(false)
  await live(true)
  await measured(page)
  assert.deepEqual(page.complaints, [])
})
