import { expect, it } from 'vitest'
import type { List } from '../api/types'
import { withNewest } from './pages'

type Row = { id: string; left: number }

const list = (next: string | null, ...rows: [id: string, left: number][]): List<Row> => ({
  object: 'list',
  data: rows.map(([id, left]) => ({ id, left })),
  next,
})

it.each<[string, List<Row> | null, List<Row>, List<Row>]>([
  ['the first page', null, list('b', ['c', 1], ['b', 2]), list('b', ['c', 1], ['b', 2])],
  ['older rows stay, newer ones are as they are now', list('a', ['c', 9], ['b', 9], ['a', 0]), list('b', ['c', 1], ['b', 2]), list('a', ['c', 1], ['b', 2], ['a', 0])],
  ['all rows were read', list(null, ['c', 9], ['b', 0]), list('c', ['c', 1]), list(null, ['c', 1], ['b', 0])],
  ['a new row', list(null, ['b', 9]), list(null, ['c', 5], ['b', 1]), list(null, ['c', 5], ['b', 1])],
])('%s', (_, known, page, found) => {
  expect(withNewest(known, page)).toEqual(found)
})
