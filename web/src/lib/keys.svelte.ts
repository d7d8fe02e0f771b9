/** Keyboard shortcuts: views bind theirs while they are in sight; `?` lists what works now. */

import { untrack } from 'svelte'

export interface Shortcut {
  /** As in KeyboardEvent.key; two with a space between are pressed one after the other. */
  key: string
  does: string
  act: () => void
}

const CHORD_MS = 1200

class Keys {
  groups = $state.raw<{ name: string; shortcuts: Shortcut[] }[]>([])
  private begun = ''
  private begunAt = 0

  constructor() {
    window.addEventListener('keydown', (event) => this.pressed(event))
  }

  /** Gives the function that takes them away again. */
  bind(name: string, shortcuts: Shortcut[]): () => void {
    const group = { name, shortcuts }
    // Callers are effects: they must not run again because the list changed.
    untrack(() => (this.groups = [...this.groups, group]))
    return () => {
      untrack(() => (this.groups = this.groups.filter((other) => other !== group)))
    }
  }

  private pressed(event: KeyboardEvent) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return
    if (isWriting(event.target) || isCovered()) return
    const chord = event.timeStamp - this.begunAt < CHORD_MS ? `${this.begun} ${event.key}` : ''
    this.begun = event.key
    this.begunAt = event.timeStamp
    const all = this.groups.flatMap((group) => group.shortcuts)
    const found = all.findLast((s) => s.key === chord) ?? all.findLast((s) => s.key === event.key)
    if (!found) return
    event.preventDefault()
    this.begun = ''
    found.act()
  }
}

function isWriting(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)
}

/** Whether something stands over the page; Escape closes that first. */
export function isCovered(): boolean {
  return document.querySelector('dialog[open], :popover-open') !== null
}

export const keys = new Keys()
