/** The console's view of the running process: followed over server-sent events, kept across restarts. */

import { explain, get, url } from '../api/client'
import type { SeriesReply, Status, Why } from '../api/types'
import { Series, type Values } from './series'

/** Shortest time between two redraws of what hangs on samples. */
const REDRAW_MS = 250
/** Pause before a connection that ended for good is made anew. */
const RETRY_MS = 2_000
/** How often the whole status is read; events bring the loops and the engine in between. */
const STATUS_MS = 5_000

interface Sample {
  at_ms: number
  values: Values
  why: Omit<Why, 'object'>
}

class Live {
  status = $state.raw<Status | null>(null)
  why = $state.raw<Why | null>(null)
  connected = $state(false)
  failure = $state('')
  /** What was measured before this page looked is there. */
  filled = $state(false)
  readonly series = new Series()
  /** Grows when `series` has changed; charts read it to know. */
  tick = $state(0)
  stepMs = $state(2_000)

  private users = 0
  private source: EventSource | null = null
  private timers: ReturnType<typeof setTimeout>[] = []
  /** Samples that arrive while older ones are asked for. */
  private held: Sample[] | null = null
  private due: ReturnType<typeof setTimeout> | null = null

  /** Follows while somebody looks; gives the function that stops. */
  follow(): () => void {
    if (++this.users === 1) this.start()
    return () => {
      if (--this.users === 0) this.stop()
    }
  }

  private start() {
    void this.refresh()
    this.connect()
    this.timers.push(setInterval(() => !document.hidden && void this.refresh(), STATUS_MS))
  }

  private stop() {
    this.source?.close()
    this.source = null
    this.timers.forEach(clearInterval)
    this.timers = []
  }

  /** The parts that events do not bring. */
  async refresh() {
    try {
      const [status, why] = await Promise.all([get<Status>('/admin/v1/status'), get<Why>('/admin/v1/why')])
      this.status = status
      this.why = why
      this.failure = ''
    } catch (error) {
      this.failure = explain(error)
    }
  }

  private connect() {
    const source = new EventSource(url('/admin/v1/events'))
    this.source = source
    source.onopen = () => {
      this.connected = true
      void this.fill()
    }
    source.onerror = () => {
      this.connected = false
      // The browser tries again by itself unless the server refused.
      if (source.readyState !== EventSource.CLOSED) return
      source.close()
      if (this.source === source) this.timers.push(setTimeout(() => this.users > 0 && this.connect(), RETRY_MS))
    }
    source.addEventListener('status', (event) => this.onStatus(JSON.parse(event.data)))
    source.addEventListener('sample', (event) => this.onSample(JSON.parse(event.data)))
  }

  /** What was measured before this page looked, or while the connection was down. */
  private async fill() {
    this.held ??= []
    try {
      const since = this.series.newestMs
      const reply = await get<SeriesReply>('/admin/v1/series', { since_ms: since })
      this.stepMs = reply.step_ms
      if (this.series.merge(reply.data) > 0) this.tick += 1
      this.filled = true
    } catch (error) {
      this.failure = explain(error)
    }
    const held = this.held
    this.held = null
    held.forEach((sample) => this.onSample(sample))
  }

  private onStatus(part: Pick<Status, 'loops' | 'engine' | 'scopes_with_policy'>) {
    if (this.status) {
      const { loops, engine, scopes_with_policy } = part
      this.status = { ...this.status, loops, engine, scopes_with_policy }
    }
  }

  private onSample(sample: Sample) {
    if (this.held) {
      this.held.push(sample)
      return
    }
    this.why = { object: 'why', ...sample.why }
    if (this.series.push(sample.at_ms, sample.values)) this.redraw()
  }

  private redraw() {
    this.due ??= setTimeout(() => {
      this.due = null
      this.tick += 1
    }, REDRAW_MS)
  }
}

export const live = new Live()
