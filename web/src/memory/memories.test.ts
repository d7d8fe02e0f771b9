import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { broughtWords, everyMemory, FILE_CHARS_MAX, findMemories, forgetMemory, MemoryList, sessionOf } from './memories.svelte'

/** What the server has, newest first: the texts are the ids. */
let there: string[]
let asked: string[]
/** What it refuses the next change with. */
let refusal: { status: number; code: string; message: string } | null

const row = (id: string) => ({ object: 'memory', id, text: id })

/** Cursors are places from the end, which newer memories do not move. */
function page(query: URLSearchParams) {
  const limit = Number(query.get('limit'))
  const from = query.has('before') ? there.length - Number(query.get('before')) : 0
  const data = there.slice(from, from + limit).map(row)
  const left = there.length - from - data.length
  return Response.json({ object: 'list', data, next: left > 0 ? String(left) : null, mode: 'off', mode_max: 'full' })
}

async function answer(path: string, { method, body }: { method: string; body?: string }) {
  asked.push(`${method} ${path}`)
  const { pathname, searchParams } = new URL(path, 'http://hone')
  const id = pathname.split('/')[3]
  if (method === 'GET') return page(searchParams)
  if (refusal) return Response.json({ error: refusal }, { status: refusal.status })
  if (pathname.endsWith('/import')) {
    const { markdown } = JSON.parse(body ?? '') as { markdown: string }
    there = [markdown, ...there]
    return Response.json({ added: 1, same: 0, refused: 0, reasons: [] })
  }
  if (method === 'POST') {
    const { text } = JSON.parse(body ?? '') as { text: string }
    const isNew = !there.includes(text)
    if (isNew) there = [text, ...there]
    return Response.json(row(text), { status: isNew ? 201 : 200 })
  }
  if (method === 'PATCH') return Response.json({ ...row(id ?? ''), ...JSON.parse(body ?? '') })
  if (id && !there.includes(id)) return Response.json({ error: { message: 'no memory of yours' } }, { status: 404 })
  there = id ? there.filter((other) => other !== id) : []
  return Response.json({})
}

const ids = (list: MemoryList) => list.rows.map((row) => row.id)
const many = (count: number) => Array.from({ length: count }, (_, at) => `m${count - at}`)

beforeEach(() => {
  there = many(120)
  asked = []
  refusal = null
  vi.stubGlobal('fetch', answer)
})
afterEach(() => vi.unstubAllGlobals())

it('the list comes page by page, and a newer memory does not lose the pages that were shown', async () => {
  const list = new MemoryList()
  await list.load()
  expect([ids(list).length, list.rows[0]?.id, list.next]).toEqual([50, 'm120', '70'])
  await list.more()
  expect([ids(list).length, list.next]).toEqual([100, '20'])
  there = there.filter((id) => id !== 'm119')
  there = ['new', ...there]
  await list.load()
  expect([ids(list).length, ids(list).slice(0, 3)]).toEqual([100, ['new', 'm120', 'm118']])
  await list.more()
  expect([ids(list), list.next]).toEqual([there, null])
})

it('what has gone elsewhere goes here, also where one page is all', async () => {
  const list = new MemoryList()
  there = many(3)
  await list.load()
  there = []
  await list.load()
  expect([ids(list), list.loaded]).toEqual([[], true])
})

it('an answer that was asked for before something was forgotten does not bring it back', async () => {
  there = many(2)
  const list = new MemoryList()
  await list.load()
  let late = () => {}
  vi.stubGlobal('fetch', async (path: string, options: { method: string }) => {
    const found = await answer(path, options)
    if (options.method === 'GET') await new Promise<void>((go) => (late = go))
    return found
  })
  const looked = list.load()
  await vi.waitFor(() => expect(asked.length).toBe(2))
  await list.forget('m2')
  late()
  await looked
  expect(ids(list)).toEqual(['m1'])
})

