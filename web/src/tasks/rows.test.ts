import { expect, it, vi } from 'vitest'
import { firstRows } from './rows'

/** A server with so many rows, which gives at most 200 at a time. */
function serve(count: number) {
  const asked: string[] = []
  vi.stubGlobal('fetch', async (path: string) => {
    asked.push(path)
    const query = new URLSearchParams(path.split('?')[1])
    const from = Number(query.get('before') ?? 0)
    const upTo = Math.min(count, from + Math.min(200, Number(query.get('limit'))))
    const data = Array.from({ length: upTo - from }, (_, at) => from + at)
    return Response.json({ object: 'list', data, next: upTo < count ? String(upTo) : null })
  })
  return asked
}

it.each<[string, count: number, wanted: number, rows: number, next: string | null, asks: number]>([
  ['nothing', 0, 50, 0, null, 1],
  ['fewer than wanted', 20, 50, 20, null, 1],
  ['more than wanted', 80, 50, 50, '50', 1],
  ['more than one answer holds', 500, 450, 450, '450', 3],
])('%s', async (_, count, wanted, rows, next, asks) => {
  const asked = serve(count)
  const list = await firstRows<number>('/v1/rollouts', wanted)
  expect(list.data).toEqual(Array.from({ length: rows }, (_, at) => at))
  expect([list.next, asked.length]).toEqual([next, asks])
})
