import { expect, it } from 'vitest'
import type { Version } from '../api/types'
import { undoOf } from './undo'

const row = (version: number, parent: number, digest: string | null, more: Partial<Version> = {}): Version => ({
  version,
  parent,
  digest,
  status: 'published',
  samples: 0,
  mean_score: null,
  scored_turns: 0,
  report: null,
  gate: null,
  published_ms: 0,
  ...more,
})
const back = { status: 'rollback' }
const made = { status: 'imported' }

it.each<[string, Version[], number | null]>([
  ['a version that continues another', [row(2, 1, 'b'), row(1, 0, 'a')], 1],
  ['the first one', [row(1, 0, 'a')], 0],
  ['back from v2 to v1', [row(3, 1, 'a', back), row(2, 1, 'b'), row(1, 0, 'a')], 2],
  ['back to base', [row(2, 0, null, back), row(1, 0, 'a')], 1],
  ['from base back to v1', [row(3, 1, 'a', back), row(2, 0, null, back), row(1, 0, 'a')], 0],
  ['back and forth', [row(4, 2, 'b', back), row(3, 1, 'a', back), row(2, 1, 'b'), row(1, 0, 'a')], 3],
  // What answered before cannot answer again, and what answered before that is no undoing.
  ['back from what was erased', [row(4, 2, 'b', back), row(3, 2, 'c', { tainted: true }), row(2, 1, 'b'), row(1, 0, 'a')], null],
  ['back from what was retired', [row(3, 1, 'a', back), row(2, 1, 'b', { retired: true }), row(1, 0, 'a')], null],
  ['one from elsewhere', [row(3, 0, 'c', made), row(2, 1, 'b'), row(1, 0, 'a')], 2],
  ['the first one, from elsewhere', [row(1, 0, 'a', made)], 0],
  ['the rows begin with it', [row(3, 1, 'a', back)], null],
])('%s', (_, rows, to) => {
  expect(undoOf(rows[0]?.version ?? 0, rows)).toBe(to)
})

it('a version that is not in the list is not undone', () => {
  expect(undoOf(9, [row(1, 0, 'a')])).toBeNull()
})
