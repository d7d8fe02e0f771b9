import { afterEach, expect, it, vi } from 'vitest'
import type { Fate } from '../api/types'
import { TurnNode } from './conversation.svelte'
import { followFates, refreshFate } from './fates'

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

function stopped(completion: string, reasoning = ''): TurnNode {
  const node = new TurnNode('a', null, [{ role: 'user', content: 'hello' }], 0)
  return Object.assign(node, { turnId: 'turn_a', state: 'stopped', completion, reasoning })
}

const fate: Fate = { state: 'settled', stage: null, version: null, reason: 'cancelled', explanation: 'it was stopped' }

it.each([
  // While it thought, nothing was said yet.
  ['', 'The user gre', '<think>The user greets', '', 'The user greets', ['', 'The user greets']],
  ['Hel', 'A greeting.', '<think>A greeting.</think>Hello', 'Hello', 'A greeting.', ['Hello', 'A greeting.']],
  ['Hel', '', 'Hello', 'Hello', '', ['Hello', '']],
  ['Hel', '', 'Other words', 'Other words', null, ['Hel', '']],
  ['Hel', 'Hm', '<call>', null, null, ['Hel', 'Hm']],
])('what was said until the stop: %j %j', async (completion, thoughts, raw, content, reasoning, shown) => {
  vi.stubGlobal('fetch', async () => Response.json({ completion: raw, content, reasoning, fate, feedback: [] }))
  const node = stopped(completion, thoughts)
  await refreshFate(node)
  expect([node.completion, node.reasoning]).toEqual(shown)
  expect(node.isKept).toBe(true)
})

it('what ended early and is not found after a few looks is not kept, and not looked for any more', async () => {
  vi.useFakeTimers()
  vi.stubGlobal('document', { hidden: false })
  const fetch = vi.fn(async () => Response.json({ error: { message: 'no such turn' } }, { status: 404 }))
  vi.stubGlobal('fetch', fetch)
  const node = stopped('Hel')
  expect(node.isKept).toBeNull()
  const stop = followFates(() => [node])
  await vi.advanceTimersByTimeAsync(60_000)
  stop()
  expect(node.isKept).toBe(false)
  expect(fetch).toHaveBeenCalledTimes(3)
})

it('a server that does not answer is no proof that a turn is not kept', async () => {
  vi.stubGlobal('fetch', async () => new Response('{}', { status: 503 }))
  const node = stopped('Hel')
  for (let look = 0; look < 9; look += 1) await refreshFate(node)
  expect(node.isKept).toBeNull()
})

it('of a chat that was loaded each turn is asked once which memories it was shown', async () => {
  vi.useFakeTimers()
  vi.stubGlobal('document', { hidden: false })
  const fetch = vi.fn(async (path: string) =>
    path.endsWith('gone') ? Response.json({}, { status: 404 }) : Response.json({ fate, feedback: [], memories: ['mem_1'] }),
  )
  vi.stubGlobal('fetch', fetch)
  const nodes = ['turn_a', 'turn_b', 'gone'].map((turnId) => {
    const node = new TurnNode(turnId, null, [], 0)
    return Object.assign(node, { turnId, state: 'done', fate })
  })
  const stop = followFates(() => nodes)
  await vi.advanceTimersByTimeAsync(60_000)
  stop()
  expect(nodes.map((node) => node.memories)).toEqual([['mem_1'], ['mem_1'], []])
  expect(fetch).toHaveBeenCalledTimes(3)
})
