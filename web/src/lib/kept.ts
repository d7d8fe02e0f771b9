/**
 * What the browser keeps for the page. Where site data is blocked or full, it lasts as long as the
 * page: nothing here is worth failing for.
 */

export type Shelf = 'localStorage' | 'sessionStorage'

export function recall(shelf: Shelf, name: string): string | null {
  try {
    // Where it is blocked, naming it throws.
    return globalThis[shelf].getItem(name)
  } catch {
    return null
  }
}

/** Keeps `value` under the name; nothing any more for null. */
export function keep(shelf: Shelf, name: string, value: string | null) {
  try {
    if (value === null) globalThis[shelf].removeItem(name)
    else globalThis[shelf].setItem(name, value)
  } catch {
    // It lasts as long as the page.
  }
}
