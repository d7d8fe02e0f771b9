import { expect, it } from 'vitest'
import { zoom } from './zoom.svelte'

const some = (axis: string) => ({ axis, min: 40, max: 60 })

it('a part of one scope’s versions is not looked at in another', () => {
  zoom.enter('ann')
  zoom.range = some('version')
  // Between two scopes the address may name none.
  zoom.enter(null)
  zoom.enter('ann')
  expect(zoom.of('version')).toEqual(some('version'))
  zoom.enter('ben')
  expect(zoom.of('version')).toBeNull()
})

it('a time is the same in every scope', () => {
  zoom.enter('ann')
  zoom.range = some('time')
  zoom.enter('ben')
  expect(zoom.of('time')).toEqual(some('time'))
})
