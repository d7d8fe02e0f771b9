/** Trying an answer again from a place in it. */

import { call } from '../api/client'
import type { Branches, Me } from '../api/types'

export type Version = 'as-served' | 'latest'

export interface BranchWish {
  turn_id: string
  position: number
  n: number
  version: Version
}

/** Where it is asked for: under one's own turns, or under anybody's; null where the caller may not. */
export function placeOf(me: Pick<Me, 'name' | 'role'> | null, owner: string): string | null {
  if (me?.name === owner) return '/v1/branches'
  return me?.role === 'admin' ? '/admin/v1/branches' : null
}

export const branch = (place: string, wish: BranchWish) => call<Branches>('POST', place, { body: wish })

/** What is said of the log-probs of the tokens that stay. */
export function exactness(told: Pick<Branches, 'prefix' | 'version'>): string {
  switch (told.prefix.logprobs_equal) {
    case true:
      return 'The log-probs of the tokens that stay are those recorded, bit for bit.'
    case false:
      return told.version === 'latest'
        ? 'The version that is served now gives the tokens that stay other log-probs.'
        : 'The log-probs of the tokens that stay are not those recorded: the arithmetic of this machine is another one.'
    default:
      return ''
  }
}
