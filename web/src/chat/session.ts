/** A whole session: the server hands out its turns in pages, newest first. */

import { get } from '../api/client'
import type { SessionView } from '../api/types'

/** Pages read at most; a longer session shows its newest turns. */
const PAGES_MAX = 50

export async function loadSession(id: string, signal?: AbortSignal): Promise<SessionView> {
  const path = `/v1/sessions/${encodeURIComponent(id)}`
  const view = await get<SessionView>(path, { limit: 200 }, signal)
  let next = view.next ?? null
  for (let page = 1; next !== null && page < PAGES_MAX; page++) {
    const older: SessionView = await get<SessionView>(path, { limit: 200, before: next }, signal)
    view.turns.unshift(...older.turns)
    next = older.next ?? null
  }
  return view
}
