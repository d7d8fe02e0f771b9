// What people do with the chat by hand: copy, unfold, stop, ask again, edit, search, take home.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { Hone, calm, launch, open, say, until } from './hone.mjs'

const CODE = 'for city in ["Paris", "Rome"]:\n    print(f"<b>{city}</b>")'
const WEATHER = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { enum: ['Paris'] } }, required: ['city'], additionalProperties: false },
  },
}

let hone, browser
before(async () => {
  ;[hone, browser] = await Promise.all([Hone.start(), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

const openSession = async (page, title) => {
  await page.goto(hone.url)
  await page.getByTestId('session').filter({ hasText: title }).first().click()
  await page.getByTestId('answer').first().waitFor()
}

test('code is copied as it is', async () => {
  const said = `Like this:\n\n\`\`\`python\n${CODE}\n\`\`\`\n\nThat is all.`
  const reply = await hone.chat('Show me a loop', { guided_choice: [said], max_tokens: 200, session_id: 'code' })
  assert.equal(reply.choices[0].message.content, said)
  const page = await open(browser, hone, { permissions: ['clipboard-read', 'clipboard-write'] })
  await openSession(page, 'Show me a loop')
  const block = page.locator('.code')
  await block.getByRole('button', { name: 'Copy code' }).click()
  await block.getByText('Copied').waitFor()
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), CODE)
  // What looks like a tag stayed text.
  assert.equal(await block.locator('b').count(), 0)
  await page.getByRole('button', { name: 'Copy the answer' }).click()
  await until(async () => (await page.evaluate(() => navigator.clipboard.readText())) === said)
  assert.deepEqual(page.complaints, [])
})

test('without a clipboard and with nothing kept, the page is there and copies still', async () => {
  const said = `So:\n\n\`\`\`python\n${CODE}\n\`\`\``
  await hone.chat('Show me one more loop', { guided_choice: [said], max_tokens: 200, session_id: 'plain' })
  const page = await open(browser, hone)
  // As over plain HTTP from another machine, in a browser that blocks site data.
  await page.addInitScript(() => {
    delete Crypto.prototype.randomUUID
    Object.defineProperty(navigator, 'clipboard', { value: undefined })
    const get = () => {
      throw new DOMException('blocked', 'SecurityError')
    }
    for (const shelf of ['localStorage', 'sessionStorage']) Object.defineProperty(window, shelf, { get })
  })
  await openSession(page, 'Show me one more loop')
  const block = page.locator('.code')
  await block.getByRole('button', { name: 'Copy code' }).click()
  await block.getByText('Copied').waitFor()
  await page.evaluate(() => (document.execCommand = () => false))
  await page.getByRole('button', { name: 'Copy the answer' }).click()
  await page.getByText('Not copied: select it by hand.').waitFor()
  assert.deepEqual(page.complaints, [])
})

test('a tool call and its result are folded and open', async () => {
  const messages = [{ role: 'user', content: 'How is the weather in Paris?' }]
  const asked = { tools: [WEATHER], session_id: 'weather' }
  const demanded = { ...asked, tool_choice: 'required', parallel_tool_calls: false, max_tokens: 200 }
  const first = await hone.call('POST', '/v1/chat/completions', { model: 'hone-starter', messages, ...demanded })
  const called = first.choices[0].message
  assert.equal(called.tool_calls?.length, 1, JSON.stringify(called))
  messages.push(called, { role: 'tool', tool_call_id: called.tool_calls[0].id, content: '{"sky": "clear"}' })
  await hone.call('POST', '/v1/chat/completions', { model: 'hone-starter', messages, ...asked, max_tokens: 40 })

  const page = await open(browser, hone)
  await openSession(page, 'How is the weather')
  const tools = page.getByTestId('tool')
  await until(async () => (await tools.count()) === 2)
  for (const [at, title, inside] of [[0, 'Called weather', '"city": "Paris"'], [1, 'Tool result', '"sky": "clear"']]) {
    const tool = tools.nth(at)
    const text = tool.locator('pre')
    assert.equal(await text.isVisible(), false)
    await tool.getByText(title).click()
    await text.waitFor()
    assert.ok((await text.innerText()).includes(inside), await text.innerText())
    await tool.getByText(title).click()
    assert.equal(await text.isVisible(), false)
  }
  assert.ok(!(await page.getByTestId('answer').first().innerText()).includes('tool_call'))
  assert.deepEqual(page.complaints, [])
})

test('what a program tells of its tools stands in the order in which it was said', async () => {
  const call = { id: 'call_1', type: 'function', function: { name: 'get_weather', arguments: '{"city": "Oslo"}' } }
  const messages = [
    { role: 'user', content: 'Is it sunny in Oslo?' },
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'call_1', content: 'sunny' },
  ]
  await hone.call('POST', '/v1/chat/completions', { model: 'hone-starter', messages, max_tokens: 8, session_id: 'told' })
  const page = await open(browser, hone)
  await openSession(page, 'Is it sunny')
  await page.getByTestId('tool').nth(1).waitFor()
  const parts = page.getByTestId('turn').locator('[data-testid="said"], [data-testid="tool"] summary, [data-testid="answer"]')
  const [said, called, result, ...answer] = await parts.allInnerTexts()
  assert.deepEqual([said, called.trim(), result.trim(), answer.length], ['Is it sunny in Oslo?', 'Called get_weather', 'Tool result', 1])
  await page.getByText('Called get_weather').click()
  await page.getByText('"city": "Oslo"').waitFor()
  // The talk goes on from there: what was told is sent again.
  await say(page, 'And tomorrow?')
  assert.deepEqual(page.complaints, [])
})

test('a thumb counts when it is pressed, words may follow, and it is taken back', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  const said = await say(page, 'What is the capital of Peru?')
  const id = await said.getAttribute('data-turn')
  const stored = (score, comment) =>
    until(async () => {
      const { feedback } = await hone.get(`/v1/turns/${id}`)
      return feedback.length === 1 && feedback[0].score === score && feedback[0].comment === comment
    })
  await said.getByTestId('thumb-up').click()
  // Nobody sends the words; whoever goes elsewhere has said it.
  await page.getByTestId('nav-learned').click()
  await stored(1, null)
  await page.goto(`${hone.url}/#/chat`)
  await openSession(page, 'capital of Peru')
  const turn = page.locator(`[data-turn="${id}"]`)
  const thumb = turn.getByTestId('thumb-up')
  await turn.locator('[data-testid="thumb-up"][aria-pressed="true"]').waitFor()
  await thumb.click()
  await turn.getByTestId('comment').fill('short and true')
  await turn.getByTestId('feedback-send').click()
  await turn.getByTestId('feedback-panel').waitFor({ state: 'detached' })
  await stored(1, 'short and true')
  await thumb.click()
  await turn.getByTestId('take-back').click()
  await turn.locator('[data-testid="thumb-up"][aria-pressed="false"]').waitFor()
  await stored(0, null)
  assert.deepEqual(page.complaints, [])
})

