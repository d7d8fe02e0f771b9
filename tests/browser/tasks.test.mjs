// Tasks from the page: sets and their states, a rollout that is tried, watched, opened and cancelled,
// and the queues of the console.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Hone, QUICK, confirm, issues, launch, open, picture, until } from './hone.mjs'

const LOOKS = [
  { name: 'light', colorScheme: 'light', viewport: { width: 1280, height: 860 } },
  { name: 'dark', colorScheme: 'dark', viewport: { width: 1280, height: 860 } },
  { name: 'narrow', colorScheme: 'light', viewport: { width: 390, height: 780 } },
  { name: 'narrowest', colorScheme: 'dark', viewport: { width: 320, height: 640 } },
]

/** Short answers pass, long ones do not: the built-in model gives both. */
const SHORT = '[ -f /app/answer.txt ] && [ $(wc -w < /app/answer.txt) -le 3 ]'
const TASKS = [
  { name: 'capital', instruction: 'What is the capital of France?', tests: { 'test.sh': SHORT } },
  { name: 'greeting', instruction: 'Say hello.', tests: { 'test.sh': SHORT }, held_out: true },
  { name: 'solved already', instruction: 'Do nothing.', tests: { 'test.sh': 'exit 0' } },
]

let hone, browser, set
before(async () => {
  ;[hone, browser] = await Promise.all([Hone.start(), launch()])
})
after(async () => {
  await browser?.close()
  await hone?.stop()
})

/** What nobody says: whether a task is kept for measuring is drawn. */
const add = (name) => hone.call('POST', '/v1/task-sets', { name, tasks: TASKS.map((task) => ({ held_out: false, ...task })) })

const ended = (id) => until(async () => (await hone.get(`/v1/rollouts/${id}`)).status !== 'running')

test('a page without tasks says how to add some', async () => {
  const page = await open(browser, hone)
  await page.goto(hone.url)
  await page.getByTestId('nav-tasks').click()
  await page.getByText('hone tasks add FOLDER').waitFor()
  await picture(page, 'tasks-empty-light')
  assert.deepEqual(await issues(page), [])
  assert.deepEqual(page.complaints, [])
})

test('a set is checked, its tasks are tried, and what came of it is seen', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/tasks`)
  set = await add('short answers')
  // The list follows the checks by itself.
  const row = page.getByTestId('task-set')
  await row.locator('[data-state="ready"]').filter({ hasText: '2 ready' }).waitFor()
  await row.locator('[data-state="refused"]').filter({ hasText: '1 refused' }).waitFor()

  // One is refused, and the page says why.
  await row.getByRole('link').click()
  const tasks = page.getByTestId('task')
  await tasks.nth(2).waitFor()
  const refused = page.locator('[data-testid="task"][data-state="refused"]')
  assert.match(await refused.getByTestId('task-note').innerText(), /\w+ \w+/)
  assert.equal(await tasks.filter({ hasText: 'measuring' }).count(), 1)

  // A small rollout, learned from.
  await page.getByTestId('try-agent').selectOption('answer')
  await page.getByTestId('try-attempts').fill('2')
  await page.getByText('More', { exact: true }).click()
  await page.getByTestId('try-groups').fill('3')
  await page.getByTestId('try-tokens').fill('24')
  await page.getByTestId('try-size').filter({ hasText: '3 groups of 2 attempts: 6 attempts in all.' }).waitFor()
  await page.getByTestId('try-start').click()
  await page.getByRole('heading', { name: 'Rollout of short answers' }).waitFor()
  const id = page.url().split('/').at(-1)

  // The page follows it to its end.
  await page.locator('[data-testid="rollout-state"][data-status="done"]').filter({ hasText: '6 of 6 attempts ended' }).waitFor()
  const plot = page.getByTestId('success-plot')
  await plot.waitFor()
  assert.match(await plot.getAttribute('aria-label'), /base: \d+ % of \d attempts? passed, 95 % interval \d+ % to \d+ %/)
  const { versions } = await hone.get(`/v1/rollouts/${id}`)
  assert.equal(await plot.locator('circle').count(), versions.length)
  assert.equal(await page.getByTestId('success').locator('tbody tr').count(), versions.length)

  // An attempt: how it went, what the tests wrote, and the conversation.
  const episodes = page.getByTestId('episode')
  assert.equal(await episodes.count(), 6)
  const one = episodes.first()
  assert.match(await one.innerText(), /capital attempt \d[\s\S]*passed/)
  await one.getByTestId('episode-output').click()
  await page.getByTestId('episode-text').waitFor()
  await one.getByTestId('episode-chat').click()
  await page.getByTestId('turn').first().waitFor()
  await page.getByText('What is the capital of France?').first().waitFor()
  assert.deepEqual(page.complaints, [])
})

test('a version is measured on the tasks that are kept for it', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/tasks/sets/${set.id}`)
  await page.getByTestId('try-aim').selectOption('Only to measure')
  await page.getByTestId('try-version').selectOption('the base model')
  await page.getByTestId('try-agent').selectOption('answer')
  await page.getByTestId('try-size').filter({ hasText: '1 attempt.' }).waitFor()
  await page.getByTestId('try-start').click()
  await page.locator('[data-testid="rollout-state"][data-status="done"]').waitFor()
  await page.getByText('only measures (base)').waitFor()
  await page.getByTestId('episode').filter({ hasText: 'greeting' }).waitFor()
  assert.deepEqual(page.complaints, [])
})

