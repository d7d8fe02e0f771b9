import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { newest, repeat } from './repeat'

const page = { hidden: false }

beforeEach(() => {
  vi.useFakeTimers()
  vi.stubGlobal('document', page)
  page.hidden = false
})

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

it('a round begins only after the one before has ended', async () => {
  const ends: (() => void)[] = []
  const stop = repeat(() => new Promise<void>((end) => ends.push(end)), 100)
  expect(ends.length).toBe(1)
  await vi.advanceTimersByTimeAsync(1_000)
  expect(ends.length).toBe(1)
  ends[0]?.()
  await vi.advanceTimersByTimeAsync(99)
  expect(ends.length).toBe(1)
  await vi.advanceTimersByTimeAsync(1)
  expect(ends.length).toBe(2)
  stop()
  ends[1]?.()
  await vi.advanceTimersByTimeAsync(1_000)
  expect(ends.length).toBe(2)
})

it('a hidden page does nothing, and goes on when it is seen again', async () => {
  const round = vi.fn(async () => {})
  const stop = repeat(round, 100)
  page.hidden = true
  await vi.advanceTimersByTimeAsync(500)
  expect(round).toHaveBeenCalledTimes(1)
  page.hidden = false
  await vi.advanceTimersByTimeAsync(100)
  expect(round).toHaveBeenCalledTimes(2)
  stop()
})

it('of several asks only the last is the newest', () => {
  const ask = newest()
  const [first, second] = [ask(), ask()]
  expect([first(), second()]).toEqual([false, true])
})
