// Everything with the keyboard alone: Tab, Enter, Escape, arrows and typing. The focus is always
// somewhere, and can be seen.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Hone, QUICK, launch, open, until } from './hone.mjs'

/** Keys pressed at most on the way to one thing. */
const STEPS_MAX = 80
const PASSWORD = 'a password for the keyboard'

let hone, browser
before(async () => {
  const env = { ...QUICK, HONE__PEOPLE__SIGN_IN: 'true' }
  ;[hone, browser] = await Promise.all([Hone.start(env), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

/** What has the focus, and whether one can see that. */
function focused(page) {
  return page.evaluate(() => {
    const at = document.activeElement
    if (!at || at === document.body) return null
    const shows = (element) => {
      const style = getComputedStyle(element)
      return (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== 'none'
    }
    const box = at.getBoundingClientRect()
    // A field may be drawn by the frame around it.
    const ringed = shows(at) || [...document.querySelectorAll(':focus-within')].some((e) => e !== at && e.contains(at) && !/^(HTML|BODY|MAIN|DIALOG)$/.test(e.tagName) && getComputedStyle(e).boxShadow !== 'none')
    const inside = box.width > 0 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth
    return {
      what: at.dataset.testid ?? '',
      said: `${at.tagName} ${at.dataset.testid ?? ''} ${at.getAttribute('aria-label') ?? at.textContent?.trim().slice(0, 40)}`,
      ringed,
      inside,
      opacity: Number(getComputedStyle(at).opacity),
    }
  })
}

/** The focus is somewhere, in sight, and drawn. */
async function seen(page, when) {
  const at = await until(() => focused(page), 3_000).catch(() => null)
  assert.ok(at, `the focus is lost ${when}`)
  assert.ok(at.ringed && at.inside && at.opacity > 0.5, `the focus cannot be seen ${when}: ${JSON.stringify(at)}`)
  return at
}

async function press(page, key) {
  await page.keyboard.press(key)
  return seen(page, `after ${key}`)
}

/** Presses a key until what is wanted has the focus. */
async function reach(page, wanted, key = 'Tab') {
  const passed = []
  for (let step = 0; step < STEPS_MAX; step += 1) {
    const at = await focused(page)
    if (at && (at.what === wanted || (wanted instanceof RegExp && wanted.test(at.said)))) return seen(page, `at ${wanted}`)
    passed.push(at?.said ?? 'nothing')
    await page.keyboard.press(key)
    const next = await focused(page)
    // Between the last thing of a page and the first there is the browser itself.
    if (next) assert.ok(next.ringed && next.inside && next.opacity > 0.5, `the focus cannot be seen after ${key}: ${JSON.stringify(next)}`)
  }
  assert.fail(`${key} never leads to ${wanted}; it passes ${passed.join(' → ')}`)
}

/** Types the name that a dialog asks for and confirms. */
async function confirmByKeys(page) {
  await page.locator('dialog[open]').waitFor()
  const name = await page.locator('dialog[open] b.mono').innerText()
  assert.equal((await seen(page, 'in the dialog')).what, 'confirm-name')
  await page.keyboard.type(name)
  await reach(page, 'confirm-act')
  await press(page, 'Enter')
  await page.locator('dialog[open]').waitFor({ state: 'detached' })
  return seen(page, 'after the dialog')
}

/** Sends what is typed and waits for the whole answer. */
async function sayByKeys(page, text) {
  const before = await page.getByTestId('turn').count()
  await reach(page, 'composer')
  await page.keyboard.type(text)
  await press(page, 'Enter')
  await page.getByTestId('turn').nth(before).getByTestId('version').waitFor()
  await seen(page, 'after the answer')
}

/** Types name and password into the form that is there, and comes in. */
async function enter(page) {
  await reach(page, 'name')
  await page.keyboard.type('keys')
  await reach(page, 'password')
  await page.keyboard.type(PASSWORD)
  await page.keyboard.press('Enter')
  await page.getByTestId('composer').waitFor()
}

/** Makes the first account, signs out and in again. */
async function arrive(page) {
  const invitation = await hone.firstLink()
  await page.goto(invitation)
  await page.getByTestId('name').waitFor()
  await enter(page)
  await reach(page, 'nav-account')
  await page.keyboard.press('Enter')
  await page.getByTestId('sign-out').waitFor()
  await reach(page, 'sign-out')
  await page.keyboard.press('Enter')
  await page.getByTestId('sign-in').waitFor()
  await enter(page)
}

/** A thumb down with a better answer on the newest answer. */
async function correctByKeys(page, text) {
  await reach(page, 'thumb-down', 'Shift+Tab')
  const field = await press(page, 'Enter')
  assert.equal(field.what, 'correction', 'the field one asked for has the focus')
  await page.keyboard.type(text)
  await reach(page, 'feedback-send')
  await page.keyboard.press('Enter')
  await page.getByTestId('feedback-panel').waitFor({ state: 'detached' })
  const at = await seen(page, 'after the feedback')
  assert.equal(at.what, 'thumb-down')
}

test('a whole visit with the keyboard alone', async () => {
  const page = await open(browser, hone)
  await arrive(page)

  // A new chat by its shortcut and by its button, an answer that is stopped by Escape.
  await reach(page, 'new-chat')
  await press(page, 'Enter')
  await reach(page, 'composer')
  await page.keyboard.type('Tell me everything about the sea, the mountains and the weather.')
  await page.keyboard.press('Enter')
  await page.keyboard.press('Escape')
  await page.getByTestId('turn').first().waitFor()
  await until(async () => (await page.locator('[aria-busy="true"]').count()) === 0)
  await seen(page, 'after the stop')

  // By the buttons: sending keeps the focus on what becomes the stop button.
  await reach(page, 'composer')
  await page.keyboard.type('Hello!')
  await reach(page, 'send')
  await press(page, 'Enter')
  await page.getByTestId('turn').nth(1).getByTestId('version').waitFor()
  await seen(page, 'after the answer')

  // A panel closed by Escape gives the focus back.
  await reach(page, 'thumb-down', 'Shift+Tab')
  await press(page, 'Enter')
  await reach(page, 'correction')
  await press(page, 'Escape')
  assert.equal((await focused(page)).what, 'thumb-down')

  // The learning switch: a list of three, by arrows.
  await reach(page, 'consent', 'Shift+Tab')
  await press(page, 'Enter')
  await reach(page, /INPUT consent-/)
  await press(page, 'ArrowUp')
  await page.locator('[data-consent="full"]').waitFor()
  await press(page, 'Escape')
  assert.equal((await focused(page)).what, 'consent')

  // Teach a version.
  for (let at = 0; at < 4; at += 1) {
    await reach(page, 'new-chat')
    await press(page, 'Enter')
    await sayByKeys(page, 'What is the capital of France?')
    await correctByKeys(page, 'The capital of France is Paris.')
  }

  // The list of chats is one stop; arrows go through it.
  await reach(page, 'session', 'Shift+Tab')
  const first = await press(page, 'Home')
  await press(page, 'ArrowDown')
  await press(page, 'End')
  await press(page, 'ArrowUp')
  await press(page, 'Home')
  assert.deepEqual(await focused(page), first)
  await press(page, 'Tab')
  assert.notEqual((await focused(page)).what, 'session')

  // A dialog: help opens, Escape closes, the focus is where it was.
  await reach(page, /Keyboard shortcuts/, 'Shift+Tab')
  const opener = await focused(page)
  await press(page, 'Enter')
  await page.locator('dialog[open]').waitFor()
  await press(page, 'Escape')
  await page.locator('dialog[open]').waitFor({ state: 'detached' })
  assert.deepEqual((await seen(page, 'after the help')).said, opener.said)

  // Open the version in the console, go back to the base model with its name typed.
  const version = await until(() => page.evaluate(async () => (await (await fetch('/v1/versions')).json()).data[0]?.version))
  await reach(page, 'nav-console')
  await page.keyboard.press('Enter')
  await page.getByTestId('console-versions').waitFor()
  await reach(page, 'console-versions')
  await press(page, 'Enter')
  await page.locator(`[data-testid="version-row"][data-version="${version}"]`).waitFor()
  await reach(page, 'version-row')
  await press(page, 'Enter')
  await page.getByTestId('version-detail').waitFor()
  await press(page, 'End')
  await press(page, 'Enter')
  await page.getByTestId('roll-back').waitFor()
  await reach(page, 'roll-back')
  await press(page, 'Enter')
  // Once without: Escape leaves everything as it is.
  await page.locator('dialog[open]').waitFor()
  await press(page, 'Escape')
  assert.equal((await seen(page, 'after Escape')).what, 'roll-back')
  await press(page, 'Enter')
  // And closed and asked for again before the next frame is drawn.
  await page.locator('dialog[open]').waitFor()
  await page.evaluate(async () => {
    document.querySelector('dialog[open]').requestClose()
    await new Promise((resolve) => setTimeout(resolve))
    document.activeElement.click()
  })
  await confirmByKeys(page)
  await page.locator('[data-testid="version-row"]').filter({ hasText: 'rollback' }).waitFor()
  await seen(page, 'after the rollback')

  // A chart is read and zoomed without a pointer.
  await reach(page, 'console-learning', 'Shift+Tab')
  await press(page, 'Enter')
  // One that shows every version: with a single point there is nothing to zoom into.
  await page.getByRole('figure', { name: /^Loss/ }).waitFor()
  await reach(page, /^DIV plot Loss/)
  await press(page, 'ArrowLeft')
  await page.getByTestId('chart-at').first().waitFor()
  await press(page, '+')
  await page.getByTestId('zoom-out').waitFor()
  await press(page, '0')
  await page.getByTestId('zoom-out').waitFor({ state: 'detached' })
  // Who is not signed in is told so, and the browser notes it.
  assert.deepEqual(page.complaints.filter((said) => !/401 .*\/v1\/me$/.test(said)), [])
})
