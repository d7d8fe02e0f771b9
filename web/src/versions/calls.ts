/** Versions of one's own policy, or (for admins) of any scope: the same calls in two places. */

import { call, get } from '../api/client'
import type { Comparison, Message, VersionDetail, VersionList } from '../api/types'

/** The scope as `/admin/v1/scopes` names it; absent for one's own. */
export interface Whose {
  scope?: string
}

const place = (whose: Whose) => (whose.scope === undefined ? '/v1/versions' : '/admin/v1/versions')

/** The newest versions, or those before one. */
export const listVersions = (whose: Whose, page: { limit?: number; before?: number | null } = {}) =>
  get<VersionList>(place(whose), { scope: whose.scope, limit: page.limit ?? 100, before: page.before })

export const showVersion = (whose: Whose, version: number) =>
  get<VersionDetail>(`${place(whose)}/${version}`, { scope: whose.scope })

export const rollBack = (whose: Whose, version: number, note?: string) =>
  call<{ version: number }>('POST', `${place(whose)}/${version}/rollback`, { body: { ...whose, note } })

export const pin = (whose: Whose, version: number, pinned: boolean) =>
  call<void>(pinned ? 'POST' : 'DELETE', `${place(whose)}/${version}/pin`, { body: { ...whose } })

/** Lets a version answer a share of the sessions. */
export const tryOut = (whose: Whose, version: number, share: number) =>
  call<void>('POST', `${place(whose)}/${version}/canary`, { body: { ...whose, share } })

/** Lets a version answer every session. */
export const promote = (whose: Whose, version: number) =>
  call<void>('POST', `${place(whose)}/${version}/promote`, { body: { ...whose } })

/** Takes a version out of service, or back in. */
export const retire = (whose: Whose, version: number, retired: boolean) =>
  call<void>(retired ? 'POST' : 'DELETE', `${place(whose)}/${version}/retire`, { body: { ...whose } })

export interface CompareWish {
  a: number
  b: number
  prompts?: Message[][]
  recent?: number
  max_tokens?: number
  seed?: number
}

export const compare = (whose: Whose, wish: CompareWish, signal: AbortSignal) =>
  call<Comparison>('POST', `${place(whose)}/compare`, { body: { ...whose, ...wish }, signal })
