/** Charts over the same axis zoom together. */

class Zoom {
  /** In units of the axis; null shows everything. */
  range = $state.raw<{ axis: string; min: number; max: number } | null>(null)

  of(axis: string) {
    return this.range?.axis === axis ? this.range : null
  }
}

export const zoom = new Zoom()
