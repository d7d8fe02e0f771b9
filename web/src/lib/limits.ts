/** Limits and keepers in words. */

import type { Keeper, Limits } from '../api/types'
import { number } from './format'

/** Each limit with its words. */
export const LIMITS: [keyof Limits, string][] = [
  ['requests_per_minute', 'requests a minute'],
  ['tokens_per_minute', 'tokens a minute'],
  ['tokens_per_day', 'tokens a day'],
  ['streams_max', 'answers at once'],
]

/** What is limited, in words. */
export function told(limits: Limits | undefined): string {
  const set = LIMITS.filter(([limit]) => limits?.[limit] != null)
  return set.map(([limit, words]) => (limits?.[limit] === 0 ? `no limit of ${words}` : `${number(limits?.[limit] ?? 0)} ${words}`)).join(', ') || 'as configured'
}

/** What a form's fields say; an empty one says nothing. */
export function parsed(draft: Record<string, string>): Limits {
  const set = LIMITS.filter(([limit]) => (draft[limit] ?? '').trim() !== '')
  return Object.fromEntries(set.map(([limit]) => [limit, Number(draft[limit])])) as Limits
}

/** Whose agent it is. */
export const keeperName = (keeper: Keeper) => keeper.owner ?? `the team ${keeper.team}`
