/** The conversation in sight. It outlives its view, so that an answer goes on while one looks elsewhere. */

import { explain } from '../api/client'
import { newest } from '../lib/repeat'
import { Conversation, type TurnNode } from './conversation.svelte'

class Current {
  chat = $state.raw(Conversation.fresh())
  /** Who answers, by the name of the model; the newest version where nobody chose. */
  model = $state('')
  /** The chat that was asked for is on its way. Until then none is in sight. */
  loading = $state(false)
  /** Why the chat that was asked for is not there. Until one goes elsewhere, no other is in sight. */
  lost = $state('')
  isInSight = $derived(!this.loading && !this.lost)
  /** Those that the server could not show as they are: their last words are known here alone. */
  private held = $state.raw<Conversation[]>([])
  /** Of these, those of which the server has nothing at all; newest first. */
  unkept = $derived(this.held.filter((chat) => !chat.isKept && chat.nodes.some((node) => node.isKept === false)).reverse())
  private readonly opening = newest()

  /** Shows the chat of a session; where none is named, one that has no address. */
  async open(sessionId: string | null) {
    const isWanted = this.opening()
    this.lost = ''
    this.loading = false
    if (sessionId === null) {
      if (this.chat.isKept) this.chat = Conversation.fresh()
      return
    }
    if (this.chat.sessionId === sessionId) return
    const held = this.heldOf(sessionId)
    if (held) {
      this.chat = held
      return
    }
    this.loading = true
    try {
      const found = await Conversation.load(sessionId)
      // One may have gone elsewhere, or there and back, in the meantime.
      if (isWanted()) this.chat = found
    } catch (error) {
      if (isWanted()) this.lost = explain(error)
    } finally {
      if (isWanted()) this.loading = false
    }
  }

  /** Shows a chat that is here already, whatever was asked for before. */
  show(chat = Conversation.fresh()) {
    this.opening()
    this.lost = ''
    this.loading = false
    this.chat = chat
  }

  /** Waits for an answer and holds its conversation until then. */
  async follow(chat: Conversation, asked: Promise<TurnNode>) {
    this.held = [...this.held.filter((other) => other !== chat), chat]
    try {
      await asked
    } finally {
      if (!this.isAhead(chat)) this.held = this.held.filter((other) => other !== chat)
    }
  }

  /** The conversation of a session, where the server could not show it. */
  heldOf(sessionId: string): Conversation | undefined {
    return this.held.find((chat) => chat.sessionId === sessionId && this.isAhead(chat))
  }

  /** What was forgotten is not shown any more, and nobody waits for an answer to it. */
  forget(isForgotten: (chat: Conversation) => boolean) {
    const gone = this.held.filter(isForgotten)
    for (const chat of gone) chat.stop(chat.nodes)
    this.held = this.held.filter((chat) => !gone.includes(chat))
    if (isForgotten(this.chat)) this.chat = Conversation.fresh()
  }

  /** Whether an answer still comes, is not known to be kept, or failed while one looked elsewhere. */
  private isAhead(chat: Conversation): boolean {
    if (chat.nodes.some((node) => node.live)) return true
    if (chat.forgotten) return false
    if (chat.nodes.some((node) => node.turnId !== null && !node.isKept)) return true
    return chat !== this.chat && chat.sessionId !== null && chat.path.at(-1)?.state === 'failed'
  }
}

export const current = new Current()
