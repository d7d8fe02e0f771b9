import { afterEach, expect, it, vi } from 'vitest'
import { TurnList } from './turnlist.svelte'

afterEach(() => vi.unstubAllGlobals())

function serve(...ids: string[]) {
  vi.stubGlobal('fetch', async () => Response.json({ object: 'list', data: ids.map((id) => ({ id })), next: null }))
}

it('a look says whether it found out what is new', async () => {
  const turns = new TurnList()
  serve('a')
  expect(await turns.look()).toBe(false)
  await turns.reload({})
  serve('b', 'a')
  expect(await turns.look()).toBe(true)
  expect(turns.fresh.map((row) => row.id)).toEqual(['b'])
  vi.stubGlobal('fetch', async () => Response.json({}, { status: 503 }))
  expect(await turns.look()).toBe(false)
  expect(turns.fresh.map((row) => row.id)).toEqual(['b'])
})

it('a look under other filters found out nothing', async () => {
  const turns = new TurnList()
  serve('a')
  await turns.reload({ owner: 'ann' })
  const looked = turns.look()
  await turns.reload({ owner: 'ben' })
  expect(await looked).toBe(false)
})
