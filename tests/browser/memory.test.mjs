// What a person says once: listed, used in the next chat, said to be used, changed, paused and forgotten.

import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { after, before, test } from 'node:test'
import { Hone, QUICK, confirm, issues, launch, open, picture, say, until } from './hone.mjs'

let hone, browser
before(async () => {
  ;[hone, browser] = await Promise.all([Hone.start({ ...QUICK, HONE__MEMORY__TICK_MS: '50' }), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

const remembered = async () => (await hone.get('/v1/memories')).data
const texts = async () => (await remembered()).map((memory) => memory.text)

/** Says something in a chat of its own. */
async function sayAnew(page, text) {
  await page.goto(`${hone.url}/#/chat`)
  await page.getByTestId('new-chat').click()
  return say(page, text)
}

/** The list, with so many in it. */
async function list(page, count) {
  await page.goto(`${hone.url}/#/learned/remembered`)
  await page.getByTestId('memory-standing').waitFor()
  await until(async () => (await page.getByTestId('memory').count()) === count)
  return page.getByTestId('memory')
}

async function closeDialog(page) {
  await page.keyboard.press('Escape')
  await page.locator('dialog[open]').waitFor({ state: 'detached' })
}

test('what is said once is listed, used in a new chat, edited there, paused, and forgotten', async () => {
  const page = await open(browser, hone)
  const wishes = []
  page.on('request', (request) => {
    if (request.url().endsWith('/v1/chat/completions')) wishes.push(request.postDataJSON().hone)
  })

  // Until it is switched on nothing is remembered, and the page says so.
  await sayAnew(page, 'Call me Max.')
  await list(page, 0)
  await page.getByTestId('memory-standing').filter({ hasText: /^Off:/ }).waitFor()
  await page.getByTestId('empty').filter({ hasText: 'Switch it on above, then say “call me Sam”' }).waitFor()
  await page.getByTestId('memory-switch').check()
  await page.getByTestId('memory-standing').filter({ hasText: /^On:/ }).waitFor()
  assert.deepEqual(await texts(), [])

  // What is said from now on is there.
  const first = await sayAnew(page, 'Call me Sam.')
  assert.equal(await first.getByTestId('memories-used').count(), 0)
  const told = page.url()
  await until(async () => (await texts()).length === 1)
  const row = await list(page, 1)
  for (const words of ['“Call me Sam.”', 'about you', 'you said it', 'not shown to an answer yet']) {
    await row.getByText(words).waitFor()
  }
  await row.getByTestId('memory-chat').click()
  await until(() => page.url() === told)

  // A new chat is told, and says so, also after a reload.
  let answer = await sayAnew(page, 'Hello there!')
  await answer.getByTestId('memories-used').filter({ hasText: 'used 1 memory' }).waitFor()
  assert.deepEqual(wishes, [undefined, { memory: 'full' }, { memory: 'full' }])
  await page.reload()
  answer = page.getByTestId('turn').first()
  await answer.getByTestId('memories-used').waitFor()
  await picture(page, 'memories-used-light')
  await answer.getByTestId('memories-used').click()
  const shown = page.getByTestId('shown-memories').getByTestId('memory')
  await shown.getByText('“Call me Sam.”').waitFor()
  await shown.getByText('shown to 1 answer').waitFor()
  await picture(page, 'open-memories-light')
  assert.deepEqual(await issues(page), [])

  // It is edited where one sees it; leaving the field leaves the dialog open and changes nothing.
  await shown.getByTestId('memory-edit').click()
  await shown.getByTestId('memory-text').fill('Call me nobody.')
  await page.keyboard.press('Escape')
  await shown.getByText('“Call me Sam.”').waitFor()
  await shown.getByTestId('memory-edit').click()
  await shown.getByTestId('memory-text').fill('Call me Samantha.')
  await shown.getByTestId('memory-save').click()
  await shown.getByText('“Call me Samantha.”').waitFor()
  assert.deepEqual(await texts(), ['Call me Samantha.'])
  await closeDialog(page)

  // Paused, it is shown to nobody; resumed, it is.
  await list(page, 1)
  await row.getByTestId('memory-pause').click()
  await row.getByText('paused').waitFor()
  answer = await sayAnew(page, 'Hello there!')
  assert.equal(await answer.getByTestId('memories-used').count(), 0)
  await list(page, 1)
  await row.getByTestId('memory-pause').click()
  await row.getByText('paused').waitFor({ state: 'detached' })
  answer = await sayAnew(page, 'Hello there!')
  await answer.getByTestId('memories-used').waitFor()
  const used = page.url()

  // Forgotten, it is gone from the list and from new chats; the old answer still says that it was told.
  await list(page, 1)
  await row.getByTestId('memory-forget').click()
  await confirm(page)
  await page.getByTestId('empty').filter({ hasText: 'Nothing remembered yet' }).waitFor()
  assert.equal(await row.count(), 0)
  assert.deepEqual(await texts(), [])
  answer = await sayAnew(page, 'Hello there!')
  assert.equal(await answer.getByTestId('memories-used').count(), 0)
  await page.goto(used)
  await page.getByTestId('memories-used').click()
  await page.getByTestId('memories-gone').filter({ hasText: 'It was forgotten since' }).waitFor()
  await closeDialog(page)

  // The switch beside the composer holds in this browser, after a reload too.
  await page.reload()
  await page.getByTestId('consent').click()
  await page.locator('[data-testid="memory-switch"]:checked').waitFor()
  await page.getByTestId('memory-switch').uncheck()
  await page.getByTestId('memory-standing').filter({ hasText: /^Off:/ }).waitFor()
  await page.keyboard.press('Escape')
  await sayAnew(page, 'Call me Max.')
  assert.deepEqual(wishes.at(-1), { memory: 'off' })
  await hone.chat('Call me Ben.', { hone: { memory: 'full' } })
  await until(async () => (await texts()).length > 0)
  assert.deepEqual(await texts(), ['Call me Ben.'])
  await hone.call('DELETE', '/v1/memories')
  assert.deepEqual(page.complaints, [])
})

test('memories are added by hand, refused in plain words, paged, and forgotten with a decision', async () => {
  const page = await open(browser, hone)
  const row = await list(page, 0)
  const add = async (text) => {
    await page.getByTestId('memory-add-text').fill(text)
    await page.getByTestId('memory-add').click()
  }
  await page.getByTestId('memory-add-kind').selectOption('preference')
  await add('Answer in French.')
  await row.getByText('how to answer').waitFor()
  await row.getByText('you added it').waitFor()
  await add('answer in  french')
  await page.getByTestId('remembered').getByText('That is remembered already.').waitFor()
  page.complaints.length = 0
  await add('My password is swordfish.')
  await page.getByTestId('remembered').getByText(/looks like a password\. Leave that out and try again\./).waitFor()
  assert.deepEqual(await texts(), ['Answer in French.'])
  // The browser itself reports what was refused.
  assert.equal(page.complaints.splice(0).length, 1)

  // The newest page, and older ones on demand.
  for (let at = 0; at < 60; at += 1) await hone.call('POST', '/v1/memories', { text: `I have been to place ${at}.` })
  await list(page, 50)
  assert.match(await row.first().innerText(), /place 59/)
  await page.getByTestId('memory-more').click()
  await until(async () => (await row.count()) === 61)
  assert.match(await row.last().innerText(), /Answer in French/)
  assert.equal(await page.getByTestId('memory-more').count(), 0)

  // A long chat is opened where it was said.
  const said = [{ role: 'user', content: 'Remember that I play the oboe.' }]
  const asked = { model: 'hone-starter', max_tokens: 8, session_id: 'long', hone: { memory: 'full' } }
  const first = await hone.call('POST', '/v1/chat/completions', { ...asked, messages: said })
  said.push(first.choices[0].message, { role: 'user', content: 'And so on.\n'.repeat(100) })
  await hone.call('POST', '/v1/chat/completions', { ...asked, messages: said })
  await until(async () => (await texts())[0] === 'Remember that I play the oboe.')
  await row.first().getByText('I play the oboe').waitFor()
  await row.first().getByTestId('memory-chat').click()
  const turn = page.locator(`[data-turn="${first.hone.turn_id}"]`).getByTestId('said')
  await until(() => new URL(page.url()).hash === `#/chat/${first.hone.session_id}`)
  assert.ok((await turn.evaluate((element) => element.getBoundingClientRect().top)) > 0)
  await list(page, 50)

  // All at once; what is forgotten in a chat's list goes from there, with both dialogs in their order.
  await page.getByTestId('memory-forget-all').click()
  await confirm(page)
  await page.getByTestId('empty').filter({ hasText: 'Nothing remembered yet' }).waitFor()
  await add('I own a boat.')
  await row.getByText('I own a boat.').waitFor()
  await page.getByTestId('memory-switch').check()
  const answer = await sayAnew(page, 'Hello there!')
  await answer.getByTestId('memories-used').click()
  const shown = page.getByTestId('shown-memories')
  await shown.getByTestId('memory-forget').click()
  await page.getByTestId('confirm-name').waitFor()
  await page.keyboard.press('Escape')
  await page.getByTestId('confirm-name').waitFor({ state: 'detached' })
  await shown.getByTestId('memory-forget').click()
  await page.getByTestId('confirm-name').fill('forget')
  await page.getByTestId('confirm-act').click()
  await shown.getByTestId('memories-gone').waitFor()
  assert.deepEqual(await texts(), [])
  await shown.getByRole('link', { name: 'All that is remembered' }).click()
  await page.getByTestId('remembered').waitFor()
  assert.equal(await page.locator('dialog[open]').count(), 0)

  // With learning off nothing is kept; the page says why and what to do.
  await add('I own a boat.')
  await row.getByText('I own a boat.').waitFor()
  await page.getByTestId('consent-off').check()
  await page.getByTestId('memory-standing').filter({ hasText: 'Choose “Learn from me” to change that.' }).waitFor()
  await until(async () => (await row.count()) === 0)
  assert.ok(await page.getByTestId('memory-switch').isDisabled())
  assert.equal(await page.getByTestId('memory-add').count(), 0)
  await page.getByTestId('consent-serve').check()
  await page.getByTestId('memory-standing').filter({ hasText: 'What you say adds nothing to it' }).waitFor()
  await page.getByTestId('consent-full').check()
  await page.getByTestId('memory-standing').filter({ hasText: /^On:/ }).waitFor()
  assert.deepEqual(page.complaints, [])
})

const LOOKS = [
  { name: 'light', colorScheme: 'light', viewport: { width: 1280, height: 860 } },
  { name: 'dark', colorScheme: 'dark', viewport: { width: 1280, height: 860 } },
  { name: 'narrow', colorScheme: 'light', viewport: { width: 390, height: 780 } },
  { name: 'narrow-dark', colorScheme: 'dark', viewport: { width: 390, height: 780 } },
]

for (const { name: look, ...options } of LOOKS) {
  test(`the list and what an answer was told are accessible and pictured: ${look}`, async () => {
    await hone.call('DELETE', '/v1/memories')
    await hone.call('POST', '/v1/memories', { text: 'Answer in short sentences.', kind: 'preference' })
    const { id } = await hone.call('POST', '/v1/memories', { text: 'I live in Leeds.' })
    await hone.call('PATCH', `/v1/memories/${id}`, { paused: true })
    await hone.call('POST', '/v1/memories', { text: `I have ${'a very '.repeat(20)}old dog.` })
    const talked = await hone.chat('Hello there!', { session_id: `look ${look}`, hone: { memory: 'read' } })
    assert.equal(talked.hone.memories.length, 2)
    const page = await open(browser, hone, options)
    const good = async (name) => {
      await picture(page, `${name}-${look}`)
      assert.deepEqual(await issues(page), [], name)
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
      assert.ok(overflow <= 1, `${name}: ${overflow} pixels wider than the window`)
    }
    const row = await list(page, 3)
    await good('remembered')
    await row.first().getByTestId('memory-edit').click()
    await good('remembered-edit')
    await page.goto(`${hone.url}/#/chat/${talked.hone.session_id}`)
    await page.getByTestId('memories-used').click()
    await page.getByTestId('shown-memories').getByTestId('memory').nth(1).waitFor()
    await good('open-memories')
    await closeDialog(page)
    await page.getByTestId('consent').click()
    await page.getByTestId('memory-standing').waitFor()
    await good('open-memory-switch')
    assert.deepEqual(page.complaints, [])
  })
}

test('all that is remembered is saved as a file, and comes back from it', async () => {
  const page = await open(browser, hone)
  await hone.call('DELETE', '/v1/memories')
  await hone.call('POST', '/v1/memories', { text: 'I am vegetarian.' })
  await hone.call('POST', '/v1/memories', { text: 'From now on, keep it short.', kind: 'preference' })
  await list(page, 2)
  const [saved] = await Promise.all([page.waitForEvent('download'), page.getByTestId('memory-save').click()])
  assert.match(saved.suggestedFilename(), /^hone-memories-\d{4}-\d\d-\d\d\.md$/)
  const file = await saved.path()
  await hone.call('DELETE', '/v1/memories')
  await until(async () => (await page.getByTestId('memory').count()) === 0)
  await page.getByTestId('memory-file').setInputFiles({ name: 'notes.md', mimeType: 'text/markdown', buffer: await readFile(file) })
  await page.getByTestId('memory-told').filter({ hasText: '2 new memories from the file.' }).waitFor()
  assert.deepEqual((await texts()).sort(), ['From now on, keep it short.', 'I am vegetarian.'])
  await list(page, 2)
  await picture(page, 'memory-file')
  // A secret is left out, and the page says which line.
  const secret = Buffer.from('- I am tall.\n- My password is hunter2-Xy9\n')
  await page.getByTestId('memory-file').setInputFiles({ name: 'notes.txt', mimeType: 'text/plain', buffer: secret })
  await page.getByTestId('memory-told').filter({ hasText: /^1 new memory from the file, 1 left out\. Line 2: / }).waitFor()
  assert.deepEqual(await issues(page), [])
  await page.context().close()
})

test('a fact that a newer one replaced is marked, and holds again when one says so', async () => {
  const page = await open(browser, hone)
  await hone.call('DELETE', '/v1/memories')
  await hone.call('POST', '/v1/memories', { text: 'I live in Leeds.' })
  await hone.call('POST', '/v1/memories', { text: 'I live in York.' })
  const rows = await list(page, 2)
  await rows.nth(1).getByText('replaced by a newer one').waitFor()
  assert.equal(await rows.nth(0).getByText('replaced by a newer one').count(), 0)
  await rows.nth(1).getByTestId('memory-holds').click()
  await rows.nth(1).getByText('replaced by a newer one').waitFor({ state: 'detached' })
  assert.deepEqual((await remembered()).map((memory) => memory.valid_until_ms), [null, null])
  assert.deepEqual(await issues(page), [])
  await page.context().close()
})
