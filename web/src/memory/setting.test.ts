import { beforeEach, expect, it, vi } from 'vitest'
import { account } from '../account/account.svelte'
import type { Me, MemoryMode } from '../api/types'
import { effective, isOn, setting, standing, type Choice } from './setting.svelte'

const as = (name: string | null) => (account.me = name === null ? null : ({ name } as Me))

let kept: Map<string, string>
beforeEach(() => {
  kept = new Map()
  vi.stubGlobal('localStorage', {
    getItem: (name: string) => kept.get(name) ?? null,
    setItem: (name: string, value: string) => kept.set(name, value),
    removeItem: (name: string) => kept.delete(name),
  })
})

it.each<[mode: MemoryMode, most: MemoryMode, choice: Choice, now: MemoryMode, on: boolean]>([
  ['off', 'full', null, 'off', false],
  ['off', 'full', 'full', 'full', true],
  ['full', 'full', null, 'full', true],
  ['full', 'full', 'off', 'off', false],
  ['read', 'full', null, 'read', false],
  ['read', 'full', 'full', 'full', true],
  ['off', 'read', 'full', 'read', true],
  ['off', 'read', null, 'off', false],
  ['off', 'off', 'full', 'off', false],
])('where the server says %s and allows %s, and one chose %s, it is %s', (mode, mode_max, choice, now, on) => {
  expect([effective({ mode, mode_max }, choice), isOn({ mode, mode_max }, choice)]).toEqual([now, on])
})

it.each<[mode: MemoryMode, most: MemoryMode, choice: Choice, consent: 'off' | 'serve' | 'full', words: RegExp]>([
  ['off', 'off', 'full', 'off', /while learning is off.* Choose “Learn from me”/],
  ['off', 'off', 'full', 'full', /Several people share/],
  ['off', 'full', null, 'full', /^Off: .* add nothing/],
  ['off', 'full', 'full', 'full', /^On: /],
  ['full', 'full', null, 'full', /^On: /],
  ['read', 'read', null, 'serve', /adds nothing to it: choose “Learn from me”/],
  ['read', 'full', null, 'full', /unless you switch this on/],
])('%s, at most %s, chosen %s, consent %s: it says how it stands', (mode, mode_max, choice, consent, words) => {
  expect(standing({ mode, mode_max }, choice, consent)).toMatch(words)
})

it('a choice is kept for who made it, and sent only then', () => {
  as('ann')
  expect(setting.wish).toBeUndefined()
  setting.set('full')
  expect([setting.wish, kept.get('hone.memory.ann')]).toEqual([{ memory: 'full' }, 'full'])
  as('ben')
  expect(setting.wish).toBeUndefined()
  // What an earlier visit kept.
  kept.set('hone.memory.ben', 'off')
  expect(setting.wish).toEqual({ memory: 'off' })
  kept.set('hone.memory.ben', 'maybe')
  expect(setting.wish).toBeUndefined()
  as(null)
  setting.set('full')
  expect([setting.choice, kept.size]).toEqual([null, 2])
})

it('where the browser keeps nothing a choice lasts as long as the page', () => {
  const refuse = () => {
    throw new Error('blocked or full')
  }
  vi.stubGlobal('localStorage', { getItem: refuse, setItem: refuse, removeItem: refuse })
  as('cem')
  setting.set('off')
  expect(setting.wish).toEqual({ memory: 'off' })
})

it('an older answer does not undo a newer one', async () => {
  const answers: ((mode: string) => void)[] = []
  vi.stubGlobal('fetch', () => new Promise<Response>((give) => answers.push((mode) => give(Response.json({ data: [], mode, mode_max: 'full' })))))
  const asked = [setting.look(), setting.look()]
  answers[1]?.('read')
  await asked[1]
  answers[0]?.('off')
  await asked[0]
  expect(setting.modes).toEqual({ mode: 'read', mode_max: 'full' })
})
