/** A tree of versions as lanes beside a list, newest first: where each row's dot and lines go. */

export interface LaneRow {
  version: number
  /** Column of its dot. */
  lane: number
  /** Columns with a line through the upper half that ends in the dot. */
  joins: number[]
  /** Columns with a line that passes by. */
  passes: number[]
  /** Whether a line leaves the dot downwards. */
  goesOn: boolean
}

/**
 * Versions newest first, each with its parent. A line ends where its parent is not in the list,
 * unless older versions are still to come.
 */
export function lanes(versions: { version: number; parent: number }[], isWhole = true): LaneRow[] {
  const known = new Set(versions.map((v) => v.version))
  const oldest = versions.at(-1)?.version ?? 0
  const isThere = (version: number) => known.has(version) || (!isWhole && version < oldest)
  /** What each column waits for; null is free. */
  const waiting: (number | null)[] = []
  return versions.map(({ version, parent }) => {
    const joins = waiting.flatMap((wanted, column) => (wanted === version ? [column] : []))
    let lane = joins[0] ?? waiting.indexOf(null)
    if (lane < 0) lane = waiting.length
    for (const column of joins) waiting[column] = null
    const passes = waiting.flatMap((wanted, column) => (wanted === null ? [] : [column]))
    const goesOn = isThere(parent) && parent !== version
    waiting[lane] = goesOn ? parent : null
    return { version, lane, joins, passes, goesOn }
  })
}
