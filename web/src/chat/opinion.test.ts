import { afterEach, expect, it, vi } from 'vitest'
import type { ConsentView } from '../api/types'
import { TurnNode } from './conversation.svelte'
import { Opinion } from './opinion.svelte'

afterEach(() => void vi.unstubAllGlobals())

const consent = (corrections: ConsentView['corrections']) => ({ learning: 'full', corrections }) as ConsentView

/** What of feedback was posted, and which of it outlives the page; a status for each, 0 for no reply, then the last. */
function server(...statuses: number[]) {
  const posted: object[] = []
  const outliving: object[] = []
  vi.stubGlobal('fetch', async (path: string, { method, body, keepalive }: RequestInit) => {
    if (method !== 'POST') return new Response('{}', { status: 503 })
    expect(path).toBe('/v1/feedback')
    const status = statuses[posted.length] ?? statuses.at(-1) ?? 200
    posted.push(JSON.parse(body as string) as object)
    if (keepalive) outliving.push(posted.at(-1)!)
    if (status === 0) return new Promise(() => {})
    return Response.json(status === 200 ? { outcome: 'stored', explanation: null } : {}, { status })
  })
  return { posted, outliving }
}

function opinion() {
  const node = new TurnNode('a', null, [], 0)
  node.turnId = 'turn_a'
  return { node, said: new Opinion(node) }
}

const of = { turn_id: 'turn_a', id: 'page-turn_a' }
const corrected = { ...of, thumb: 'down', correction: 'Paris.' }

it('a thumb is stored when it is pressed, and the words to it replace it', async () => {
  const { posted } = server()
  const { node, said } = opinion()
  said.press('up', consent('hint'))
  expect(said.thumb).toBe('up')
  expect(await said.say('up', ' short ', '')).toBe(true)
  expect(posted).toEqual([
    { ...of, thumb: 'up' },
    { ...of, thumb: 'up', comment: 'short' },
  ])
  // The other thumb keeps the words.
  said.press('down', consent('score'))
  await vi.waitFor(() => expect(said.busy).toBe(false))
  expect(posted.slice(2)).toEqual([{ ...of, thumb: 'down', comment: 'short' }])
  expect([node.feedback?.score, node.feedback?.comment]).toEqual([-1, 'short'])
})

it('a thumb down waits where a better answer would come too late, and is stored without one', async () => {
  const { posted } = server()
  const { said } = opinion()
  said.press('down', consent('imitated'))
  expect([said.thumb, said.held]).toEqual(['down', 'down'])
  await said.say('down', '', 'Paris.')
  expect(posted).toEqual([{ ...of, thumb: 'down', correction: 'Paris.' }])
  await said.release()
  expect(posted.length).toBe(1)

  const other = opinion().said
  other.press('down', consent('hint'))
  await other.release()
  expect(posted.slice(1)).toEqual([{ ...of, thumb: 'down' }])
})

it('a thumb is taken back: before it is sent nothing is, afterwards it says neither', async () => {
  const { posted } = server()
  const { said } = opinion()
  said.press('down', consent('hint'))
  expect(await said.takeBack()).toBe(true)
  await said.release()
  expect([said.thumb, posted]).toEqual([null, []])

  said.press('up', consent('hint'))
  expect(await said.takeBack()).toBe(true)
  expect(posted).toEqual([
    { ...of, thumb: 'up' },
    { ...of, score: 0 },
  ])
  await vi.waitFor(() => expect(said.busy).toBe(false))
  expect([said.thumb, said.told]).toEqual([null, 'Taken back: it counts as neither good nor bad.'])
})

it('a thumb that is refused is not shown as given', async () => {
  server(503)
  const { said } = opinion()
  said.press('up', consent('score'))
  await vi.waitFor(() => expect(said.busy).toBe(false))
  expect(said.thumb).toBe(null)
  expect(said.failure).not.toBe('')
})

it.each<[string, (said: Opinion) => unknown]>([
  ['closed', () => {}],
  ['left with the page', (said) => said.leave()],
  ['taken back', (said) => said.takeBack()],
  ['followed by the other', (said) => said.press('down', consent('score'))],
  ['pressed while the better answer is on its way', () => {}],
])('a thumb up that is %s keeps the better answer', async (how, then) => {
  const { posted } = server()
  const { node, said } = opinion()
  const stored = said.say('down', '', 'Paris.')
  if (!how.startsWith('pressed')) await stored
  said.press('up', consent('score'))
  expect([said.thumb, said.held, said.erases('up')]).toEqual(['up', 'up', true])
  await then(said)
  await said.release()
  expect(posted).toEqual([corrected])
  expect([said.thumb, node.feedback?.correction]).toEqual(['down', 'Paris.'])
})

it('a thumb up that is sent replaces the better answer', async () => {
  const { posted } = server()
  const { said } = opinion()
  await said.say('down', '', 'Paris.')
  said.press('up', consent('hint'))
  await said.say('up', 'fine after all', 'Paris.')
  await said.release()
  expect(posted).toEqual([corrected, { ...of, thumb: 'up', comment: 'fine after all' }])
  expect([said.thumb, said.held]).toEqual(['up', null])
})

it('a thumb whose words are not stored goes on waiting', async () => {
  const { posted } = server(503, 200)
  const { said } = opinion()
  said.press('down', consent('hint'))
  expect(await said.say('down', '', 'Paris.')).toBe(false)
  expect([said.thumb, said.held]).toEqual(['down', 'down'])
  await said.release()
  expect(posted.slice(1)).toEqual([{ ...of, thumb: 'down' }])
  expect([said.thumb, said.held]).toEqual(['down', null])
})

it.each([
  [503, [corrected, corrected]],
  [200, [corrected]],
])('whoever closes while words are sent that end with %d has said them', async (status, expected) => {
  const { posted } = server(status, 200)
  const { node, said } = opinion()
  said.press('down', consent('hint'))
  void said.say('down', '', 'Paris.')
  await said.release()
  expect(posted).toEqual(expected)
  expect([said.thumb, said.held, node.feedback?.correction]).toEqual(['down', null, 'Paris.'])
})

it.each<[string, (said: Opinion) => unknown, object]>([
  ['words', (said) => said.say('down', '', 'Paris.'), corrected],
  ['a thumb', (said) => said.press('down', consent('score')), { ...of, thumb: 'down' }],
  ['a thumb that waits', (said) => said.press('down', consent('hint')), { ...of, thumb: 'down' }],
  ['what is taken back', (said) => said.takeBack(), { ...of, score: 0 }],
])('when the page goes away %s behind what has no reply yet: stored at once', async (_, last, expected) => {
  const { posted, outliving } = server(0)
  const { said } = opinion()
  said.press('up', consent('hint'))
  await vi.waitFor(() => expect(posted.length).toBe(1))
  void last(said)
  said.leave()
  expect(posted).toEqual([{ ...of, thumb: 'up' }, expected])
  expect(outliving.at(-1)).toEqual(expected)
})

it('when the page goes away nothing is sent where nothing waits', async () => {
  const { posted } = server()
  const { said } = opinion()
  await said.say('up', '', '')
  said.leave()
  expect(posted.length).toBe(1)
})
