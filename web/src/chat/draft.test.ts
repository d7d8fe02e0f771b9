import { beforeEach, expect, it, vi } from 'vitest'
import { draftOf, keepDraft } from './draft'

beforeEach(() => {
  const kept = new Map<string, string>()
  vi.stubGlobal('sessionStorage', {
    getItem: (name: string) => kept.get(name) ?? null,
    setItem: (name: string, value: string) => kept.set(name, value),
    removeItem: (name: string) => kept.delete(name),
  })
})

it('a draft is there again for who wrote it, and for nobody else', () => {
  expect(draftOf('ann')).toBe('')
  keepDraft('ann', 'not sent')
  expect(draftOf('ben')).toBe('')
  expect(draftOf('ann')).toBe('not sent')
})

it('what was sent is no draft', () => {
  keepDraft('ann', 'not sent')
  keepDraft('ann', '')
  expect(draftOf('ann')).toBe('')
})

it('where the browser keeps nothing there is no draft, and nothing fails', () => {
  const refuse = () => {
    throw new Error('blocked or full')
  }
  vi.stubGlobal('sessionStorage', { getItem: refuse, setItem: refuse, removeItem: refuse })
  keepDraft('ann', 'not sent')
  keepDraft('ann', '')
  expect(draftOf('ann')).toBe('')
})
