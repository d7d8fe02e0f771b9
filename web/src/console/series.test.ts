import { expect, it } from 'vitest'
import { Series } from './series'

it('a name that comes later has holes before it, one that is missing has holes after it', () => {
  const series = new Series()
  series.push(1000, { a: 1 })
  series.push(2000, { b: 2 })
  expect(series.column('a')).toEqual([1, null])
  expect(series.column('b')).toEqual([null, 2])
  expect(series.column('c')).toEqual([null, null])
  expect([series.last('a'), series.lastKnown('a')]).toEqual([null, 1])
})

it('what comes again after a reconnect is not shown twice, and what was missed is filled in', () => {
  const series = new Series()
  series.push(1000, { a: 1 })
  series.push(2000, { a: 2 })
  const again = { a: [[1000, 1], [2000, 2], [3000, 3]] as [number, number | null][], b: [[3000, 4]] as [number, number | null][] }
  expect(series.merge(again)).toBe(1)
  expect(series.push(3000, { a: 9 })).toBe(false)
  expect([series.times, series.column('a'), series.column('b')]).toEqual([[1, 2, 3], [1, 2, 3], [null, null, 4]])
})

it('is bounded', () => {
  const series = new Series()
  for (let at = 1; at <= 6000; at++) series.push(at, { a: at })
  expect([series.times.length, series.column('a').length, series.column('a')[0]]).toEqual([5000, 5000, 1001])
})
