import { expect, it } from 'vitest'
import { EDGE, heightOf, marksOf, named } from './plot'

const row = (version: number, rate = 0.5): { version: number; rate: number; interval: [number, number] } => ({
  version,
  rate,
  interval: [rate / 2, (1 + rate) / 2],
})

it('a single version stands in the middle', () => {
  const [mark] = marksOf([row(7)], 400, 200)
  expect(mark?.x).toBe((EDGE.left + 400 - EDGE.right) / 2)
})

it('versions stand as far apart as their numbers, within the plot', () => {
  const [a, b, c] = marksOf([row(0), row(1), row(4)], 400, 200).map(({ x }) => x) as [number, number, number]
  expect((c - a) / (b - a)).toBeCloseTo(4)
  expect(a).toBeGreaterThan(EDGE.left)
  expect(c).toBeLessThan(400 - EDGE.right)
})

it('a rate lies within its interval, higher shares higher up', () => {
  const [mark] = marksOf([row(1, 0.25)], 400, 200)
  expect(mark && mark.top < mark.y && mark.y < mark.bottom).toBe(true)
  expect([heightOf(1, 200), heightOf(0, 200)]).toEqual([EDGE.top, 200 - EDGE.bottom])
})

it('names that would touch are left out, the newest never', () => {
  const versions = Array.from({ length: 100 }, (_, version) => row(version))
  const shown = named(marksOf(versions, 400, 200))
  expect(shown.at(-1)?.version).toBe(99)
  expect(shown.length).toBeLessThan(10)
  expect(shown.every((mark, at) => at === 0 || mark.x - (shown[at - 1]?.x ?? 0) >= 44)).toBe(true)
})
