import { expect, test } from 'vitest'
import type { Limits } from '../api/types'
import { keeperName, parsed, told } from './limits'

test('limits are told in words, and 0 is none', () => {
  expect(told(undefined)).toBe('as configured')
  expect(told({} as Limits)).toBe('as configured')
  expect(told({ requests_per_minute: 60, streams_max: 0 } as Limits)).toBe('60 requests a minute, no limit of answers at once')
})

test('an empty field says nothing', () => {
  expect(parsed({ requests_per_minute: '', tokens_per_day: ' 12 ', streams_max: '0' })).toEqual({ tokens_per_day: 12, streams_max: 0 })
})

test('an agent is somebody’s or a team’s', () => {
  expect(keeperName({ owner: 'ann', team: null })).toBe('ann')
  expect(keeperName({ owner: null, team: 'desk' })).toBe('the team desk')
})
