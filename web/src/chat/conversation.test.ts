import { afterEach, expect, it, vi } from 'vitest'
import { account } from '../account/account.svelte'
import type { Fate, Me } from '../api/types'
import { setting } from '../memory/setting.svelte'
import { Conversation, TurnNode } from './conversation.svelte'

function tree(...turns: [id: string, parent: string | null][]): Conversation {
  const chat = new Conversation('sess_1', null)
  chat.nodes = turns.map(([id, parent], at) => new TurnNode(id, parent, [{ role: 'user', content: `to ${id}` }], at))
  return chat
}

afterEach(() => void vi.unstubAllGlobals())

const path = (chat: Conversation) => chat.path.map((node) => node.id).join(' ')
const node = (chat: Conversation, id: string) => {
  const found = chat.nodes.find((node) => node.id === id)
  if (!found) throw new Error(id)
  return found
}

it('shows the newest branch, and another one when it is chosen', () => {
  const chat = tree(['a', null], ['b', 'a'], ['c', 'b'], ['b2', 'a'])
  expect(path(chat)).toBe('a b2')
  chat.choose(node(chat, 'b'))
  expect(path(chat)).toBe('a b c')
  expect(chat.siblings(node(chat, 'b')).map((n) => n.id)).toEqual(['b', 'b2'])
})

it('a first message that was edited is a branch as well', () => {
  const chat = tree(['a', null], ['b', 'a'], ['a2', null])
  expect(path(chat)).toBe('a2')
  chat.choose(node(chat, 'a'))
  expect(path(chat)).toBe('a b')
})

it('a turn that names itself as its parent does not hang the page', () => {
  expect(path(tree(['a', 'a']))).toBe('')
  expect(path(tree(['a', null], ['b', 'c'], ['c', 'b']))).toBe('a')
})

it('what was said last is found among what was new', () => {
  const turn = new TurnNode('a', null, [
    { role: 'system', content: 'be kind' },
    { role: 'tool', content: '{}' },
    { role: 'user', content: 'hello' },
  ], 0)
  expect(turn.said).toBe('hello')
})

it.each([
  ['user', '', ''],
  ['system user', 'system', ''],
  ['user assistant tool', '', 'assistant tool'],
  ['system user assistant tool user', 'system user assistant tool', ''],
  ['tool', '', 'tool'],
])('%j: before the words stands %j, after them %j', (roles, before, after) => {
  const turn = new TurnNode('a', null, roles.split(' ').map((role) => ({ role, content: role })), 0)
  expect(turn.around.map((messages) => messages.map((m) => m.role).join(' '))).toEqual([before, after])
})

it('calls that a program told are shown and sent again as requests have them', async () => {
  const kept = { role: 'assistant', content: '', tool_calls: [{ id: 'c1', name: 'weather', arguments: '{}' }] }
  const turn = { turn_id: 'turn_a', kind: 'main', messages: [{ role: 'user', content: 'sunny?' }, kept], tool_calls: [], fate: {}, feedback: [] }
  vi.stubGlobal('fetch', async () => Response.json({ id: 'sess_1', key: null, turns: [turn], next: null }))
  const chat = await Conversation.load('sess_1')
  expect(chat.path[0]?.messages).toEqual([
    { role: 'user', content: 'sunny?' },
    { role: 'assistant', content: '', tool_calls: [{ id: 'c1', type: 'function', function: { name: 'weather', arguments: '{}' } }] },
  ])
})

it('what was forgotten elsewhere is not sent again', async () => {
  const asked: string[] = []
  vi.stubGlobal('fetch', async (path: string, { method }: { method: string }) => {
    asked.push(`${method} ${path}`)
    return new Response('{"error":{"message":"no such turn"}}', { status: 404 })
  })
  const chat = tree(['a', null])
  const said = node(chat, 'a')
  said.turnId = 'turn_a'
  said.state = 'done'
  said.fate = { state: 'pending' } as Fate
  await chat.say('go on', 'm')
  await chat.retry(said, 'm')
  expect(chat.forgotten).toBe(true)
  expect(asked).toEqual(['GET /v1/turns/turn_a'])
})

