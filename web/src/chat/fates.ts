/** Keeps what the page says about recent answers true: whether they were judged, learned or not. */

import { ApiError, get } from '../api/client'
import type { Fate, Feedback } from '../api/types'
import type { TurnNode } from './conversation.svelte'

const EVERY_MS = 3_000
/** Most answers asked about at a time; older ones are told when they come into sight again. */
const MOST = 6

export interface TurnDetail {
  completion: string
  fate: Fate
  verdict: { score: number | null; decided_by: string | null; hint: string | null } | null
  feedback: Feedback[]
}

/** Asks now and then until what it gives back is called. */
export function followFates(path: () => TurnNode[]): () => void {
  let over = false
  const round = async () => {
    if (document.hidden) return
    for (const node of path().filter(isOpen).slice(-MOST)) {
      if (over) return
      await refreshFate(node)
    }
  }
  const timer = setInterval(() => void round(), EVERY_MS)
  return () => {
    over = true
    clearInterval(timer)
  }
}

function isOpen(node: TurnNode): boolean {
  if (!node.turnId || node.live || node.note?.collected === false) return false
  return node.fate === null || node.fate.state === 'pending'
}

/** Whether the turn was there once and is not any more: it was forgotten, in another tab say. */
export async function refreshFate(node: TurnNode): Promise<boolean> {
  if (!node.turnId) return false
  try {
    const turn = await get<TurnDetail>(`/v1/turns/${node.turnId}`)
    node.fate = turn.fate
    // The server may have said a word more before it heard the stop; what it kept is what the talk goes on from.
    if (node.state === 'stopped' && turn.completion.startsWith(node.completion)) node.completion = turn.completion
    node.feedback = turn.feedback.at(-1) ?? node.feedback
    return false
  } catch (error) {
    // A turn that is not known yet simply has nothing to show; the next round asks again.
    return node.fate !== null && error instanceof ApiError && error.status === 404
  }
}
