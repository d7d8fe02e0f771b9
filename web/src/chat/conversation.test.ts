import { expect, it, vi } from 'vitest'
import type { Fate } from '../api/types'
import { Conversation, TurnNode } from './conversation.svelte'

function tree(...turns: [id: string, parent: string | null][]): Conversation {
  const chat = new Conversation('sess_1', null)
  chat.nodes = turns.map(([id, parent], at) => new TurnNode(id, parent, [{ role: 'user', content: `to ${id}` }], at))
  return chat
}

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
  vi.unstubAllGlobals()
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
  vi.unstubAllGlobals()
  expect(chat.nodes.map((node) => node.said)).toEqual(['shorter'])
})