it('a change shows at once, and so does that one was added or is there already', async () => {
  there = many(2)
  const list = new MemoryList()
  await list.load()
  await list.change('m1', { paused: true })
  expect(list.rows[1]).toMatchObject({ id: 'm1', paused: true })
  expect(await list.add('I own a boat.', 'fact')).toBe(true)
  expect(ids(list)).toEqual(['I own a boat.', 'm2', 'm1'])
  expect(await list.add('I own a boat.', 'fact')).toBe(false)
  await list.forgetAll()
  expect([ids(list), there]).toEqual([[], []])
})

it('what was forgotten already counts as forgotten', async () => {
  await forgetMemory('m1')
  await forgetMemory('m1')
  refusal = { status: 503, code: 'ledger_failed', message: 'the ledger does not answer' }
  await expect(forgetMemory('m2')).rejects.toMatchObject({ status: 503 })
})

it.each([
  [403, 'learning_off', 'nothing is kept of you, as you decided (PUT /v1/consent)', /Choose “Learn from me”/],
  [409, 'memory_conflict', 'memory mem_1 says the same', /^Another memory says the same\. Forget one/],
  [409, 'memory_conflict', 'there are 10000 memories already; forget some first', /forget some first/],
  [400, 'invalid_value', 'a memory is written into prompts, and this looks like a password', /a password\. Leave that out/],
  [404, 'not_found', 'no memory mem_1 of yours is known', /^It was forgotten in the meantime\.$/],
])('a change that is refused with %i %s says what to do', async (status, code, message, words) => {
  refusal = { status, code, message }
  const list = new MemoryList()
  await list.load()
  await expect(list.change('m1', { text: 'x' })).rejects.toThrow(words)
  await expect(list.add('x', 'fact')).rejects.toThrow(words)
  expect(list.rows[0]?.text).toBe('m120')
})

it('those of an answer are found wherever they are, in its order', async () => {
  there = many(450)
  const found = await findMemories(['m3', 'm449', 'gone'])
  expect(found.map((memory) => memory.id)).toEqual(['m3', 'm449'])
  expect(asked.length).toBe(3)
  asked = []
  await findMemories(['m450', 'm449'])
  expect(asked).toEqual(['GET /v1/memories?limit=200'])
})

it('all of them are taken home', async () => {
  there = many(1_000)
  expect((await everyMemory()).map((memory) => memory.id)).toEqual(there)
  there = []
  expect(await everyMemory()).toEqual([])
})

it('a chat that was forgotten is said to be', async () => {
  vi.stubGlobal('fetch', async () => Response.json({ error: { message: 'no such turn' } }, { status: 404 }))
  await expect(sessionOf('turn_1')).rejects.toThrow('The chat that it comes from was forgotten.')
  vi.stubGlobal('fetch', async () => Response.json({ session_id: 'sess_1' }))
  expect(await sessionOf('turn_1')).toBe('sess_1')
})

it('what a file brings is listed, and one that is too large is not sent', async () => {
  const list = new MemoryList()
  expect(await list.bring('I own a boat.')).toMatchObject({ added: 1 })
  expect(list.rows[0]?.text).toBe('I own a boat.')
  asked = []
  await expect(list.bring('x'.repeat(FILE_CHARS_MAX + 1))).rejects.toThrow('bring it in parts')
  expect(asked).toEqual([])
})

it('what became of a file is said in words', () => {
  const none = { object: 'memories.imported', same: 0, refused: 0, reasons: [] }
  expect(broughtWords({ ...none, added: 1 })).toBe('1 new memory from the file.')
  const reasons = [{ line: 4, reason: 'a memory has at most 500 characters' }]
  const words = '2 new memories from the file, 3 already known, 1 left out. Line 4: a memory has at most 500 characters.'
  expect(broughtWords({ ...none, added: 2, same: 3, refused: 1, reasons })).toBe(words)
})
