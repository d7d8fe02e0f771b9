/** Numbers, times and sizes as people read them. */

export const NONE = '–'

type Value = number | null | undefined

export function isNumber(value: Value): value is number {
  return typeof value === 'number' && Number.isFinite(value)
}

/** About three significant digits, thousands grouped. */
export function number(value: Value, digits?: number): string {
  if (!isNumber(value)) return NONE
  if (digits !== undefined) return value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
  if (Number.isInteger(value)) return value.toLocaleString('en')
  const size = Math.abs(value)
  if (size >= 100) return Math.round(value).toLocaleString('en')
  if (size >= 0.01) return value.toLocaleString('en', { maximumSignificantDigits: 3 })
  return value === 0 ? '0' : value.toExponential(1)
}

export const signed = (value: Value, digits = 2) =>
  isNumber(value) ? (value > 0 ? '+' : value < 0 ? '−' : '') + number(Math.abs(value), digits) : NONE

export const percent = (share: Value, digits = 0) => (isNumber(share) ? `${number(share * 100, digits)} %` : NONE)

export function bytes(count: Value): string {
  if (!isNumber(count)) return NONE
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let at = 0
  let size = count
  for (; size >= 1024 && at < units.length - 1; at++) size /= 1024
  return `${number(at ? Number(size.toPrecision(3)) : size)} ${units[at]}`
}

/** A length of time. */
export function duration(ms: Value): string {
  if (!isNumber(ms)) return NONE
  if (ms < 1) return `${number(ms * 1000, 0)}\u00a0µs`
  if (ms < 1000) return `${number(ms, ms < 10 ? 1 : 0)}\u00a0ms`
  const seconds = ms / 1000
  if (seconds < 60) return `${number(seconds, seconds < 10 ? 1 : 0)}\u00a0s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 60) return join(minutes, 'min', Math.floor(seconds % 60), 's')
  const hours = Math.floor(minutes / 60)
  if (hours < 48) return join(hours, 'h', minutes % 60, 'min')
  return join(Math.floor(hours / 24), 'd', hours % 24, 'h')
}

const join = (big: number, bigUnit: string, small: number, smallUnit: string) =>
  small ? `${big}\u00a0${bigUnit} ${small}\u00a0${smallUnit}` : `${big}\u00a0${bigUnit}`

/** How long ago, or how far ahead. */
export function ago(atMs: Value, nowMs: number): string {
  if (!isNumber(atMs)) return NONE
  const away = Math.abs(nowMs - atMs)
  if (away < 5_000) return 'just now'
  const steps: [number, string][] = [
    [60_000, 's'],
    [3_600_000, 'min'],
    [86_400_000, 'h'],
    [30 * 86_400_000, 'd'],
    [365 * 86_400_000, 'mo'],
    [Infinity, 'y'],
  ]
  let unit = 1000
  for (const [below, name] of steps) {
    if (away < below) {
      const count = Math.floor(away / unit)
      return nowMs >= atMs ? `${count} ${name} ago` : `in ${count} ${name}`
    }
    unit = below
  }
  return NONE
}

export function exact(atMs: Value): string {
  if (!isNumber(atMs)) return ''
  return new Date(atMs).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' })
}

export const plural = (count: number, one: string, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`

/** The end of an id, enough to tell two apart. */
export const shortId = (id: string) => id.slice(-8)

export const versionName = (version: Value) => (isNumber(version) ? (version === 0 ? 'base' : `v${version}`) : NONE)

/** Snake case as words. */
export const words = (name: string) => name.replaceAll('_', ' ')
