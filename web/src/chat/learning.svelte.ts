/** What is learned from the person at the moment, told while an answer in sight waits for it. */

import { get } from '../api/client'
import type { LearningNow } from '../api/types'
import { repeat } from '../lib/repeat'
import type { TurnNode } from './conversation.svelte'

const EVERY_MS = 2_000
/** How long it is looked for after the last sign of it. */
const LINGER_MS = 10_000

export class LearningWatch {
  /** One sentence; empty where nothing is learned. */
  sentence = $state('')

  /** Asks while one of these answers may be learned from; gives the function that stops. */
  follow(path: () => TurnNode[]): () => void {
    let lastMs = 0
    const stop = repeat(async () => {
      const now = Date.now()
      if (path().some(waits)) lastMs = now
      if (this.sentence === '' && now - lastMs > LINGER_MS) return
      await this.refresh()
    }, EVERY_MS)
    return () => {
      stop()
      this.sentence = ''
    }
  }

  async refresh() {
    try {
      this.sentence = (await get<LearningNow>('/v1/learning')).under_way?.sentence ?? ''
    } catch {
      // Nobody needs it: the answers' own chips say what became of them.
      this.sentence = ''
    }
  }
}

function waits(node: TurnNode): boolean {
  const stage = node.fate?.state === 'pending' ? node.fate.stage : null
  return stage === 'awaiting_verdict' || stage === 'awaiting_training'
}
