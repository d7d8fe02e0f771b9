/** Where undoing a version leads. */

import type { Version } from '../api/types'

/**
 * The version to go back to from `version`; null where there is none, or the rows do not tell.
 * What a version continues answered before it. A version that served an older one again has that
 * one as its parent, and one from elsewhere the base model: before these another adapter answered.
 */
export function undoOf(version: number, rows: Version[]): number | null {
  const row = rows.find((known) => known.version === version)
  if (!row) return null
  if (row.status === 'published' || version === 1) return row.parent
  const older = rows.filter((known) => known.version < version && known.digest !== row.digest)
  const before = older.reduce<Version | null>((found, known) => (found && found.version > known.version ? found : known), null)
  if (!before || before.tainted || before.retired || before.pruned) return null
  // The base model that was served again is the base model.
  return before.digest === null ? 0 : before.version
}
