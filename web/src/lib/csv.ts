/** Tables for other programs, and files for people. */

export type Cell = string | number | null | undefined

export function csv(head: string[], rows: Cell[][]): string {
  return [head, ...rows].map((row) => row.map(field).join(',')).join('\r\n') + '\r\n'
}

function field(cell: Cell): string {
  if (cell === null || cell === undefined) return ''
  const text = String(cell)
  // A spreadsheet would run a text that begins like a formula.
  const safe = typeof cell === 'string' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

export function download(name: string, content: string | Blob, type: string) {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([content], { type }))
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}
