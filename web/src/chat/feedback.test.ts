import { expect, it } from 'vitest'
import type { ConsentView, Fate, FeedbackReply } from '../api/types'
import { expectation, feedbackOf, outcome, thumbOf, waitsForWords } from './feedback'

const consent = (learning: ConsentView['learning'], corrections: ConsentView['corrections'], replayed = false): ConsentView => ({
  learning,
  corrections,
  corrections_replayed: replayed,
  holdback: false,
  despite_store_false: false,
  explanation: '',
  withdrawn_turns: 0,
})
const waiting: Fate = { state: 'pending', stage: 'awaiting_next_state', version: null, reason: null, explanation: '' }
const trained: Fate = { state: 'trained', stage: null, version: 3, reason: null, explanation: '' }

it.each([
  [consent('full', 'imitated'), waiting, 'practise to answer like this'],
  [consent('full', 'hint'), waiting, 'what to do better'],
  [consent('full', 'score'), waiting, 'does not imitate your text'],
  [consent('full', 'score'), null, 'counts as a thumb down'],
  [consent('full', 'score'), trained, 'v3 has learned from this answer already'],
  [consent('full', 'hint'), trained, 'teaches no more'],
  // What was learned teaches again by its words, where turns are replayed.
  [consent('full', 'imitated', true), trained, 'a later version may still learn your words'],
  [consent('full', 'imitated'), trained, 'teaches no more'],
])('a better answer: %j %j', (allowed, fate, words) => {
  expect(expectation(allowed, fate)).toContain(words)
})

it('promises nothing where nothing is learned, or nobody knows', () => {
  for (const allowed of [null, consent('serve', 'imitated'), consent('off', 'score')]) {
    expect(expectation(allowed, waiting)).toBe('')
  }
})

it('says after sending what the server says, as a sentence', () => {
  const reply: FeedbackReply = { object: 'feedback', id: 'fb_1', turn_id: 'turn_1', session_id: null, reward: null, outcome: 'stored', explanation: null }
  expect(outcome(reply)).toBe('')
  const late = { ...reply, outcome: 'already_learned', explanation: 'a version has learned from this answer already' }
  expect(outcome(late)).toBe('A version has learned from this answer already.')
})

it.each([
  ['down' as const, ' too long ', ' Paris. ', { thumb: 'down', comment: 'too long', correction: 'Paris.' }],
  ['down' as const, ' ', '', { thumb: 'down' }],
  // What was written before the thumb was turned up.
  ['up' as const, '', 'Paris.', { thumb: 'up' }],
])('a thumb %s with %j and %j', (thumb, comment, correction, sent) => {
  expect(feedbackOf(thumb, comment, correction)).toEqual(sent)
})

it.each([
  ['down' as const, consent('full', 'imitated'), waiting, true],
  ['down' as const, consent('full', 'hint'), null, true],
  ['down' as const, null, waiting, true],
  ['down' as const, consent('full', 'score'), waiting, false],
  ['down' as const, consent('serve', 'imitated'), waiting, false],
  ['down' as const, consent('full', 'imitated', true), trained, false],
  ['up' as const, consent('full', 'hint'), waiting, false],
])('a thumb %s under %j with %j waits for the words to it: %s', (thumb, allowed, fate, waits) => {
  expect(waitsForWords(thumb, allowed, fate)).toBe(waits)
})

it.each([
  [1, 'up'],
  [0.2, 'up'],
  [-1, 'down'],
  [0, null],
  [null, null],
])('a score of %s is the thumb %s', (score, thumb) => {
  expect(thumbOf({ score, comment: null, correction: null, of_session: false, received_ms: 0 })).toBe(thumb)
})
