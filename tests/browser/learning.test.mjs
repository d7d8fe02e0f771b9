// From a first visit to a version of one's own, back to the base model, and forgotten.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Hone, QUICK, confirm, launch, open, say, until } from './hone.mjs'

let hone, browser
before(async () => {
  ;[hone, browser] = await Promise.all([Hone.start(), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

test('a first visit, a correction, a version, a comparison, the way back, and forgetting', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)

  // A thumb down with a better answer, on each of a few answers.
  const corrected = []
  for (let at = 0; at < 4; at += 1) {
    if (at > 0) await page.getByTestId('new-chat').click()
    const turn = await say(page, 'What is the capital of France?')
    corrected.push(await turn.getAttribute('data-turn'))
    // The thumb alone, or the words alone: both count.
    await turn.getByTestId(at === 0 ? 'better-answer' : 'thumb-down').click()
    // What becomes of the text is said before it is sent.
    if (at === 0) await turn.getByTestId('correction-hint').filter({ hasText: 'practise to answer like this' }).waitFor()
    await turn.getByTestId('correction').fill('The capital of France is Paris.')
    await turn.getByTestId('feedback-send').click()
    await turn.getByTestId('feedback-panel').waitFor({ state: 'detached' })
  }

  // It was judged, by what was said.
  const judged = await until(async () => {
    const turn = await hone.get(`/v1/turns/${corrected[0]}`)
    return turn.verdict && turn
  })
  assert.equal(judged.verdict.decided_by, 'feedback')
  assert.equal(judged.feedback[0].correction, 'The capital of France is Paris.')

  // A version learned from it, and the page says so without being asked again.
  await until(async () => (await hone.get('/v1/versions')).data.length > 0)
  await page.getByTestId('nav-learned').click()
  const learned = page.getByTestId('learned-version')
  await learned.first().waitFor()
  const version = await learned.first().getAttribute('data-version')
  assert.ok(Number(version) >= 1, version)
  assert.match(await page.getByTestId('learned-sentence').innerText(), /\w/)

  // Whoever says more about what was learned is told that it teaches no more, before and after.
  const taught = await until(async () => {
    const turns = await Promise.all(corrected.map((id) => hone.get(`/v1/turns/${id}`)))
    return turns.find((turn) => turn.fate.state === 'trained')
  })
  await page.goto(`${hone.url}/#/chat/${taught.session_id}`)
  const again = page.getByTestId('turn').first()
  await again.getByTestId('thumb-down').click()
  await again.getByTestId('correction-hint').filter({ hasText: `v${taught.fate.version} has learned from this answer already` }).waitFor()
  await again.getByTestId('feedback-send').click()
  await again.getByTestId('feedback-outcome').filter({ hasText: 'has learned from this answer already' }).waitFor()
  await page.getByTestId('nav-learned').click()
  await learned.first().waitFor()

  // Both answer side by side.
  await learned.first().getByTestId('compare').click()
  await page.getByTestId('compare-run').click()
  await page.getByTestId('comparison').waitFor()
  assert.ok((await page.getByTestId('comparison').locator('section').count()) > 0)

  // Back to the base model.
  await page.goto(`${hone.url}/#/learned`)
  const base = page.locator('[data-testid="learned-version"][data-version="0"]')
  await base.getByTestId('go-back').click()
  await confirm(page)
  const restored = await until(async () => {
    const versions = await hone.get('/v1/versions')
    return versions.data.find((row) => row.status === 'rollback')
  })
  assert.equal(restored.parent, 0)

  // Forget me: what would go is said first, then it goes.
  await page.goto(`${hone.url}/#/learned`)
  await page.getByTestId('forget-all').click()
  await page.getByTestId('forget-plan').waitFor()
  await confirm(page)
  await page.getByTestId('forget-done').waitFor()
  assert.deepEqual((await hone.get('/v1/sessions')).data, [])
  const gone = await fetch(`${hone.url}/v1/turns/${corrected[0]}`)
  assert.equal(gone.status, 404)
  // The chat that was open is gone from the page as well.
  await page.locator('dialog[open]').getByRole('button', { name: 'Close' }).last().click()
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Chat' }).click()
  await page.getByTestId('composer').waitFor()
  assert.equal(await page.getByTestId('turn').count(), 0)
  assert.deepEqual(page.complaints, [])
})

test('where words teach a thumb down waits for them, and is kept by whoever goes elsewhere', async () => {
  const words = await Hone.start({ ...QUICK, HONE__TRAIN__METHOD: 'supervised' })
  try {
    const page = await open(browser, words)
    await page.goto(words.url)
    const feedback = async (id) => (await words.get(`/v1/turns/${id}`)).feedback.map(({ score, correction }) => [score, correction])
    const press = async () => {
      const turn = await say(page, 'What is the capital of France?')
      await turn.getByTestId('thumb-down').click()
      await turn.getByTestId('held').waitFor()
      assert.equal(await turn.getByTestId('thumb-down').getAttribute('aria-pressed'), 'true')
      return [turn, await turn.getAttribute('data-turn')]
    }
    const [turn, corrected] = await press()
    assert.deepEqual(await feedback(corrected), [])
    await turn.getByTestId('correction').fill('Paris.')
    await turn.getByTestId('feedback-send').click()
    await turn.getByTestId('feedback-panel').waitFor({ state: 'detached' })
    assert.deepEqual(await feedback(corrected), [[-1, 'Paris.']])
    // The other thumb by mistake: the better answer stays.
    await turn.getByTestId('thumb-up').click()
    await turn.getByTestId('held').filter({ hasText: 'replaces the better answer' }).waitFor()
    await turn.getByTestId('feedback-close').click()
    await turn.locator('[data-testid="thumb-down"][aria-pressed="true"]').waitFor()
    await turn.getByTestId('thumb-down').click()
    assert.equal(await turn.getByTestId('correction').inputValue(), 'Paris.')
    await turn.getByTestId('feedback-close').click()
    assert.deepEqual(await feedback(corrected), [[-1, 'Paris.']])
    const [unsaid, taken] = await press()
    await unsaid.getByTestId('take-back').click()
    await unsaid.getByTestId('feedback-panel').waitFor({ state: 'detached' })
    for (const leave of [() => page.getByTestId('new-chat').click(), () => page.reload()]) {
      const [, id] = await press()
      await leave()
      await until(async () => (await feedback(id)).join() === '-1,')
    }
    assert.deepEqual(await feedback(taken), [])
    assert.deepEqual(page.complaints, [])
  } finally {
    await words.stop()
  }
})
