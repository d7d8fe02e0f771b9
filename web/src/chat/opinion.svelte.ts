/** What one says about one answer: a thumb counts once it is pressed, words to it may follow, and none are lost. */

import { call, explain } from '../api/client'
import type { ConsentView, FeedbackReply } from '../api/types'
import type { TurnNode } from './conversation.svelte'
import { refreshFate } from './fates'
import { feedbackOf, outcome, thumbOf, waitsForWords, type Thumb } from './feedback'

interface Given {
  thumb?: Thumb
  score?: number
  comment?: string
  correction?: string
}

export class Opinion {
  /** A thumb that was pressed and waits for the words to it, until they are stored. */
  held = $state<Thumb | null>(null)
  busy = $state(false)
  failure = $state('')
  /** What became of it, where that has to be said. */
  told = $state('')
  private underWay = $state<Given | null>(null)
  private last: Promise<unknown> = Promise.resolve()

  constructor(private readonly node: TurnNode) {}

  /** The thumb as it stands, stored or about to be. */
  get thumb(): Thumb | null {
    return this.held ?? this.underWay?.thumb ?? thumbOf(this.node.feedback)
  }

  /** Whether saying it drops a better answer that was written before. */
  erases(thumb: Thumb): boolean {
    return thumb === 'up' && !!(this.underWay ?? this.node.feedback)?.correction
  }

  press(thumb: Thumb, consent: ConsentView | null) {
    const { busy, node } = this
    const isStored = !busy && thumb === thumbOf(node.feedback)
    const waits = this.erases(thumb) || waitsForWords(thumb, consent, node.fate)
    this.held = waits && !isStored ? thumb : null
    if (!waits && !isStored) void this.send(this.withWords(thumb), true)
  }

  /** Whoever goes elsewhere has given a thumb that waits, unless it erases something: that is said with words only. */
  async release() {
    const { held, waiting } = this
    if (held === null) return
    // It may be on its way.
    await this.last
    if (this.held !== held) return
    this.held = null
    if (waiting) await this.send(waiting, true)
  }

  /** The page goes away: nothing can wait for what is on its way, which may not arrive. */
  leave() {
    const given = this.waiting ?? this.underWay
    if (given) void this.follow(given, this.store(given, true))
  }

  /** Says it with words; whether they are stored. A thumb that waits goes on waiting where they are not. */
  say(thumb: Thumb, comment: string, correction: string): Promise<boolean> {
    if (this.held !== null) this.held = thumb
    return this.send(feedbackOf(thumb, comment, correction))
  }

  /** Nothing that was stored is unsaid: it says neither good nor bad instead. */
  async takeBack(): Promise<boolean> {
    const isUnsaid = this.held !== null && !this.busy
    this.held = null
    if (isUnsaid) return true
    const isStored = await this.send({ score: 0 })
    if (isStored) this.told ||= 'Taken back: it counts as neither good nor bad.'
    return isStored
  }

  /** What a thumb that waits says once nobody adds words to it. */
  private get waiting(): Given | null {
    return this.held === null || this.erases(this.held) ? null : this.withWords(this.held)
  }

  private withWords(thumb: Thumb): Given {
    const { comment, correction } = this.underWay ?? this.node.feedback ?? {}
    return feedbackOf(thumb, comment ?? '', correction ?? '')
  }

  /** One after the other: what was said last stands. */
  private send(given: Given, keepalive = false): Promise<boolean> {
    return this.follow(given, this.last.then(() => this.store(given, keepalive)))
  }

  private follow(given: Given, sent: Promise<boolean>): Promise<boolean> {
    this.underWay = given
    this.busy = true
    this.failure = ''
    this.told = ''
    this.last = sent
    void sent.then((isStored) => {
      // Unless more was said meanwhile.
      if (this.last !== sent) return
      this.busy = false
      this.underWay = null
      if (isStored && this.held === given.thumb) this.held = null
    })
    return sent
  }

  private async store(given: Given, keepalive: boolean): Promise<boolean> {
    const { node } = this
    try {
      // One id per answer: saying it again replaces what was said before.
      const body = { turn_id: node.turnId, id: `page-${node.turnId}`, ...given }
      const reply = await call<FeedbackReply>('POST', '/v1/feedback', { body, keepalive })
      node.feedback = {
        score: given.score ?? (given.thumb === 'up' ? 1 : -1),
        comment: given.comment ?? null,
        correction: given.correction ?? null,
        of_session: false,
        received_ms: Date.now(),
      }
      this.told = outcome(reply)
      void refreshFate(node)
      return true
    } catch (error) {
      this.failure = explain(error)
      return false
    }
  }
}
