/** What was measured of a scope's versions, no finer than it can be drawn, and finer where one zooms. */

import { explain, get } from '../api/client'
import type { VersionSeries } from '../api/types'

/** Numbers that the charts draw. */
const NAMES = [
  'mean_score',
  'score_mean',
  'kl_to_reference',
  'kl_to_parent',
  'loss',
  'clip_share',
  'ess',
  'grad_norm_max',
  'staleness_mean',
  'staleness_max',
  'candidate.tokens_mean',
  'base.tokens_mean',
] as const

export class VersionMeasures {
  found = $state.raw<VersionSeries | null>(null)
  failure = $state('')
  private scope: string | null = null
  private running: AbortController | null = null

  get versions(): number[] {
    return this.found?.versions ?? []
  }

  column(name: (typeof NAMES)[number]): (number | null)[] {
    return this.found?.data[name] ?? []
  }

  /** Reads anew; what was measured of another scope is gone at once. */
  async load(scope: string, range: { min: number; max: number } | null) {
    this.running?.abort()
    if (scope !== this.scope) {
      this.scope = scope
      this.found = null
      this.failure = ''
    }
    const abort = new AbortController()
    this.running = abort
    // One version more on each side, so that lines go on to the edge.
    const [from, to] = range ? [Math.max(1, Math.floor(range.min) - 1), Math.ceil(range.max) + 1] : [null, null]
    try {
      const query = { scope, names: NAMES.join(','), from, to }
      const found = await get<VersionSeries>('/admin/v1/versions/series', query, abort.signal)
      this.found = found
      this.failure = ''
    } catch (error) {
      if (!abort.signal.aborted) this.failure = explain(error)
    }
  }
}
