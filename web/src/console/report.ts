/** Numbers out of what trainer and gate measured, wherever they stand. */

import type { Version } from '../api/types'

type Tree = Record<string, unknown>

const isTree = (value: unknown): value is Tree => typeof value === 'object' && value !== null && !Array.isArray(value)

/** A dotted name below a value. */
function below(value: unknown, name: string): number | null {
  let at: unknown = value
  for (const part of name.split('.')) at = isTree(at) ? at[part] : undefined
  return typeof at === 'number' && Number.isFinite(at) ? at : null
}

/** A number of a version: of the version itself, its step, its batch, its gate, or its report. */
export function measured(version: Version, name: string): number | null {
  const { report, gate } = version
  // One that was published again has no report of its own.
  const places = [version, report?.step, report?.batch, gate?.measured, gate, report]
  for (const place of places) {
    const found = below(place, name)
    if (found !== null) return found
  }
  return null
}

/** Every number and word of a report, as rows of dotted names. */
export function flat(value: unknown, prefix = ''): [string, string | number | boolean][] {
  if (typeof value === 'number' || typeof value === 'string' || typeof value === 'boolean') return [[prefix, value]]
  if (Array.isArray(value)) {
    const simple = value.every((item) => typeof item !== 'object')
    return simple ? [[prefix, value.length > 8 ? `${value.length} values` : value.join(', ')]] : value.flatMap((item, at) => flat(item, `${prefix}.${at}`))
  }
  if (!isTree(value)) return []
  return Object.entries(value).flatMap(([name, inner]) => flat(inner, prefix ? `${prefix}.${name}` : name))
}
