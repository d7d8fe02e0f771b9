/** The conversation in sight. It outlives its view, so that an answer goes on while one looks elsewhere. */

import { Conversation } from './conversation.svelte'

class Current {
  chat = $state.raw(Conversation.fresh())
}

export const current = new Current()
