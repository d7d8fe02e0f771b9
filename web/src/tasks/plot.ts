/** Where the plot of success by version draws what. */

import type { VersionSuccess } from '../api/types'

export interface Mark {
  version: number
  x: number
  /** The rate. */
  y: number
  /** The ends of its interval. */
  top: number
  bottom: number
}

/** Around the plot, in pixels: names of the axes. */
export const EDGE = { left: 46, right: 18, top: 12, bottom: 40 }
/** Least distance between two names on the axis of versions. */
const NAME_WIDTH = 44

/** The height of a share from 0 to 1. */
export const heightOf = (share: number, height: number) => EDGE.top + (1 - share) * (height - EDGE.top - EDGE.bottom)

/** One mark per version; versions stand as far apart as their numbers. */
export function marksOf(versions: Pick<VersionSuccess, 'version' | 'rate' | 'interval'>[], width: number, height: number): Mark[] {
  const numbers = versions.map(({ version }) => version)
  const [first, last] = [Math.min(...numbers), Math.max(...numbers)]
  const [from, span] = [EDGE.left + 16, Math.max(0, width - EDGE.left - EDGE.right - 32)]
  const x = (version: number) => (first === last ? from + span / 2 : from + ((version - first) / (last - first)) * span)
  return versions.map(({ version, rate, interval: [low, high] }) => ({
    version,
    x: x(version),
    y: heightOf(rate, height),
    top: heightOf(high, height),
    bottom: heightOf(low, height),
  }))
}

/** The marks that have room for a name: the newest, and older ones at a distance. */
export function named(marks: Mark[]): Mark[] {
  const found: Mark[] = []
  for (const mark of marks.toSorted((a, b) => b.x - a.x)) {
    const before = found.at(-1)
    if (!before || before.x - mark.x >= NAME_WIDTH) found.push(mark)
  }
  return found.reverse()
}