/** Why a turn does not train, or where it is. */
async function fate(id) {
  const turn = await until(async () => {
    const found = await fetch(`${hone.url}/v1/turns/${id}`)
    return found.ok && found.json()
  })
  return turn.fate.reason ?? turn.fate.stage
}

test('an answer is stopped in the middle, and what was said stays', async () => {
  const page = await open(browser, hone)
  // The page never asks for an answer that goes on to the end of the context; this one does, so that no hand is too slow.
  const endless = (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }) })
  await page.route('**/v1/chat/completions', endless, { times: 1 })
  await page.goto(hone.url)
  await page.getByTestId('composer').fill('Tell me everything you know about tea, coffee and the sea.')
  await page.getByTestId('send').click()
  const turn = page.getByTestId('turn').first()
  await until(async () => (await turn.locator('.markdown').innerText()).length > 0)
  await page.getByTestId('stop').click()
  await turn.getByText('stopped', { exact: true }).waitFor()
  const id = await turn.getAttribute('data-turn')
  assert.equal(await fate(id), 'cancelled')
  const text = await turn.locator('.markdown').innerText()
  assert.ok(text.length > 0)
  // The talk goes on, and a reload shows what was said until then.
  await say(page, 'Thanks.')
  await page.reload()
  await page.locator(`[data-turn="${id}"]`).getByText('stopped', { exact: true }).waitFor()
  assert.deepEqual(page.complaints, [])
})

