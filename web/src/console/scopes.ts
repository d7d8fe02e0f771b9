/** The scopes there are, page by page. */

import { get } from '../api/client'
import type { List, ScopeRow } from '../api/types'

const PAGE = 1_000
/** More are no list that anybody picks from. */
export const SCOPES_MAX = 10_000

/** Whose a scope is: the owner, and the user where the owner named one. */
export const nameOf = (owner: string, user: string | null) => (user === null ? owner : `${owner} / ${user}`)

/** The user that a scope's text ends with, `5:local/ann` say; none where it is the owner's own. */
export function userOf(scope: string, owner: string): string | null {
  const name = scope.slice(scope.indexOf(':') + 1)
  return name.startsWith(`${owner}/`) ? name.slice(owner.length + 1) : null
}

/** All of them, newest first, or the newest. */
export async function everyScope(): Promise<{ rows: ScopeRow[]; isWhole: boolean }> {
  const rows: ScopeRow[] = []
  let before: string | null = null
  do {
    const page: List<ScopeRow> = await get('/admin/v1/scopes', { limit: PAGE, before })
    rows.push(...page.data)
    before = page.next ?? null
  } while (before !== null && rows.length < SCOPES_MAX)
  return { rows, isWhole: before === null }
}
