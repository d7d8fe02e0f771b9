import { beforeEach, expect, it, vi } from 'vitest'
import { post } from '../api/client'
import { account } from './account.svelte'

/** What the server knows of the browser's session. */
let session: { name: string; csrf: string } | null
let learning: string
let acts: string[]
/** What was decided about learning, as it was sent. */
let decided: unknown[]
const reload = vi.fn()

async function answer(path: string, { method, headers, body }: { method: string; headers: Record<string, string>; body?: string }) {
  if (session === null) return Response.json({ error: { message: 'sign in', code: 'unauthorized' } }, { status: 401 })
  if (path === '/v1/me') return Response.json({ ...session, role: 'user', via: 'session', team: null })
  if (path === '/v1/consent' && method === 'PUT') decided.push(JSON.parse(body ?? ''))
  if (path === '/v1/consent') return Response.json({ learning, holdback: true })
  if (headers['x-hone-csrf'] !== session.csrf) {
    return Response.json({ error: { message: 'with a cookie this needs the header', code: 'csrf' } }, { status: 403 })
  }
  acts.push(`${method} ${path} by ${session.name}`)
  return Response.json({})
}

beforeEach(async () => {
  session = { name: 'ann', csrf: 'first' }
  learning = 'full'
  acts = []
  decided = []
  account.isWriting = false
  reload.mockClear()
  vi.stubGlobal('fetch', answer)
  vi.stubGlobal('location', { reload })
  await account.load()
})

it('who signed in anew in another tab goes on acting here', async () => {
  session = { name: 'ann', csrf: 'second' }
  await post('/v1/feedback')
  expect(acts).toEqual(['POST /v1/feedback by ann'])
  expect(reload).not.toHaveBeenCalled()
})

it('nothing is done in the name of who signed in instead', async () => {
  session = { name: 'ben', csrf: 'second' }
  await expect(post('/v1/feedback')).rejects.toMatchObject({ code: 'csrf' })
  expect(acts).toEqual([])
  expect([account.me, reload.mock.calls.length]).toEqual([null, 1])
})

it('a look finds who is here and what they decided elsewhere', async () => {
  learning = 'off'
  expect(await account.check()).toBe(true)
  await vi.waitFor(() => expect(account.consent?.learning).toBe('off'))
  session = { name: 'ben', csrf: 'second' }
  expect(await account.check()).toBe(false)
  expect(reload).toHaveBeenCalledOnce()
})

it('what is decided here is not undone by an older answer', async () => {
  let late = () => {}
  vi.stubGlobal('fetch', async (path: string, asked: { method: string; headers: Record<string, string> }) => {
    if (path !== '/v1/consent') return answer(path, asked)
    if (asked.method === 'PUT') return Response.json({ learning: 'serve', holdback: true })
    await new Promise<void>((go) => (late = go))
    return Response.json({ learning: 'full', holdback: true })
  })
  await account.check()
  await account.decide({ learning: 'serve' })
  late()
  await new Promise((turn) => setTimeout(turn))
  expect(account.consent?.learning).toBe('serve')
})

it('what one did not touch is not sent as decided', async () => {
  await account.decide({ learning: 'serve' })
  await account.decide({ learning: 'full', holdback: false })
  await account.decide({ learning: 'full', despite_store_false: true })
  expect(decided).toEqual([
    { learning: 'serve' },
    { learning: 'full', holdback: false },
    { learning: 'full', despite_store_false: true },
  ])
})

it('a look finds that nobody is here any more', async () => {
  session = null
  expect(await account.check()).toBe(false)
  expect([account.phase, account.ended]).toEqual(['out', true])
})

it('a page where nobody was here begins anew once somebody is, unless one writes', async () => {
  session = null
  await account.check()
  await account.check()
  expect(reload).not.toHaveBeenCalled()
  session = { name: 'ann', csrf: 'second' }
  account.isWriting = true
  await account.check()
  expect(reload).not.toHaveBeenCalled()
  account.isWriting = false
  expect(await account.check()).toBe(false)
  expect(reload).toHaveBeenCalledOnce()
})

it('a page that found no server looks again', async () => {
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')))
  await account.load()
  expect(account.phase).toBe('failed')
  vi.stubGlobal('fetch', answer)
  await account.check()
  expect([account.phase, account.me?.name]).toEqual(['in', 'ann'])
})

it('another password ends this sign-in too, and says why', async () => {
  await account.changePassword('old', 'a long new one')
  expect(acts).toEqual(['POST /v1/auth/password by ann'])
  expect([account.phase, account.isRenewed]).toEqual(['out', true])
})

it('a server that does not answer is no reason to begin anew', async () => {
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')))
  expect(await account.check()).toBe(false)
  expect([account.phase, account.me?.name, reload.mock.calls.length]).toEqual(['in', 'ann', 0])
})
