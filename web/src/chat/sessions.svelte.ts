/** The list of one's own conversations, newest first, loaded page by page. */

import { explain, get } from '../api/client'
import type { List, SessionRow } from '../api/types'

const PAGE = 100

class Sessions {
  rows = $state<SessionRow[]>([])
  search = $state('')
  failure = $state('')
  loaded = $state(false)
  private next: string | null = null
  private busy: AbortController | null = null

  /** From the top, with the words now searched for; further pages stay if they are `kept`. */
  async refresh(kept: 'kept' | 'dropped' = 'dropped') {
    this.busy?.abort()
    const abort = new AbortController()
    this.busy = abort
    try {
      const page = await this.page(null, abort.signal)
      const fresh = new Set(page.data.map((row) => row.id))
      const older = kept === 'kept' ? this.rows.filter((row) => !fresh.has(row.id)) : []
      this.rows = [...page.data, ...older]
      if (older.length === 0) this.next = page.next ?? null
      this.failure = ''
      this.loaded = true
    } catch (error) {
      if (!abort.signal.aborted) this.failure = explain(error)
    } finally {
      if (this.busy === abort) this.busy = null
    }
  }

  /** The next page, if there is one. */
  async more() {
    if (!this.next || this.busy) return
    const abort = new AbortController()
    this.busy = abort
    try {
      const page = await this.page(this.next, abort.signal)
      const known = new Set(this.rows.map((row) => row.id))
      this.rows.push(...page.data.filter((row) => !known.has(row.id)))
      this.next = page.next ?? null
      this.failure = ''
    } catch (error) {
      if (!abort.signal.aborted) this.failure = explain(error)
    } finally {
      if (this.busy === abort) this.busy = null
    }
  }

  drop(id: string) {
    this.rows = this.rows.filter((row) => row.id !== id)
  }

  private page(before: string | null, signal: AbortSignal) {
    return get<List<SessionRow>>('/v1/sessions', { search: this.search.trim(), before, limit: PAGE }, signal)
  }
}

export const sessions = new Sessions()
