/** Lists that are loaded page by page while they change. */

import type { List } from '../api/types'

/** What is known, with the rows of the newest page as they are now; older rows stay. */
export function withNewest<Row extends { id: string }>(known: List<Row> | null, page: List<Row>): List<Row> {
  const fresh = new Set(page.data.map((row) => row.id))
  const older = known?.data.filter((row) => !fresh.has(row.id)) ?? []
  if (older.length === 0) return page
  return { ...page, data: [...page.data, ...older], next: known?.next }
}
