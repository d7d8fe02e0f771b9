/** What the page says about feedback: what it teaches on this server, and what it taught. */

import { sentence } from '../api/client'
import type { ConsentView, Fate, Feedback, FeedbackReply } from '../api/types'

export type Thumb = 'up' | 'down'

const WORDS: Record<ConsentView['corrections'], string> = {
  imitated: 'The model will practise to answer like this.',
  hint: 'The model will learn from it what to do better, not your very words.',
  score: 'This server does not imitate your text: it counts as a thumb down.',
}

/** What becomes of a better answer that is written now; nothing where nothing is learned at all. */
export function expectation(consent: ConsentView | null, fate: Fate | null): string {
  if (consent?.learning !== 'full') return ''
  if (fate?.state === 'trained') {
    const more = consent.corrections_replayed ? 'a later version may still learn your words' : 'what you say now teaches no more'
    return `v${fate.version} has learned from this answer already: ${more}.`
  }
  return WORDS[consent.corrections]
}

/**
 * Whether a thumb is sent only with the words to it: a version learns from a thumb at once, and where it
 * would have learned from a better answer too, that one would come too late.
 */
export function waitsForWords(thumb: Thumb, consent: ConsentView | null, fate: Fate | null): boolean {
  if (thumb === 'up' || fate?.state === 'trained') return false
  return consent === null || (consent.learning === 'full' && consent.corrections !== 'score')
}

/** What was said last of the answer itself; what of a session's reward reached it was nobody's thumb. */
export function ownFeedback(all: Feedback[]): Feedback | null {
  return all.filter((said) => !said.of_session).at(-1) ?? null
}

/** The thumb that feedback stands for; none where it says neither good nor bad. */
export function thumbOf(feedback: Feedback | null): Thumb | null {
  if (!feedback?.score) return null
  return feedback.score > 0 ? 'up' : 'down'
}

/** What is sent. A better answer goes with a thumb down only: its field is not in sight with the other. */
export function feedbackOf(thumb: Thumb, comment: string, correction: string) {
  return {
    thumb,
    comment: comment.trim() || undefined,
    correction: (thumb === 'down' && correction.trim()) || undefined,
  }
}

/** What to say once the server has it; nothing where it went as everybody expects. */
export function outcome(reply: FeedbackReply): string {
  return reply.explanation === null ? '' : sentence(reply.explanation)
}