test('another answer and an edit make branches that stay', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  await say(page, 'What is the capital of Spain?')
  await say(page, 'And of Italy?')
  const turns = page.getByTestId('turn')

  // Another answer to the second question.
  await turns.nth(1).getByTestId('retry').click()
  await turns.nth(1).getByText('2 / 2').waitFor()
  assert.equal(await turns.count(), 2)
  await turns.nth(1).getByRole('button', { name: 'Previous branch' }).click()
  await turns.nth(1).getByText('1 / 2').waitFor()

  // Another first question: what followed the old one is not part of it.
  await turns.first().hover()
  await turns.first().getByTestId('edit').click()
  await page.getByTestId('edit-text').fill('What is the capital of Norway?')
  await page.getByTestId('edit-send').click()
  await turns.first().getByText('2 / 2').waitFor()
  assert.equal(await turns.count(), 1)
  assert.equal(await page.getByTestId('said').innerText(), 'What is the capital of Norway?')
  await page.reload()
  await turns.first().getByText('2 / 2').waitFor()
  await turns.first().getByRole('button', { name: 'Previous branch' }).click()
  await page.getByText('What is the capital of Spain?').last().waitFor()
  await until(async () => (await turns.count()) === 2)
  await turns.nth(1).getByText('/ 2').waitFor()
  assert.deepEqual(page.complaints, [])
})

test('an edit that failed leaves the way back', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  const turn = await say(page, 'What is the capital of Greece?')
  const busy = { status: 503, json: { error: { message: 'too busy' } } }
  await page.route('**/v1/chat/completions', (route) => route.fulfill(busy), { times: 1 })
  await turn.hover()
  await turn.getByTestId('edit').click()
  await page.getByTestId('edit-text').fill('What is the capital of Malta?')
  await page.getByTestId('edit-send').click()
  await page.getByText('Too busy.').waitFor()
  await page.getByRole('button', { name: 'Previous branch' }).click()
  await page.getByTestId('said').filter({ hasText: 'Greece' }).waitFor()
})

test('an answer that still comes is there again after a look at another chat', async () => {
  await hone.chat('A word about bread, please.', { session_id: 'bread' })
  await hone.chat('A word about butter, please.', { session_id: 'butter' })
  const page = await open(browser, hone)
  await openSession(page, 'bread')
  let release
  const held = new Promise((go) => (release = go))
  await page.route('**/v1/chat/completions', (route) => held.then(() => route.continue()), { times: 1 })
  const look = async (title) => {
    await page.getByTestId('session').filter({ hasText: title }).click()
    await page.getByTestId('said').first().filter({ hasText: title }).waitFor()
  }
  await page.getByTestId('composer').fill('And another.')
  await page.getByTestId('send').click()
  await page.getByTestId('stop').waitFor()
  await look('butter')
  assert.equal(await page.getByTestId('stop').count(), 0)
  await look('bread')
  const turn = page.getByTestId('turn').nth(1)
  assert.equal(await turn.getByTestId('said').innerText(), 'And another.')

  // Escape closes what stands over the page before it stops an answer.
  await page.getByTestId('consent').click()
  await page.getByTestId('consent-off').waitFor()
  await page.keyboard.press('Escape')
  await page.getByTestId('consent-off').waitFor({ state: 'hidden' })
  await page.getByTestId('stop').waitFor()

  release()
  await turn.getByTestId('version').waitFor()
  assert.deepEqual(page.complaints, [])
})

