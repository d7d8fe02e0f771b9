/** The console's list of turns: older pages as one scrolls, newer turns as they come. */

import { explain, get } from '../api/client'
import type { List, TurnLine } from '../api/types'

const PAGE = 200
/** Rows that are read at once, where pages are short because few turns pass the filters. */
const ENOUGH = 40

export type Filter = Record<string, string | null>

export class TurnList {
  rows = $state.raw<TurnLine[]>([])
  /** Newer turns that are not in the list yet, because somebody reads it. */
  fresh = $state.raw<TurnLine[]>([])
  /** More came than one look shows: the list begins anew. */
  isBehind = $state(false)
  loaded = $state(false)
  ended = $state(false)
  failure = $state('')
  private filter: Filter = {}
  private next: string | null = null
  private running: AbortController | null = null
  private looking = false

  async reload(filter: Filter = this.filter) {
    this.running?.abort()
    this.running = null
    this.filter = filter
    this.rows = []
    this.forgetNew()
    this.failure = ''
    this.next = null
    this.loaded = false
    this.ended = false
    await this.more()
  }

  /** The next page. A page may be short or empty although there is more. */
  async more() {
    if (this.running || this.ended) return
    const abort = new AbortController()
    this.running = abort
    try {
      const page = await this.page(this.next, abort.signal)
      this.rows = this.rows.concat(page.data)
      this.next = page.next ?? null
      this.ended = this.next === null
      this.loaded = true
      this.failure = ''
    } catch (error) {
      if (!abort.signal.aborted) this.failure = explain(error)
    } finally {
      if (this.running === abort) this.running = null
    }
    if (!this.failure && !this.ended && this.rows.length < ENOUGH && !abort.signal.aborted) await this.more()
  }

  /** Looks what is new, and what became of the newest turns; says whether it found out. */
  async look(): Promise<boolean> {
    if (this.looking || this.running || !this.loaded) return false
    this.looking = true
    const of = this.filter
    try {
      const page = await this.page(null)
      if (of !== this.filter || !this.loaded) return false
      this.take(page)
      return true
    } catch {
      // The next look asks again; the bar says whether the server is there.
      return false
    } finally {
      this.looking = false
    }
  }

  /** Puts the newer turns into the list; how many they are. */
  show(): number {
    const count = this.fresh.length
    this.rows = [...this.fresh, ...this.rows]
    this.fresh = []
    return count
  }

  private take(page: List<TurnLine>) {
    const found = new Map(page.data.map((row) => [row.id, row]))
    const known = new Set([...this.fresh, ...this.rows.slice(0, 2 * PAGE)].map((row) => row.id))
    const added = page.data.filter((row) => !known.has(row.id))
    const touches = this.rows.length === 0 || added.length < page.data.length || !page.next
    const again = (rows: TurnLine[]) => rows.map((row) => found.get(row.id) ?? row)
    this.rows = again(this.rows)
    this.fresh = [...added, ...again(this.fresh)]
    if (!touches) this.isBehind = true
  }

  private forgetNew() {
    this.fresh = []
    this.isBehind = false
  }

  private page(before: string | null, signal?: AbortSignal) {
    return get<List<TurnLine>>('/admin/v1/turns', { ...this.filter, limit: PAGE, before }, signal)
  }
}
