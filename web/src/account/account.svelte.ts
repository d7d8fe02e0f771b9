/** Who is here, and what they allowed. */

import { ApiError, call, explain, get, post, useCsrf, whenCsrfIsStale, whenSignedOut } from '../api/client'
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
  /** Whether it ended because one chose another password here. */
  isRenewed = $state(false)
  /** Whether something is written that a fresh page would not have. */
  isWriting = false
  isAdmin = $derived(this.me?.role === 'admin' || this.me?.role === 'auditor')
  mayChange = $derived(this.me?.role === 'admin')
  /** Agents are made and keys are handed out by who writes programs. */
  makesKeys = $derived(this.me?.role === 'admin' || this.me?.role === 'developer')
  /** Tasks are tried by who writes programs, too. */
  triesTasks = $derived(this.makesKeys)

  private checking: Promise<boolean> | null = null
  /** How often one decided about learning here. */
  private decisions = 0

  constructor() {
    whenSignedOut(() => this.forget())
    whenCsrfIsStale(() => this.check())
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

  /**
   * Another tab may have signed in anew, decided otherwise about learning, or signed in somebody
   * else: then this page begins anew, and nothing it was about to do is done in their name. So it
   * does where nobody was here. Says whether the same person is here.
   */
  check(): Promise<boolean> {
    // A page that comes to sight gets the focus as well.
    this.checking ??= this.look().finally(() => (this.checking = null))
    return this.checking
  }

  private async look(): Promise<boolean> {
    if (this.phase === 'failed') await this.load()
    else if (this.phase === 'out') await this.lookForSomebody()
    else if (this.phase === 'in') return this.lookWhoIsHere()
    return false
  }

  private async lookForSomebody() {
    if (this.isWriting) return
    try {
      await get<Me>('/v1/me')
    } catch {
      // Nobody is, still.
      return
    }
    if (this.phase === 'out' && !this.isWriting) beginAnew()
  }

  private async lookWhoIsHere(): Promise<boolean> {
    let me: Me
    try {
      me = await get<Me>('/v1/me')
    } catch {
      // Nobody is signed in, and the page shows that already; or no answer came, and the next look asks again.
      return false
    }
    if (this.phase !== 'in') return false
    if (me.name !== this.me?.name) {
      this.forget()
      beginAnew()
      return false
    }
    this.welcome(me)
    return true
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

  /** Every sign-in ends with the old password, this one too. */
  async changePassword(old: string, fresh: string) {
    await post('/v1/auth/password', { old, new: fresh })
    this.isRenewed = true
    this.forget()
  }

  async signOut() {
    await post('/v1/auth/sign-out')
    this.phase = 'loading'
    location.hash = ''
    keepDraft('', '')
    beginAnew()
  }

  /** Decides about learning. What is not said stays as it was: a default stays a default. */
  async decide(said: { learning: Consent; holdback?: boolean; despite_store_false?: boolean }) {
    this.consent = await call<ConsentView>('PUT', '/v1/consent', { body: said })
    this.decisions += 1
  }

  private welcome(me: Me) {
    useCsrf(me.csrf)
    this.me = me
    this.phase = 'in'
    void this.readConsent()
  }

  private async readConsent() {
    const then = this.decisions
    try {
      const found = await get<ConsentView>('/v1/consent')
      // What was decided here meanwhile is newer.
      if (this.decisions === then) this.consent = found
    } catch {
      // The switch is not shown before it is known where it stands; the next look asks again.
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
