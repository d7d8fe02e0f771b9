import { expect, it } from 'vitest'
import { exactness, placeOf } from './branches'

it.each([
  [{ name: 'ann', role: 'user' as const }, '/v1/branches'],
  [{ name: 'root', role: 'admin' as const }, '/admin/v1/branches'],
  [{ name: 'eve', role: 'auditor' as const }, null],
  [null, null],
])('who asks decides where: %o', (me, place) => {
  expect(placeOf(me, 'ann')).toBe(place)
})

it('says equal only of what was compared', () => {
  const told = (logprobs_equal: boolean | null, version = 'as-served') => ({
    version,
    prefix: { text: '', tokens: 0, logprobs: [], recorded: null, logprobs_equal },
  })
  expect(exactness(told(true))).toContain('bit for bit')
  expect(exactness(told(false))).toContain('arithmetic')
  expect(exactness(told(false, 'latest'))).toContain('served now')
  expect(exactness(told(null))).toBe('')
})
