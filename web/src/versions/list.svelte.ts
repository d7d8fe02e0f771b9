/** A scope's versions, page by page, newest first. */

import { explain } from '../api/client'
import type { Standing, Trial, Version } from '../api/types'
import { listVersions, type Whose } from './calls'

export class VersionPages {
  rows = $state.raw<Version[]>([])
  current = $state(0)
  standing = $state.raw<Standing | null>(null)
  trial = $state.raw<Trial | null>(null)
  /** The oldest one is in the list. */
  isWhole = $state(false)
  loaded = $state(false)
  failure = $state('')
  private whose: Whose | null = null
  private next: number | null = null
  private busy = false

  /** The newest page; of the same scope the older pages stay. */
  async load(whose: Whose) {
    const isSame = this.whose?.scope === whose.scope && this.loaded
    this.whose = whose
    if (!isSame) {
      // What holds one scope holds no other.
      this.loaded = false
      this.standing = null
      this.trial = null
    }
    try {
      const page = await listVersions(whose)
      if (this.whose !== whose) return
      const oldest = page.data.at(-1)?.version ?? 0
      const newestKnown = this.rows[0]?.version ?? 0
      // A page that does not reach what is known would leave a gap.
      const older = isSame && oldest <= newestKnown + 1 ? this.rows.filter((row) => row.version < oldest) : []
      this.rows = [...page.data, ...older]
      if (older.length === 0) this.next = page.next
      this.isWhole = this.next === null
      this.current = page.current
      this.standing = page.standing ?? null
      this.trial = page.trial
      this.loaded = true
      this.failure = ''
    } catch (error) {
      if (this.whose === whose) this.failure = explain(error)
    }
  }

  /** The next page, if there is one. */
  async more() {
    const of = this.whose
    if (this.busy || !of || !this.loaded || this.next === null) return
    this.busy = true
    try {
      const page = await listVersions(of, { before: this.next })
      if (this.whose !== of) return
      const oldest = this.rows.at(-1)?.version ?? Infinity
      this.rows = [...this.rows, ...page.data.filter((row) => row.version < oldest)]
      this.next = page.next
      this.isWhole = this.next === null
    } catch (error) {
      this.failure = explain(error)
    } finally {
      this.busy = false
    }
  }
}
