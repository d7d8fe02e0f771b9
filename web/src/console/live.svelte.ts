/** The console's view of the running process: followed over server-sent events, kept across restarts. */

import { explain, get, url } from '../api/client'
import type { SeriesReply, Status, Why } from '../api/types'
import { newest, repeat } from '../lib/repeat'
import { SAMPLES_MAX, Series, type Values } from './series'

/** Shortest time between two redraws of what hangs on samples. */
const REDRAW_MS = 250
/** Pause before a connection that ended for good is made anew, and before a history that was not read is asked for again. */
const RETRY_MS = 2_000
/** How often the whole status is read; events bring the loops and the engine in between. */
const STATUS_MS = 5_000

interface Sample {
  at_ms: number
  values: Values
  why: Omit<Why, 'object'>
}

type Timer = ReturnType<typeof setTimeout>

class Live {
  status = $state.raw<Status | null>(null)
  why = $state.raw<Why | null>(null)
  connected = $state(false)
  private unread = $state({ status: '', series: '' })
  /** Why something could not be read. */
  failure = $derived(this.unread.status || this.unread.series)
  /** What was measured before this page looked is there. */
  filled = $state(false)
  readonly series = new Series()
  /** Grows when `series` has changed; charts read it to know. */
  tick = $state(0)
  stepMs = $state(2_000)

  private users = 0
  private source: EventSource | null = null
  private stopReading = () => {}
  private readonly ask = newest()
  private again: Timer | undefined
  private fillAgain: Timer | undefined
  /** Which ask for the history is the last; the answer to any other is dropped. */
  private fills = 0
  /** Samples that arrive while older ones are asked for. */
  private held: Sample[] | null = null
  private due: Timer | null = null

  /** Follows while somebody looks; gives the function that stops. */
  follow(): () => void {
    if (++this.users === 1) this.start()
    return () => {
      if (--this.users === 0) this.stop()
    }
  }

  private start() {
    document.addEventListener('visibilitychange', this.look)
    this.look()
  }

  private stop() {
    document.removeEventListener('visibilitychange', this.look)
    this.leave()
  }

  /** A hidden page lets its connection go: a browser has few for all of its tabs. */
  private readonly look = () => {
    if (document.hidden) this.leave()
    else this.enter()
  }

  private enter() {
    if (this.source) return
    this.connect()
    this.stopReading = repeat(() => this.refresh(), STATUS_MS)
  }

  private leave() {
    this.source?.close()
    this.source = null
    this.connected = false
    this.fills += 1
    this.stopReading()
    clearTimeout(this.again)
    clearTimeout(this.fillAgain)
  }

  /** The parts that events do not bring. */
  async refresh() {
    const isNewest = this.ask()
    try {
      const [status, why] = await Promise.all([get<Status>('/admin/v1/status'), get<Why>('/admin/v1/why')])
      if (!isNewest()) return
      this.status = status
      this.why = why
      this.unread.status = ''
    } catch (error) {
      if (isNewest()) this.unread.status = explain(error)
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
      if (this.source === source) this.again = setTimeout(() => this.connect(), RETRY_MS)
    }
    source.addEventListener('status', (event) => this.onStatus(JSON.parse(event.data)))
    source.addEventListener('sample', (event) => this.onSample(JSON.parse(event.data)))
  }

  /** What was measured before this page looked, or while the connection was down. */
  private async fill() {
    const mine = ++this.fills
    clearTimeout(this.fillAgain)
    this.held ??= []
    try {
      const since = this.series.newestMs
      const reply = await get<SeriesReply>('/admin/v1/series', { since_ms: since })
      if (mine !== this.fills) return
      this.stepMs = reply.step_ms
      if (this.series.merge(reply.data) > 0) this.tick += 1
      this.filled = true
      this.unread.series = ''
    } catch (error) {
      if (mine !== this.fills) return
      this.unread.series = explain(error)
      this.fillAgain = setTimeout(() => void this.fill(), RETRY_MS)
      return
    }
    // Only now: a newer sample would close the gap that is to be filled.
    const held = this.held ?? []
    this.held = null
    held.forEach((sample) => this.add(sample))
  }

  private onStatus(part: Pick<Status, 'loops' | 'engine' | 'scopes_with_policy'>) {
    if (this.status) {
      const { loops, engine, scopes_with_policy } = part
      this.status = { ...this.status, loops, engine, scopes_with_policy }
    }
  }

  private onSample(sample: Sample) {
    this.why = { object: 'why', ...sample.why }
    if (!this.held) return this.add(sample)
    this.held.push(sample)
    if (this.held.length > SAMPLES_MAX) this.held.shift()
  }

  private add(sample: Sample) {
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
