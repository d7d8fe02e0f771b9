/** Lists that are read again while they change. */

import { get } from '../api/client'
import type { List } from '../api/types'

/** Most rows of one answer. */
const PAGE_MAX = 200

/** The first so many rows as they are now, page after page. */
export async function firstRows<Row>(path: string, count: number): Promise<List<Row>> {
  let list: List<Row> = { object: 'list', data: [], next: null }
  do {
    const limit = Math.min(PAGE_MAX, count - list.data.length)
    const page = await get<List<Row>>(path, { limit, before: list.next })
    list = { ...page, data: list.data.concat(page.data) }
  } while (list.next && list.data.length < count)
  return list
}
