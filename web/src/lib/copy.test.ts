import { afterEach, expect, it, vi } from 'vitest'
import { copyText } from './copy'

/** A browser as far as copying needs it; gives what was copied, and by which way. */
function browser(clipboard: boolean, selection: boolean): string[] {
  const copied: string[] = []
  const writeText = async (text: string) => void copied.push(`clipboard: ${text}`)
  vi.stubGlobal('navigator', clipboard ? { clipboard: { writeText } } : {})
  const field = { value: '', style: {}, focus: () => {}, select: () => {}, remove: () => {} }
  const execCommand = () => {
    if (selection) copied.push(`selection: ${field.value}`)
    return selection
  }
  vi.stubGlobal('HTMLElement', class {})
  vi.stubGlobal('document', {
    activeElement: null,
    body: { append: () => {} },
    querySelector: () => null,
    createElement: () => field,
    execCommand,
  })
  return copied
}

afterEach(() => void vi.unstubAllGlobals())

it.each([
  [true, true, true, ['clipboard: a key']],
  [false, true, true, ['selection: a key']],
  [false, false, false, []],
])('clipboard %s, selection %s: copied %s', async (clipboard, selection, worked, ways) => {
  const copied = browser(clipboard, selection)
  expect(await copyText('a key')).toBe(worked)
  expect(copied).toEqual(ways)
})
