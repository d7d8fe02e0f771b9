import { expect, it } from 'vitest'
import { ago, bytes, duration, number, percent, plural, signed, versionName } from './format'

it.each([
  [number(1234567), '1,234,567'],
  [number(0.12345), '0.123'],
  [number(0), '0'],
  [number(0.00012), '1.2e-4'],
  [number(null), '–'],
  [number(NaN), '–'],
  [signed(0.25), '+0.25'],
  [signed(-0.25), '−0.25'],
  [percent(0.123), '12 %'],
  [bytes(512), '512 B'],
  [bytes(1536), '1.5 KiB'],
  [duration(0.5), '500 µs'],
  [duration(12), '12 ms'],
  [duration(1500), '1.5 s'],
  [duration(90_000), '1 min 30 s'],
  [duration(7_200_000), '2 h'],
  [ago(0, 2_000), 'just now'],
  [ago(0, 61_000), '1 min ago'],
  [ago(0, 3 * 86_400_000), '3 d ago'],
  [ago(90_000, 0), 'in 1 min'],
  [plural(1, 'turn'), '1 turn'],
  [plural(2, 'turn'), '2 turns'],
  [versionName(0), 'base'],
  [versionName(12), 'v12'],
])('%j is %j', (found, expected) => expect(found.replaceAll('\u00a0', ' ')).toBe(expected))