it.each([
  [400, true],
  [413, true],
  [422, true],
  [429, false],
  [503, false],
])('a message that failed with %i has to be edited: %s', async (status, refused) => {
  vi.stubGlobal('fetch', async () => new Response('{}', { status }))
  const chat = new Conversation(null, 'chat-1')
  const failed = await chat.say('too long', 'm')
  expect(failed.refused).toBe(refused)
  await chat.edit(failed, 'shorter', 'm')
  expect(chat.nodes.map((node) => node.said)).toEqual(['shorter'])
})

it('a new chat has a name of its own also where the page came over plain HTTP', () => {
  vi.stubGlobal('crypto', { getRandomValues: (bytes: Uint8Array) => bytes.fill(10) })
  expect(Conversation.fresh().key).toBe(`chat-${'0a'.repeat(16)}`)
})

/** A server that refuses what it is told to, and keeps what it was asked. */
function refusing(...statuses: number[]): string[][] {
  const asked: string[][] = []
  vi.stubGlobal('fetch', async (_: string, { body }: { body: string }) => {
    const { messages } = JSON.parse(body) as { messages: { content: string }[] }
    asked.push(messages.map((message) => message.content))
    return new Response('{}', { status: statuses.shift() ?? 503 })
  })
  return asked
}

it('a message that failed is not sent along with the next, and stays beside it', async () => {
  const asked = refusing(400, 503)
  const chat = tree(['a', null])
  node(chat, 'a').state = 'done'
  const failed = await chat.say('too long', 'm')
  const next = await chat.say('short', 'm')
  expect(asked).toEqual([
    ['to a', 'too long'],
    ['to a', 'short'],
  ])
  expect(path(chat)).toBe(`a ${next.id}`)
  expect(chat.siblings(next).map((sibling) => sibling.said)).toEqual(['too long', 'short'])
  chat.choose(failed)
  expect(path(chat)).toBe(`a ${failed.id}`)
})

it('what failed in the middle of its answer is gone on from', async () => {
  const asked = refusing()
  const chat = tree(['a', null])
  Object.assign(node(chat, 'a'), { state: 'failed', completion: 'half' })
  await chat.say('go on', 'm')
  expect(asked).toEqual([['to a', 'half', 'go on']])
})

/** A server that never answers: only stopping ends a request. */
function silent() {
  vi.stubGlobal('fetch', (_: string, { signal }: { signal: AbortSignal }) => {
    return new Promise((_, refuse) => {
      if (signal.aborted) refuse(signal.reason)
      signal.addEventListener('abort', () => refuse(signal.reason))
    })
  })
}

it('stops the answer in sight, and another branch by itself', async () => {
  silent()
  const chat = tree(['a', null], ['b', null])
  chat.nodes.forEach((node) => (node.state = 'done'))
  const answers = [chat.say('after b', 'm')]
  chat.choose(node(chat, 'a'))
  answers.push(chat.say('after a', 'm'))
  const states = () => chat.nodes.slice(2).map((node) => node.state)

  chat.choose(node(chat, 'b'))
  chat.stop()
  await answers[0]
  expect(states()).toEqual(['stopped', 'waiting'])
  expect(chat.live).toBe(false)
  chat.choose(node(chat, 'a'))
  expect(chat.live).toBe(true)
  chat.stop()
  await answers[1]
  expect(states()).toEqual(['stopped', 'stopped'])
})

it('a request says what one chose about memories, and the answer names those it was shown', async () => {
  const bodies: { hone?: unknown }[] = []
  const note = (memories?: string[]) => ({ collected: true, policy_version: 0, turn_id: 'turn_a', session_id: 'sess_a', memories })
  const notes = [note(), note(['mem_1', 'mem_2'])]
  vi.stubGlobal('fetch', async (_: string, { body }: { body: string }) => {
    bodies.push(JSON.parse(body))
    const chunk = { choices: [{ delta: { content: 'Hi.' }, finish_reason: 'stop' }], hone: notes.shift() }
    return new Response(`data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`)
  })
  account.me = { name: 'ann' } as Me
  const first = await new Conversation(null, 'chat-1').say('hello', 'm')
  setting.set('full')
  const second = await new Conversation(null, 'chat-2').say('hello', 'm')
  account.me = null
  expect(bodies.map((body) => body.hone)).toEqual([undefined, { memory: 'full' }])
  expect([first.memories, second.memories]).toEqual([[], ['mem_1', 'mem_2']])
})
