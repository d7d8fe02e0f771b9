/** The conversation in sight. It outlives its view, so that an answer goes on while one looks elsewhere. */

import { Conversation, type TurnNode } from './conversation.svelte'

class Current {
  chat = $state.raw(Conversation.fresh())
  /** Who answers, by the name of the model; the newest version where nobody chose. */
  model = $state('')
  /** Those that the server could not show as they are: their last words are known here alone. */
  private readonly held = new Set<Conversation>()

  /** Waits for an answer and holds its conversation until then. */
  async follow(chat: Conversation, asked: Promise<TurnNode>) {
    this.held.add(chat)
    try {
      await asked
    } finally {
      if (!this.isAhead(chat)) this.held.delete(chat)
    }
  }

  /** The conversation of a session, where the server could not show it. */
  heldOf(sessionId: string): Conversation | undefined {
    return [...this.held].find((chat) => chat.sessionId === sessionId)
  }

  /** What was forgotten is not shown any more, and nobody waits for an answer to it. */
  forget(isForgotten: (chat: Conversation) => boolean) {
    for (const chat of this.held) {
      if (!isForgotten(chat)) continue
      chat.stop(chat.nodes)
      this.held.delete(chat)
    }
    if (isForgotten(this.chat)) this.chat = Conversation.fresh()
  }

  /** Whether an answer still comes, or failed while one looked elsewhere. */
  private isAhead(chat: Conversation): boolean {
    if (chat.nodes.some((node) => node.live)) return true
    const canReturn = chat !== this.chat && chat.sessionId !== null && !chat.forgotten
    return canReturn && chat.path.at(-1)?.state === 'failed'
  }
}

export const current = new Current()
