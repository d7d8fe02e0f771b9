/** Charts over the same axis zoom together. */

class Zoom {
  /** In units of the axis; null shows everything. */
  range = $state.raw<{ axis: string; min: number; max: number } | null>(null)
  /** Whose versions are shown. */
  private scope: string | null = null

  of(axis: string) {
    return this.range?.axis === axis ? this.range : null
  }

  /** The versions of one scope are not those of another: its part of the axis may be empty there. */
  enter(scope: string | null) {
    if (scope === null || scope === this.scope) return
    this.scope = scope
    if (this.of('version')) this.range = null
  }
}

export const zoom = new Zoom()
