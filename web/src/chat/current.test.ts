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

/** Ends an answer as the server does that keeps it, or keeps nothing. */
async function answered(chat: Conversation, collected: boolean) {
  const note = { collected, explanation: collected ? null : 'learning is off', policy_version: 0, reason: null, session_id: 'sess_new', turn_id: 'turn_new' }
  const chunk = JSON.stringify({ choices: [{ delta: { content: 'Hi.' }, finish_reason: 'stop' }], hone: note })
  const headers = { 'x-hone-turn-id': 'turn_new', 'x-hone-session-id': 'sess_new' }
  vi.stubGlobal('fetch', async () => new Response(`data: ${chunk}\n\ndata: [DONE]\n\n`, { headers }))
  await current.follow(chat, chat.say('hello', 'm'))
}

it('a chat has an address once the server keeps something of it', async () => {
  const chat = new Conversation(null, 'chat-1')
  expect(chat.address).toEqual(['chat'])
  await answered(chat, true)
  expect(chat.address).toEqual(['chat', 'sess_new'])
  expect([current.heldOf('sess_new'), current.unkept]).toEqual([undefined, []])
})

it('a chat of which nothing is kept has none, and stays as long as the page', async () => {
  const chat = new Conversation(null, 'chat-1')
  current.show(chat)
  await answered(chat, false)
  expect([chat.address, chat.nodes[0]?.isKept]).toEqual([['chat'], false])
  // A look elsewhere and back.
  await current.open(null)
  expect(current.chat).toBe(chat)
  current.show()
  expect(current.unkept).toEqual([chat])
  current.show(current.unkept[0])
  expect(current.chat).toBe(chat)
  current.forget(() => true)
  expect(current.unkept).toEqual([])
})

it('a chat that goes on where nothing more is kept is shown with all its words', async () => {
  const chat = new Conversation(null, 'chat-1')
  await answered(chat, true)
  await answered(chat, false)
  expect(chat.address).toEqual(['chat', 'sess_new'])
  expect([current.heldOf('sess_new'), current.unkept]).toEqual([chat, []])
  current.forget(() => true)
})

/** A server that answers with a session when it is told to. */
function slow() {
  const answers: ((turns: object[] | null) => void)[] = []
  vi.stubGlobal('fetch', (path: string) => {
    const id = path.split('?')[0]?.split('/').at(-1)
    return new Promise<Response>((give) => {
      answers.push((turns) => give(turns ? Response.json({ id, key: null, turns, next: null }) : new Response('{}', { status: 500 })))
    })
  })
  return answers
}

it('while another chat comes none is in sight, and the one asked for last counts', async () => {
  const old = new Conversation('sess_old', 'chat-old')
  current.show(old)
  const answers = slow()
  const asked = [current.open('sess_a'), current.open('sess_b')]
  expect([current.loading, current.isInSight]).toEqual([true, false])
  answers[0]?.([])
  await asked[0]
  expect([current.chat.sessionId, current.isInSight]).toEqual(['sess_old', false])
  answers[1]?.([])
  await asked[1]
  expect([current.chat.sessionId, current.isInSight]).toEqual(['sess_b', true])
})

it('a chat that is not there hides the one before, until one goes elsewhere', async () => {
  current.show(new Conversation('sess_old', 'chat-old'))
  const answers = slow()
  const asked = current.open('sess_a')
  answers[0]?.(null)
  await asked
  expect([current.lost, current.isInSight]).toEqual(['The server answered with status 500.', false])
  current.show()
  expect([current.lost, current.isInSight]).toEqual(['', true])
})
