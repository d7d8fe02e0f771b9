/** What is asked again and again: one round after the other, and the newest answer counts. */

import { untrack } from 'svelte'

/**
 * Does something now, and again so long after it has ended: a slow server is never asked twice at a
 * time. Rests while the page is hidden. Gives the function that stops it.
 */
export function repeat(round: () => Promise<unknown>, pauseMs: number): () => void {
  let timer: ReturnType<typeof setTimeout>
  let over = false
  const next = () => {
    if (!over) timer = setTimeout(() => void run(document.hidden), pauseMs)
  }
  const run = async (rests: boolean) => {
    try {
      if (!rests) await round()
    } finally {
      next()
    }
  }
  // Callers are effects: what a round reads is no reason to begin anew.
  void untrack(() => run(false))
  return () => {
    over = true
    clearTimeout(timer)
  }
}

/** Called before each ask, it gives the function that says whether no other was begun since. */
export function newest(): () => () => boolean {
  let asks = 0
  return () => {
    const mine = ++asks
    return () => mine === asks
  }
}
