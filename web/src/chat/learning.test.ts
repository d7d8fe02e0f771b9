import { afterEach, expect, it, vi } from 'vitest'
import type { Fate } from '../api/types'
import { TurnNode } from './conversation.svelte'
import { LearningWatch } from './learning.svelte'

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

function answered(stage: Fate['stage']): TurnNode {
  const fate: Fate = { state: 'pending', stage, version: null, reason: null, explanation: 'it waits' }
  return Object.assign(new TurnNode('a', null, [{ role: 'user', content: 'hello' }], 0), { turnId: 'turn_a', fate })
}

it('is asked for only while an answer waits to be learned from', async () => {
  vi.useFakeTimers()
  vi.stubGlobal('document', { hidden: false })
  const said = { sentence: 'Learning from 3 answers: 40 %, about 30 s left.' }
  const fetch = vi.fn(async () => Response.json({ object: 'learning', under_way: said }))
  vi.stubGlobal('fetch', fetch)
  const path = [answered('awaiting_next_state')]
  const watch = new LearningWatch()
  const stop = watch.follow(() => path)
  await vi.advanceTimersByTimeAsync(20_000)
  expect([fetch.mock.calls.length, watch.sentence]).toEqual([0, ''])
  path.push(answered('awaiting_training'))
  await vi.advanceTimersByTimeAsync(2_000)
  expect(watch.sentence).toBe(said.sentence)
  fetch.mockImplementation(async () => Response.json({ object: 'learning', under_way: null }))
  await vi.advanceTimersByTimeAsync(2_000)
  expect(watch.sentence).toBe('')
  stop()
})

it('a server that does not know it is no trouble', async () => {
  vi.stubGlobal('fetch', async () => Response.json({ error: { message: 'unknown path' } }, { status: 404 }))
  const watch = new LearningWatch()
  watch.sentence = 'Learning from an answer: 10 %.'
  await watch.refresh()
  expect(watch.sentence).toBe('')
})
