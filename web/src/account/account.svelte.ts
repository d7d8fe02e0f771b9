/** Who is here, and what they allowed. */

import { ApiError, call, explain, get, post, useCsrf, whenSignedOut } from '../api/client'
import type { Consent, ConsentView, Me } from '../api/types'
import { keepDraft } from '../chat/draft'

/** What one person was shown must not be there for the next: only a fresh page is surely empty. */
function beginAnew() {
  location.reload()
}

class Account {
  me = $state<Me | null>(null)
  consent = $state<ConsentView | null>(null)
  phase = $state<'loading' | 'in' | 'out' | 'failed'>('loading')
  failure = $state('')
  /** Whether a session ended while the page was in use. */
  ended = $state(false)
  isAdmin = $derived(this.me?.role === 'admin' || this.me?.role === 'auditor')
  mayChange = $derived(this.me?.role === 'admin')
  /** Agents are made and keys are handed out by who writes programs. */
  makesKeys = $derived(this.me?.role === 'admin' || this.me?.role === 'developer')

  constructor() {
    whenSignedOut(() => this.forget())
  }

  async load() {
    try {
      this.welcome(await get<Me>('/v1/me'))
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return this.forget()
      this.failure = explain(error)
      this.phase = 'failed'
    }
  }

  async signIn(name: string, password: string) {
    await post('/v1/auth/sign-in', { name, password })
    beginAnew()
  }

  async acceptInvite(token: string, name: string, password: string) {
    await post('/v1/auth/invite', { token, name, password })
    location.hash = '#/chat'
    beginAnew()
  }

  async signOut() {
    await post('/v1/auth/sign-out')
    this.phase = 'loading'
    location.hash = ''
    keepDraft('', '')
    beginAnew()
  }

  /** Decides about learning; what is not said stays. */
  async decide(learning: Consent, holdback = this.consent?.holdback) {
    this.consent = await call<ConsentView>('PUT', '/v1/consent', { body: { learning, holdback } })
  }

  private welcome(me: Me) {
    useCsrf(me.csrf)
    this.me = me
    this.phase = 'in'
    void this.readConsent()
  }

  private async readConsent() {
    try {
      this.consent = await get<ConsentView>('/v1/consent')
    } catch {
      // The switch is not shown while nobody knows where it stands; the next load asks again.
      this.consent = null
    }
  }

  private forget() {
    useCsrf(null)
    this.ended ||= this.phase === 'in'
    this.me = null
    this.consent = null
    this.phase = 'out'
  }
}

export const account = new Account()
