import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { REASONS } from './reasons'

/** Turns that are left out for these are not kept at all, so no list has them. */
const NOT_KEPT = ['no_collector', 'store_false']

it('the reasons are those that the server takes', () => {
  const source = readFileSync(new URL('../../../loops/domain/src/fate.rs', import.meta.url), 'utf8')
  const named = [...source.matchAll(/^    \w+ = "(\w+)", "/gm)].map((match) => match[1]!)
  expect(named).toContain('abstained')
  expect(REASONS).toEqual(named.filter((name) => !NOT_KEPT.includes(name)).sort())
})
