/** Keeps what the page says about recent answers true: whether they were judged, learned or not. */

import { ApiError, get } from '../api/client'
import type { Turn } from '../api/types'
import { repeat } from '../lib/repeat'
import { ownFeedback } from './feedback'
import type { TurnNode } from './conversation.svelte'

const EVERY_MS = 3_000
/** Most answers asked about at a time; older ones are told when they come into sight again. */
const MOST = 6

/** Asks now and then until what it gives back is called. */
export function followFates(path: () => TurnNode[]): () => void {
  let over = false
  const stop = repeat(async () => {
    for (const node of path().filter(isOpen).slice(-MOST)) {
      if (over) return
      await refreshFate(node)
    }
  }, EVERY_MS)
  return () => {
    over = true
    stop()
  }
}

function isOpen(node: TurnNode): boolean {
  if (!node.turnId || node.live || node.isKept === false) return false
  return node.fate === null || node.fate.state === 'pending' || node.memories === null
}

/** Whether the turn was there once and is not any more: it was forgotten, in another tab say. */
export async function refreshFate(node: TurnNode): Promise<boolean> {
  if (!node.turnId || node.isKept === false) return false
  try {
    const turn = await get<Turn>(`/v1/turns/${node.turnId}`)
    node.fate = turn.fate
    if (node.state === 'stopped') takeRest(node, turn)
    node.feedback = ownFeedback(turn.feedback) ?? node.feedback
    node.memories = turn.memories
    node.skills = turn.skills ?? []
    return false
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) return false
    node.memories ??= []
    if (node.fate !== null) return true
    // It may not be known yet: then it has nothing to show, and the next round asks again.
    if (!node.live) node.misses += 1
    return false
  }
}

/** The server may have said a word more before it heard the stop; what it kept is what the talk goes on from. */
function takeRest(node: TurnNode, { content, reasoning }: Turn) {
  if (content?.startsWith(node.completion)) node.completion = content
  if (reasoning?.startsWith(node.reasoning)) node.reasoning = reasoning
}
