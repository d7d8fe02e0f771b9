/** Who is here, and what they allowed. */

import { ApiError, call, explain, get, post, useCsrf, whenSignedOut } from '../api/client'
import type { Consent, Me } from '../api/types'

/** Who calls a server that knows no people: whoever sits at it. */
const LOCAL: Me = { name: 'local', role: 'admin', via: 'loopback', csrf: null, users_exist: false, consent: 'full' }

class Account {
  me = $state<Me | null>(null)
  phase = $state<'loading' | 'in' | 'out' | 'failed'>('loading')
  failure = $state('')
  isAdmin = $derived(this.me?.role === 'admin' || this.me?.role === 'auditor')
  mayChange = $derived(this.me?.role === 'admin')

  constructor() {
    whenSignedOut(() => this.forget())
  }

  async load() {
    try {
      this.welcome(await get<Me>('/v1/me'))
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return this.forget()
      if (error instanceof ApiError && error.code === 'unknown_url') return this.welcome(LOCAL)
      this.failure = explain(error)
      this.phase = 'failed'
    }
  }

  async signIn(name: string, password: string) {
    await post('/v1/auth/sign-in', { name, password })
    await this.load()
  }

  async acceptInvite(token: string, name: string, password: string) {
    await post('/v1/auth/invite', { token, name, password })
    await this.load()
  }

  async signOut() {
    await post('/v1/auth/sign-out')
    this.forget()
  }

  async consent(learning: Consent) {
    await call('PUT', '/v1/consent', { body: { learning } })
    if (this.me) this.me.consent = learning
  }

  private welcome(me: Me) {
    useCsrf(me.csrf)
    this.me = me
    this.phase = 'in'
  }

  private forget() {
    useCsrf(null)
    this.me = null
    this.phase = 'out'
  }
}

export const account = new Account()
