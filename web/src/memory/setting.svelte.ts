/** Whether chats of this page remember: what the person chose in this browser, within what the server allows. */

import { account } from '../account/account.svelte'
import { get } from '../api/client'
import type { Consent, Memories, MemoryMode, MemoryModes } from '../api/types'
import { keep, recall } from '../lib/kept'
import { newest } from '../lib/repeat'

/** On or off; null where the person did not choose. */
export type Choice = 'full' | 'off' | null

const ORDER: MemoryMode[] = ['off', 'read', 'full']

/** What a chat of this page does with memories. */
export function effective({ mode, mode_max }: MemoryModes, choice: Choice): MemoryMode {
  const wanted = choice ?? mode
  return ORDER.indexOf(wanted) < ORDER.indexOf(mode_max) ? wanted : mode_max
}

/** Whether as much is remembered as is allowed. */
export const isOn = (modes: MemoryModes, choice: Choice) => modes.mode_max !== 'off' && effective(modes, choice) === modes.mode_max

/** How it stands, and what to do where that is not all. */
export function standing(modes: MemoryModes, choice: Choice, consent: Consent | undefined): string {
  if (modes.mode_max === 'off') {
    return consent === 'off'
      ? 'Nothing of you is kept while learning is off, so nothing is remembered either. Choose “Learn from me” to change that.'
      : 'Several people share what is learned here, so nothing is remembered: what one person says is not shown to another.'
  }
  const now = effective(modes, choice)
  if (now === 'full') return 'On: what you say in this browser about yourself or about how to answer is remembered, and used in later chats.'
  if (now === 'off') return 'Off: chats in this browser do not use what is remembered, and add nothing to it.'
  return modes.mode_max === 'read'
    ? 'Chats use what is remembered. What you say adds nothing to it: choose “Learn from me” to change that.'
    : 'Chats use what is remembered. What you say adds nothing to it, unless you switch this on.'
}

const keyOf = (owner: string) => `hone.memory.${owner}`

class MemorySetting {
  /** What the server says; null until then. */
  modes = $state.raw<MemoryModes | null>(null)
  /** What was chosen on this page, by person. */
  private chosen = $state<Record<string, Choice>>({})
  private readonly asks = newest()

  /** The choice of who is here. */
  get choice(): Choice {
    const owner = account.me?.name
    return owner === undefined ? null : (this.chosen[owner] ?? stored(owner))
  }

  /** What a request of who is here says about memories. */
  get wish(): { memory: 'full' | 'off' } | undefined {
    return this.choice === null ? undefined : { memory: this.choice }
  }

  set(choice: 'full' | 'off') {
    const owner = account.me?.name
    if (owner === undefined) return
    this.chosen[owner] = choice
    keep('localStorage', keyOf(owner), choice)
  }

  /** Asks how it stands. */
  async look() {
    const isNewest = this.asks()
    const { mode, mode_max } = await get<Memories>('/v1/memories', { limit: 1 })
    if (isNewest()) this.modes = { mode, mode_max }
  }
}

function stored(owner: string): Choice {
  const value = recall('localStorage', keyOf(owner))
  return value === 'full' || value === 'off' ? value : null
}

export const setting = new MemorySetting()
