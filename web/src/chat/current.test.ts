import { afterEach, expect, it, vi } from 'vitest'
import { Conversation } from './conversation.svelte'
import { current } from './current.svelte'

/** A server that never answers: only stopping ends a request. */
function silent() {
  vi.stubGlobal('fetch', (_: string, { signal }: { signal: AbortSignal }) => {
    return new Promise((_, refuse) => {
      if (signal.aborted) refuse(signal.reason)
      signal.addEventListener('abort', () => refuse(signal.reason))
    })
  })
}

afterEach(() => void vi.unstubAllGlobals())

it('a chat that was left is kept until it is answered', async () => {
  silent()
  const chat = new Conversation('sess_1', 'chat-1')
  const followed = current.follow(chat, chat.say('a long question', 'm'))
  expect(current.heldOf('sess_1')).toBe(chat)
  expect(current.heldOf('sess_2')).toBeUndefined()
  chat.stop()
  await followed
  expect(current.heldOf('sess_1')).toBeUndefined()
})

it('what failed while one looked elsewhere is there when one looks again', async () => {
  vi.stubGlobal('fetch', async () => new Response('{}', { status: 503 }))
  const chat = new Conversation('sess_1', 'chat-1')
  await current.follow(chat, chat.say('a long question', 'm'))
  expect(current.heldOf('sess_1')).toBe(chat)
  // In sight it was told.
  current.chat = chat
  await current.follow(chat, chat.say('again', 'm'))
  expect(current.heldOf('sess_1')).toBeUndefined()
})

it('what was forgotten is neither shown nor waited for', async () => {
  silent()
  const [gone, stays] = [new Conversation('sess_1', 'chat-1'), new Conversation('sess_2', 'chat-2')]
  const followed = current.follow(gone, gone.say('a long question', 'm'))
  current.chat = stays
  current.forget((chat) => chat.sessionId === 'sess_1')
  await followed
  expect(gone.nodes.map((node) => node.state)).toEqual(['stopped'])
  expect(current.chat).toBe(stays)
  current.forget(() => true)
  expect(current.chat.sessionId).toBeNull()
  expect(current.chat.nodes).toEqual([])
})
