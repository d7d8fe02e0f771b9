/** What was measured over time, by name: bounded, without gaps or repetition at the seams. */

/** Most samples kept; the oldest go first. */
export const SAMPLES_MAX = 5_000

export type Values = Record<string, number | null | undefined>

export class Series {
  /** Times in seconds, rising: what uPlot wants. */
  times: number[] = []
  private columns = new Map<string, (number | null)[]>()

  get newestMs(): number | null {
    const last = this.times.at(-1)
    return last === undefined ? null : Math.round(last * 1000)
  }

  names(): string[] {
    return [...this.columns.keys()].sort()
  }

  column(name: string): (number | null)[] {
    return this.columns.get(name) ?? new Array<number | null>(this.times.length).fill(null)
  }

  /** The newest value of a name. */
  last(name: string): number | null {
    return this.columns.get(name)?.at(-1) ?? null
  }

  /** The newest value that is none of nothing, however old. */
  lastKnown(name: string): number | null {
    return this.columns.get(name)?.findLast((value) => value !== null) ?? null
  }

  /** Adds a sample; one that is not newer than the newest is known already. */
  push(atMs: number, values: Values): boolean {
    if (this.newestMs !== null && atMs <= this.newestMs) return false
    this.times.push(atMs / 1000)
    for (const name of Object.keys(values)) {
      if (!this.columns.has(name)) this.columns.set(name, new Array<number | null>(this.times.length - 1).fill(null))
    }
    for (const [name, column] of this.columns) column.push(values[name] ?? null)
    this.trim()
    return true
  }

  /** Adds a whole history as the server tells it. */
  merge(data: Record<string, [number, number | null][]>): number {
    const rows = new Map<number, Values>()
    for (const [name, points] of Object.entries(data)) {
      for (const [at, value] of points) {
        const row = rows.get(at) ?? {}
        row[name] = value
        rows.set(at, row)
      }
    }
    const times = [...rows.keys()].sort((a, b) => a - b)
    return times.filter((at) => this.push(at, rows.get(at) ?? {})).length
  }

  private trim() {
    const over = this.times.length - SAMPLES_MAX
    if (over <= 0) return
    this.times.splice(0, over)
    for (const column of this.columns.values()) column.splice(0, over)
  }
}
