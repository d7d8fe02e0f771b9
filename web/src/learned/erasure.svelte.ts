/** Forgetting, from what would go to the end: the server does it, and this looks how far it is. */

import { call, explain } from '../api/client'
import type { ForgetPlan } from '../api/types'

export type What = { session_id: string } | { turn_ids: string[] } | { all: true }

const POLL_MS = 300
/** Pause after a look that failed. */
const RETRY_MS = 2_000

export class Erasure {
  plan = $state<ForgetPlan | null>(null)
  job = $state<ForgetPlan | null>(null)
  failure = $state('')
  /** It was asked for, and nobody knows yet whether it began. */
  isBeginning = $state(false)
  private over = false

  constructor(
    private readonly what: What,
    /** Whose it is, where it is an agent's. */
    private readonly agent?: string,
  ) {}

  /** What would go. */
  async ask() {
    this.failure = ''
    try {
      this.plan = await call<ForgetPlan>('POST', '/v1/forget', { agent: this.agent, body: { ...this.what, dry_run: true } })
    } catch (error) {
      this.failure = explain(error)
    }
  }

  /** Begins it, says so, and follows it to its end. */
  async begin(begun: () => void) {
    if (this.isBeginning || this.job) return
    this.isBeginning = true
    this.failure = ''
    try {
      this.job = await call<ForgetPlan>('POST', '/v1/forget', { agent: this.agent, body: this.what })
    } catch (error) {
      this.failure = explain(error)
    } finally {
      this.isBeginning = false
    }
    if (!this.job) return
    begun()
    await this.follow(this.job)
  }

  /** Nobody looks any more. It goes on by itself. */
  leave() {
    this.over = true
  }

  private async follow(job: ForgetPlan) {
    let pause = POLL_MS
    while (job.state === 'running' && !this.over) {
      await new Promise((wake) => setTimeout(wake, pause))
      if (this.over) return
      try {
        this.job = job = await call<ForgetPlan>('GET', `/v1/forget/${job.id}`, { agent: this.agent })
        this.failure = ''
        pause = POLL_MS
      } catch (error) {
        this.failure = explain(error)
        pause = RETRY_MS
      }
    }
  }
}