test('what the server refuses is said in its words', async () => {
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/tasks/sets/set_01a1fc1b-b88e-71ef-aa3b-1a50645404e0`)
  await page.getByRole('alert').filter({ hasText: 'No task set' }).waitFor()
  await page.goto(`${hone.url}/#/tasks/sets/${set.id}`)
  await page.getByTestId('try-attempts').fill('1')
  await page.getByTestId('try-start').click()
  await page.getByRole('alert').filter({ hasText: 'Attempts must be at least 2' }).waitFor()
  await page.goto(`${hone.url}/#/tasks/nowhere`)
  await page.getByTestId('task-sets').waitFor()
  assert.match(page.url(), /#\/tasks$/)
})

test('a rollout is cancelled from the list, and the queues show what became of the work', async () => {
  const order = { task_set: set.id, agent: 'answer', attempts: 16, groups: 40, tokens_max: 24 }
  const { id } = await hone.call('POST', '/v1/rollouts', order)
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/console/queues`)
  await page.getByTestId('queues-open').filter({ hasText: 'Attempts at tasks' }).waitFor()
  await page.goto(`${hone.url}/#/tasks`)
  const row = page.locator(`[data-testid="rollout"][data-id="${id}"]`)
  await row.getByTestId('rollout-cancel').click()
  await page.locator(`[data-testid="rollout"][data-id="${id}"][data-status="cancelled"]`).waitFor()
  await ended(id)
  await page.getByTestId('nav-console').click()
  await page.getByTestId('console-queues').click()
  const over = page.getByTestId('queues-ended')
  await over.filter({ hasText: 'Checks of tasks' }).waitFor()
  await over.filter({ hasText: 'cancelled' }).waitFor()
  assert.deepEqual(page.complaints, [])
})

for (const { name: look, ...options } of LOOKS) {
  test(`what shows tasks is accessible and pictured: ${look}`, async () => {
    const page = await open(browser, hone, options)
    const { data } = await hone.get('/v1/rollouts')
    const most = data.toSorted((a, b) => b.versions.length - a.versions.length)[0]
    const screens = {
      tasks: ['#/tasks', 'rollouts'],
      'tasks-set': [`#/tasks/sets/${set.id}`, 'set-tasks'],
      'tasks-rollout': [`#/tasks/rollouts/${most.id}`, 'episodes'],
      queues: ['#/console/queues', 'queues-ended'],
    }
    const wrong = []
    for (const [name, [hash, shown]] of Object.entries(screens)) {
      await page.goto('about:blank')
      await page.goto(`${hone.url}/${hash}`)
      await page.getByTestId(shown).waitFor()
      if (name === 'tasks-set') await page.getByText('More', { exact: true }).click()
      if (name === 'tasks-rollout') await page.getByTestId('episode-output').first().click()
      await picture(page, `${name}-${look}`)
      wrong.push(...(await issues(page)).map((issue) => `${name}: ${issue}`))
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
      if (overflow > 1) wrong.push(`${name}: ${overflow} pixels wider than the window`)
    }
    assert.deepEqual(wrong, [])
    assert.deepEqual(page.complaints, [])
  })
}

test('a set is removed by typing its name', async () => {
  const { data } = await hone.get('/v1/rollouts')
  await Promise.all(data.map(({ id }) => ended(id)))
  await until(async () => (await hone.get('/v1/queues')).data.every(({ state }) => !['queued', 'running'].includes(state)))
  const page = await open(browser, hone)
  await page.goto(`${hone.url}/#/tasks/sets/${set.id}`)
  await page.getByTestId('set-remove').click()
  await confirm(page)
  await page.getByText('No tasks yet').waitFor()
  assert.deepEqual((await hone.get('/v1/task-sets')).data, [])
  assert.deepEqual(page.complaints, [])
})

test('a server that can try nothing says why', async () => {
  const idle = await Hone.start({ ...QUICK, HONE__TOOLS__EXECUTOR: 'off' })
  try {
    const { stopped } = await idle.get('/admin/v1/queues')
    const page = await open(browser, idle)
    for (const hash of ['#/tasks', '#/console/queues']) {
      await page.goto(`${idle.url}/${hash}`)
      await page.getByRole('status').filter({ hasText: stopped }).waitFor()
      assert.deepEqual(await issues(page), [])
    }
    await picture(page, 'queues-stopped-light')
    assert.deepEqual(page.complaints, [])
  } finally {
    await idle.stop()
  }
})
