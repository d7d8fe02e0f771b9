import { afterEach, expect, it, vi } from 'vitest'
import { everyScope, nameOf, SCOPES_MAX, userOf } from './scopes'

afterEach(() => vi.unstubAllGlobals())

/** A server with so many scopes; how often it was asked. */
function serve(count: number) {
  const asked = vi.fn()
  vi.stubGlobal('fetch', async (path: string) => {
    asked()
    const query = new URL(path, 'http://hone').searchParams
    const [limit, newest] = [Number(query.get('limit')), Number(query.get('before') ?? count + 1) - 1]
    const numbers = Array.from({ length: Math.min(limit, newest) }, (_, at) => newest - at)
    const next = numbers.length === limit ? numbers.at(-1) : null
    return Response.json({ object: 'list', data: numbers.map((number) => ({ scope: `s${number}` })), next })
  })
  return asked
}

it.each([
  [0, 1],
  [201, 1],
  [1_000, 2],
  [2_500, 3],
])('all of %i scopes are read, by %i asks', async (count, asks) => {
  const asked = serve(count)
  const { rows, isWhole } = await everyScope()
  expect([rows.length, new Set(rows.map((row) => row.scope)).size, isWhole]).toEqual([count, count, true])
  expect(asked).toHaveBeenCalledTimes(asks)
})

it.each([
  ['5:local', 'local', 'local'],
  ['5:local/u0', 'local', 'local / u0'],
  ['5:local/a/b', 'local', 'local / a/b'],
  ['3:a:b/c:d', 'a:b', 'a:b / c:d'],
  // Not the user x of somebody called ann.
  ['5:ann/x', 'ann/x', 'ann/x'],
  ['6:müß/u', 'müß', 'müß / u'],
])('the scope %j of %s is called %j', (scope, owner, name) => {
  expect(nameOf(owner, userOf(scope, owner))).toBe(name)
})

it('of very many the newest are read, and it says so', async () => {
  serve(2 * SCOPES_MAX)
  const { rows, isWhole } = await everyScope()
  expect([rows.length, rows[0]?.scope, isWhole]).toEqual([SCOPES_MAX, `s${2 * SCOPES_MAX}`, false])
})
