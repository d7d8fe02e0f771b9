/** What people said once, kept for later chats: the list, and what is done to it. */

import { ApiError, call, explain, get, send } from '../api/client'
import type { Memories, MemoriesImported, Memory, MemoryKind, Turn } from '../api/types'
import { plural } from '../lib/format'
import { newest } from '../lib/repeat'

const PAGE = 50
/** Rows asked for at once where a few are looked for. */
const PAGE_MAX = 200
/** Pages looked through: there are at most 10,000 memories, of which the last page says that there are no more. */
const PAGES_MAX = 51
/** Characters of the largest file that is sent: twice the 10,000 × 500 that one can have. */
export const FILE_CHARS_MAX = 10_000_000

export const CHARS_MAX = 500

export const KINDS: Record<MemoryKind, string> = { fact: 'about you', preference: 'how to answer' }

export type Change = { text?: string; kind?: MemoryKind; paused?: boolean; holds?: true }

/** The list, newest first, page by page. */
export class MemoryList {
  rows = $state.raw<Memory[]>([])
  loaded = $state(false)
  failure = $state('')
  next = $state<string | null>(null)
  isBusy = $state(false)
  /** What is asked before something was changed here is older than that. */
  private readonly asks = newest()

  /** The newest page; older ones that were shown stay. */
  async load() {
    const isNewest = this.asks()
    try {
      const page = await pageOf(null, PAGE)
      if (!isNewest()) return
      this.take(page)
      this.loaded = true
      this.failure = ''
    } catch (error) {
      if (isNewest()) this.failure = explain(error)
    }
  }

  async more() {
    if (this.next === null || this.isBusy) return
    const isNewest = this.asks()
    this.isBusy = true
    try {
      const page = await pageOf(this.next, PAGE)
      if (!isNewest()) return
      this.rows = [...this.rows, ...page.data]
      this.next = page.next ?? null
      this.failure = ''
    } catch (error) {
      if (isNewest()) this.failure = explain(error)
    } finally {
      this.isBusy = false
    }
  }

  /** Adds one; whether it is new. */
  async add(text: string, kind: MemoryKind): Promise<boolean> {
    const reply = await inPageWords(() => send('POST', '/v1/memories', { body: { text, kind } }))
    await this.load()
    return reply.status === 201
  }

  /** Adds the entries of a Markdown file; what became of them. */
  async bring(markdown: string): Promise<MemoriesImported> {
    if (markdown.length > FILE_CHARS_MAX) throw new Error('The file is larger than all memories that one can have; bring it in parts.')
    const brought = await inPageWords(() => call<MemoriesImported>('POST', '/v1/memories/import', { body: { markdown } }))
    await this.load()
    return brought
  }

  async change(id: string, change: Change) {
    await this.act(async () => {
      const changed = await changeMemory(id, change)
      this.rows = this.rows.map((row) => (row.id === id ? changed : row))
    })
  }

  async forget(id: string) {
    await this.act(async () => {
      await forgetMemory(id)
      this.rows = this.rows.filter((row) => row.id !== id)
    })
  }

  async forgetAll() {
    await this.act(async () => {
      await call('DELETE', '/v1/memories')
      this.rows = []
      this.next = null
    })
  }

  /** What was asked before or meanwhile does not undo what is done here. */
  private async act(what: () => Promise<void>) {
    this.asks()
    try {
      await what()
    } finally {
      this.asks()
    }
  }

  private take(page: Memories) {
    const last = page.data.at(-1)?.id
    const at = page.next ? this.rows.findIndex((row) => row.id === last) : -1
    this.rows = at < 0 ? page.data : [...page.data, ...this.rows.slice(at + 1)]
    if (at < 0) this.next = page.next ?? null
  }
}

/** All that is remembered now, as a Markdown file. */
export const memoryFile = async (): Promise<string> => (await send('GET', '/v1/memories/export')).text()

/** What became of a file's entries, in a sentence or two. */
export function broughtWords({ added, same, refused, reasons }: MemoriesImported): string {
  const parts = [`${plural(added, 'new memory', 'new memories')} from the file`]
  if (same > 0) parts.push(`${same} already known`)
  if (refused > 0) parts.push(`${refused} left out`)
  const why = reasons.slice(0, 3).map(({ line, reason }) => `Line ${line}: ${reason}.`)
  return [`${parts.join(', ')}.`, ...why].join(' ')
}

export const changeMemory = (id: string, body: Change) => inPageWords(() => call<Memory>('PATCH', `/v1/memories/${id}`, { body }))

/** One that is forgotten already is forgotten. */
export async function forgetMemory(id: string) {
  try {
    await call('DELETE', `/v1/memories/${id}`)
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error
  }
}

/** The chat that a turn is of. */
export async function sessionOf(turnId: string): Promise<string> {
  try {
    return (await get<Turn>(`/v1/turns/${turnId}`)).session_id
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error
    throw new ApiError('The chat that it comes from was forgotten.', 404, error.code)
  }
}

/** Those of `ids` that are still there, in that order. */
export async function findMemories(ids: string[]): Promise<Memory[]> {
  const found = new Map<string, Memory>()
  for await (const memories of pages()) {
    for (const memory of memories) if (ids.includes(memory.id)) found.set(memory.id, memory)
    if (found.size === ids.length) break
  }
  return ids.flatMap((id) => found.get(id) ?? [])
}

export async function everyMemory(): Promise<Memory[]> {
  const all: Memory[] = []
  for await (const memories of pages()) all.push(...memories)
  return all
}

async function* pages(): AsyncGenerator<Memory[]> {
  let before: string | null = null
  for (let page = 0; page < PAGES_MAX; page++) {
    const { data, next }: Memories = await pageOf(before, PAGE_MAX)
    yield data
    before = next ?? null
    if (before === null) return
  }
}

const pageOf = (before: string | null, limit: number) => get<Memories>('/v1/memories', { before, limit })

/** What was refused, in the page's words where the server speaks to programs. */
async function inPageWords<T>(act: () => Promise<T>): Promise<T> {
  try {
    return await act()
  } catch (error) {
    if (!(error instanceof ApiError)) throw error
    throw new ApiError(wordsOf(error), error.status, error.code, error.retryAfterMs)
  }
}

function wordsOf({ status, code, message }: ApiError): string {
  if (code === 'learning_off') return 'Nothing of you is kept while learning is off. Choose “Learn from me” or “Use what was learned” first.'
  if (code === 'memory_conflict' && message.includes('says the same')) return 'Another memory says the same. Forget one of the two, or write something else.'
  if (status === 404) return 'It was forgotten in the meantime.'
  if (message.includes('looks like')) return `${explain(new ApiError(message, status))} Leave that out and try again.`
  return message
}
