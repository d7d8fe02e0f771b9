import { describe, expect, it } from 'vitest'
import type { Episode, Queue, Rollout, Task } from '../api/types'
import { canBeTried, outcomeOf, progressOf, reasonOf, sizeOf } from './words'

describe('how far a rollout is', () => {
  it.each<[string, Rollout['episodes'], ended: number, running: number, waiting: number]>([
    ['nothing has begun', {}, 0, 0, 0],
    ['some have ended', { done: 3, failed: 1, running: 2, queued: 2 }, 4, 2, 2],
    ['what was tried again counts once', { done: 1, retried: 5, queued: 1 }, 1, 0, 1],
    ['all that is over has ended', { done: 4, skipped: 1, failed: 1, cancelled: 2 }, 8, 0, 0],
  ])('%s', (_, episodes, ended, running, waiting) => {
    expect(progressOf({ episodes, groups: 2, attempts: 4 })).toEqual({ ended, all: 8, running, waiting })
  })
})

it.each<[Episode['state'], number | null, string]>([
  ['done', 1, 'passed'],
  ['done', 0.5, 'passed in part'],
  ['done', 0, 'not passed'],
  ['failed', null, 'without a reward'],
  ['queued', null, 'waiting'],
  ['retried', null, 'tried again'],
])('an attempt that is %s with reward %s is %s', (state, reward, words) => {
  expect(outcomeOf({ state, reward }).words).toBe(words)
})

it.each<[string | null, Queue['kind'], string]>([
  [null, 'episode', ''],
  ['cancelled', 'episode', ''],
  ['submitted', 'episode', 'the agent said that it is done'],
  ['submitted', 'check', ''],
  ['no_signal', 'credit', 'all attempts had the same reward'],
  ['something_new', 'check', 'something new'],
])('the reason %s of a job %s is said as "%s"', (reason, kind, words) => {
  expect(reasonOf(reason, kind)).toBe(words)
})

it.each<[Task['state'], heldOut: boolean, evaluate: boolean, can: boolean]>([
  ['ready', false, false, true],
  ['new', false, false, true],
  ['refused', false, false, false],
  ['quarantined', true, true, false],
  ['ready', true, false, false],
  ['ready', true, true, true],
])('a task that is %s, held out %s, measured %s: %s', (state, held_out, evaluate, can) => {
  expect(canBeTried({ state, held_out }, evaluate)).toBe(can)
})

it.each<[number, number, string]>([
  [1, 1, '1 attempt'],
  [1, 4, '4 attempts at one task'],
  [3, 1, '3 attempts'],
  [3, 4, '3 groups of 4 attempts'],
])('%s groups of %s: %s', (groups, attempts, words) => {
  expect(sizeOf(groups, attempts)).toBe(words)
})
