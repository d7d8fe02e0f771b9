/** The scopes there are, page by page. */

import { get } from '../api/client'
import type { List, ScopeRow } from '../api/types'

const PAGE = 1_000
/** More are no list that anybody picks from. */
export const SCOPES_MAX = 10_000

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
