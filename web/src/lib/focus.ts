/** Keeps the keyboard's place: what has the focus may go away or be switched off; what is nearest then takes it. */

const CAN_HAVE = 'a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), textarea:not(:disabled), summary, [tabindex="0"]'

/** What had the focus last, and what it stood in, innermost first. */
let trail: Element[] = []

function trailOf(element: Element | null): Element[] {
  const found: Element[] = []
  for (let at = element; at && at !== document.body; at = at.parentElement) found.push(at)
  return found
}

const canTake = (element: Element): element is HTMLElement =>
  element instanceof HTMLElement && element.isConnected && element.matches(CAN_HAVE) && element.checkVisibility()

function nearest(): HTMLElement | null {
  const [last, ...around] = trail
  if (last && canTake(last)) return last
  for (const place of around) {
    if (!place.isConnected) continue
    // Another view: one begins where it begins.
    if (place.id === 'main') return place as HTMLElement
    const found = [...place.querySelectorAll(CAN_HAVE)].find(canTake)
    if (found) return found
  }
  return null
}

/** Gives the focus back if it is nowhere because what had it cannot have it any more. */
function check() {
  const [last] = trail
  if (!last || document.activeElement !== document.body || canTake(last)) return
  nearest()?.focus({ preventScroll: true })
}

/** For whatever opens over or beside something: what it gives puts the focus back where it was. */
export function rememberFocus(): () => void {
  const before = trailOf(document.activeElement)
  return () => {
    trail = before
    // After what was opened has left the page.
    requestAnimationFrame(() => {
      const now = document.activeElement
      if (now && now !== document.body && now.isConnected) return
      nearest()?.focus({ preventScroll: true })
    })
  }
}

/** For who skips what stands before the view, or goes to another one by keys: one begins where it begins. */
export function enterView() {
  document.getElementById('main')?.focus({ preventScroll: true })
}

/** Watches the whole page. */
export function keepFocus() {
  document.addEventListener('focusin', (event) => (trail = trailOf(event.target as Element)))
  // Who points elsewhere means it.
  document.addEventListener('pointerdown', () => (trail = []))
  const watch = { childList: true, subtree: true, attributeFilter: ['disabled'] }
  new MutationObserver(check).observe(document.body, watch)
}
