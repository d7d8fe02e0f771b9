import { afterEach, expect, it, vi } from 'vitest'
import { VersionPages } from './list.svelte'

afterEach(() => vi.unstubAllGlobals())

it('what holds one scope is not shown of another', async () => {
  const pages = new VersionPages()
  const standing = { pinned: true, tripped: null }
  vi.stubGlobal('fetch', async () => Response.json({ object: 'list', data: [{ version: 1 }], next: null, current: 1, standing, trial: { version: 1 } }))
  await pages.load({ scope: 'ann' })
  expect([pages.standing?.pinned, pages.trial?.version]).toEqual([true, 1])
  vi.stubGlobal('fetch', async () => Response.json({}, { status: 500 }))
  await pages.load({ scope: 'ben' })
  expect([pages.loaded, pages.standing, pages.trial]).toEqual([false, null, null])
})
