/** Puts text on the clipboard, also where the page came over plain HTTP and the browser offers none. */

/** What to say where it cannot be done. */
export const NOT_COPIED = 'Not copied: select it by hand.'

/** Whether it worked. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    // Missing (outside https and this machine) or denied.
    return copySelected(text)
  }
}

/** The old way: what is selected in a field nobody sees. */
function copySelected(text: string): boolean {
  const before = document.activeElement
  const field = document.createElement('textarea')
  field.value = text
  field.readOnly = true
  field.style.position = 'fixed'
  field.style.top = '0'
  field.style.opacity = '0'
  // What stands outside an open dialog cannot be selected.
  const place = document.querySelector('dialog[open]') ?? document.body
  place.append(field)
  try {
    field.focus({ preventScroll: true })
    field.select()
    return document.execCommand('copy')
  } catch {
    return false
  } finally {
    if (before instanceof HTMLElement) before.focus({ preventScroll: true })
    field.remove()
  }
}
