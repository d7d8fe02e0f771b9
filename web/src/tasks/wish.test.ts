import { expect, it } from 'vitest'
import type { RolloutWish } from '../api/types'
import { attemptsFor, choice, wishOf, type Choice } from './wish'

const USUAL = { attempts: 4, tokens_max: 1024, temperature: 1 }

it.each<[string, Partial<Choice>, Omit<RolloutWish, 'task_set'>]>([
  ['what nobody changed is usual', {}, { agent: 'bash', evaluate: false, steps_max: 20, ...USUAL }],
  ['a version is only for measuring', { version: 2 }, { agent: 'bash', evaluate: false, steps_max: 20, ...USUAL }],
  ['the base model is a version', { evaluate: true, version: 0 }, { agent: 'bash', evaluate: true, version: 0, steps_max: 20, ...USUAL }],
  ['who answers once has no steps', { agent: 'answer', attempts: 2 }, { agent: 'answer', evaluate: false, ...USUAL, attempts: 2 }],
  ['a program has a command', { agent: 'command', command: 'my-agent' }, { agent: 'command', command: 'my-agent', evaluate: false, steps_max: 20, ...USUAL }],
  ['another agent has none', { command: 'my-agent' }, { agent: 'bash', evaluate: false, steps_max: 20, ...USUAL }],
  ['empty fields are left out', { steps: null, tokens: null, attempts: null, temperature: null, groups: 3 }, { agent: 'bash', evaluate: false, groups: 3 }],
])('%s', (_, chosen, wish) => {
  expect(wishOf('set_1', { ...choice(), ...chosen })).toEqual({ task_set: 'set_1', ...wish })
})

it.each<[number | null, evaluate: boolean, number | null]>([
  [4, true, 1],
  [1, false, 4],
  [8, true, 8],
  [null, true, null],
])('%s attempts, where one turns to measuring %s, are %s', (attempts, evaluate, then) => {
  expect(attemptsFor(attempts, evaluate)).toBe(then)
})