test('a choice about learning that is refused is not shown as made', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  const busy = { status: 503, json: { error: { message: 'too busy' } } }
  await page.route('**/v1/consent', (route) => (route.request().method() === 'PUT' ? route.fulfill(busy) : route.continue()))
  const consent = page.getByTestId('consent')
  const now = await consent.getAttribute('data-consent')
  await consent.click()
  await page.getByTestId(now === 'off' ? 'consent-serve' : 'consent-off').click()
  await page.getByText('Too busy.').waitFor()
  assert.ok(await page.getByTestId(`consent-${now}`).isChecked())
})

test('what a program says with store: false teaches where the person ticks the box', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  await page.getByTestId('consent').click()
  const box = page.getByTestId('despite-store-false')
  await page.getByTestId('consent-full').check()
  const collected = async () => (await hone.chat('Hello!', { store: false })).hone.collected
  for (const wanted of [true, false]) {
    await box.setChecked(wanted)
    await until(async () => (await hone.get('/v1/consent')).despite_store_false === wanted)
    assert.equal(await collected(), wanted)
  }
  // Where nothing is learned there is nothing to tick.
  await page.getByTestId('consent-serve').check()
  await box.waitFor({ state: 'detached' })
  await page.getByTestId('consent-full').check()
  await box.waitFor()
  assert.deepEqual(page.complaints, [])
})

test('chats are found by their words', async () => {
  await hone.chat('A poem about winter, please.', { session_id: 'winter' })
  await hone.chat('A recipe for soup, please.', { session_id: 'soup' })
  const page = await open(browser, hone)
  await page.goto(hone.url)
  const sessions = page.getByTestId('session')
  await sessions.filter({ hasText: 'soup' }).waitFor()
  await page.getByTestId('session-search').fill('WINTER')
  await until(async () => (await sessions.count()) === 1)
  assert.match(await sessions.first().innerText(), /winter/)
  await sessions.first().click()
  await page.getByTestId('said').filter({ hasText: 'winter' }).waitFor()
  assert.match(page.url(), /#\/chat\/sess_/)
  await page.getByTestId('session-search').fill('no such words')
  await page.getByText('Nothing found').waitFor()
  await page.getByTestId('session-search').fill('')
  await sessions.filter({ hasText: 'soup' }).waitFor()
  assert.deepEqual(page.complaints, [])
})

test('what fails in the narrow list of chats is read in lines of some words', async () => {
  const page = await open(browser, hone)
  await page.route('**/v1/sessions?*', (route) => route.abort())
  await page.goto(hone.url)
  const note = page.getByTestId('sessions').getByRole('alert')
  await note.getByRole('button', { name: 'Try again' }).waitFor()
  const box = await note.boundingBox()
  assert.ok(box.height < 200, `${box.height} pixels high`)
})

test('everything of one’s own is taken home in one file', async () => {
  const kept = await hone.chat('Remember the word canary.', { session_id: 'export' })
  await hone.call('POST', '/v1/feedback', { turn_id: kept.hone.turn_id, score: 1, comment: 'as I like it' })
  const memory = await hone.call('POST', '/v1/memories', { text: 'I own a boat.' })
  await hone.teach()
  await calm(hone)
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/account`)
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByTestId('export').click()])
  assert.match(file.suggestedFilename(), /^hone-local-\d{4}-\d\d-\d\d\.json$/)
  const all = JSON.parse(readFileSync(await file.path(), 'utf8'))
  assert.equal(all.owner, 'local')
  const listed = await hone.get('/v1/sessions?limit=200')
  assert.deepEqual(all.sessions.map((s) => s.id).sort(), listed.data.map((s) => s.id).sort())
  const turn = all.sessions.flatMap((s) => s.turns).find((t) => t.turn_id === kept.hone.turn_id)
  assert.equal(turn.messages[0].content, 'Remember the word canary.')
  assert.equal(turn.completion, kept.choices[0].message.content)
  assert.equal(turn.feedback[0].comment, 'as I like it')
  const versions = await hone.get('/v1/versions')
  assert.deepEqual(all.versions.map((v) => v.version), versions.data.map((v) => v.version))
  assert.ok(all.learned.sentence)
  assert.deepEqual(all.memories, [memory])
  assert.deepEqual(page.complaints, [])
})
