import { expect, it } from 'vitest'
import { lanes } from './lanes'

const sketch = (parents: Record<number, number>) =>
  lanes(
    Object.entries(parents)
      .map(([version, parent]) => ({ version: Number(version), parent }))
      .sort((a, b) => b.version - a.version),
  ).map((row) => `${row.version}@${row.lane} joins ${row.joins} passes ${row.passes}${row.goesOn ? '' : ' end'}`)

it('a chain is one lane', () => {
  expect(sketch({ 3: 2, 2: 1, 1: 0, 0: 0 })).toEqual(['3@0 joins  passes ', '2@0 joins 0 passes ', '1@0 joins 0 passes ', '0@0 joins 0 passes  end'])
})

it('lines of a part go on to what is still to come', () => {
  const part = [{ version: 9, parent: 8 }, { version: 8, parent: 3 }]
  expect(lanes(part).map((row) => row.goesOn)).toEqual([true, false])
  expect(lanes(part, false).map((row) => row.goesOn)).toEqual([true, true])
})

it('what goes on from an older version stands beside what it left', () => {
  // 4 continues 1; 3 and 2 were left.
  expect(sketch({ 4: 1, 3: 2, 2: 1, 1: 0, 0: 0 })).toEqual([
    '4@0 joins  passes ',
    '3@1 joins  passes 0',
    '2@1 joins 1 passes 0',
    '1@0 joins 0,1 passes ',
    '0@0 joins 0 passes  end',
  ])
})
