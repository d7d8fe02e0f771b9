// Forgetting a lot takes a while: one sees how far it is, may look away, and an admin sees it too.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Hone, QUICK, confirm, launch, open, picture, until } from './hone.mjs'

const TURNS = 8_000
const VERSIONS = 20

let hone, browser
before(async () => {
  const small = { ...QUICK, HONE__LEARNING__FORGET_PIECE_TURNS: '32', HONE__LEARNING__FORGET_WAIT_MS: '100' }
  ;[hone, browser] = await Promise.all([Hone.startWithMany(TURNS, VERSIONS, small), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

test('a long erasure shows its progress, to its person and to an admin, and ends', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/learned`)

  // Until a name is typed it can be left, and nothing has happened.
  await page.getByTestId('forget-all').click()
  await page.getByTestId('forget-plan').getByText(/8,0\d\d turns will be erased/).waitFor()
  await page.locator('dialog[open]').getByRole('button', { name: 'Cancel' }).click()
  await page.locator('dialog[open]').waitFor({ state: 'detached' })
  assert.ok((await hone.get('/admin/v1/status')).ledger.turns >= TURNS)

  await page.getByTestId('forget-all').click()
  await page.getByTestId('forget-plan').waitFor()
  await confirm(page)
  const bar = page.getByTestId('forget-running').locator('progress')
  await bar.waitFor()
  const seen = new Set()
  await until(async () => {
    const value = await bar.evaluate((element) => element.value, undefined, { timeout: 1_000 }).catch(() => null)
    if (value !== null) seen.add(value)
    return seen.size >= 3
  })
  const values = [...seen]
  assert.ok(values.every((value, at) => at === 0 || value > values[at - 1]), `progress goes back: ${values}`)
  await picture(page, 'forgetting-light')

  // It goes on while nobody looks; the console shows how far it is.
  await page.locator('dialog[open]').getByRole('button', { name: 'Close' }).last().click()
  await page.goto(`${hone.url}/#/console/people/privacy`)
  const row = page.getByTestId('forgets')
  await row.locator('progress').waitFor()
  await picture(page, 'people-privacy-running-light')
  await row.getByText('done').waitFor()
  assert.equal((await hone.get('/v1/sessions')).data.length, 0)
  assert.deepEqual(page.complaints, [])
})
