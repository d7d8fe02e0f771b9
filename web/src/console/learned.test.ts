import { afterEach, expect, it, vi } from 'vitest'
import { VersionMeasures } from './learned.svelte'

afterEach(() => vi.unstubAllGlobals())

const numbers = (...versions: number[]) => Response.json({ versions, step: 1, data: { loss: versions } })

it('what was measured of one scope is not shown of another, whatever becomes of the ask', async () => {
  const measures = new VersionMeasures()
  vi.stubGlobal('fetch', async () => numbers(1, 2))
  await measures.load('ann', null)
  expect(measures.versions).toEqual([1, 2])
  vi.stubGlobal('fetch', async () => Response.json({}, { status: 500 }))
  const asked = measures.load('ben', null)
  expect([measures.found, measures.column('loss')]).toEqual([null, []])
  await asked
  expect([measures.found, measures.failure]).toEqual([null, 'The server answered with status 500.'])
})

it('of the same scope it stays while it is read anew', async () => {
  const measures = new VersionMeasures()
  vi.stubGlobal('fetch', async () => numbers(1, 2))
  await measures.load('ann', null)
  const asked = measures.load('ann', { min: 1, max: 2 })
  expect(measures.versions).toEqual([1, 2])
  await asked
})
