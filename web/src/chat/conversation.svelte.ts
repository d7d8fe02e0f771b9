/**
 * One conversation as a tree: a node is what was said and the answer to it. Editing or retrying
 * adds a sibling; the path in sight follows the chosen child at every fork.
 */

import { ApiError, explain } from '../api/client'
import type { Fate, Feedback, HoneNote, KeptMessage, Message, ShownSkill, ToolCall } from '../api/types'
import { setting } from '../memory/setting.svelte'
import { complete } from './complete'
import { refreshFate } from './fates'
import { ownFeedback } from './feedback'
import { loadSession } from './session'

export type NodeState = 'waiting' | 'streaming' | 'done' | 'stopped' | 'failed'

export class TurnNode {
  readonly id: string
  readonly parent: string | null
  /** What is new before this answer; the last is usually the person's. */
  messages: Message[]
  completion = $state('')
  reasoning = $state('')
  tools = $state<ToolCall[]>([])
  state = $state<NodeState>('waiting')
  stop = $state<string | null>(null)
  failure = $state('')
  /** Whether the same request would be refused again: it has to be edited. */
  refused = $state(false)
  turnId = $state<string | null>(null)
  version = $state<number | null>(null)
  note = $state<HoneNote | null>(null)
  fate = $state<Fate | null>(null)
  feedback = $state<Feedback | null>(null)
  /** The memories that its prompt showed; null while nobody knows. */
  memories = $state.raw<string[] | null>(null)
  /** The skills that its prompt showed. */
  skills = $state.raw<ShownSkill[]>([])
  /** How often the server did not know it. */
  misses = $state(0)
  startedMs: number
  /** What ends its answer early, while it is asked for. */
  abort: AbortController | null = null

  constructor(id: string, parent: string | null, messages: Message[], startedMs: number) {
    this.id = id
    this.parent = parent
    this.messages = messages
    this.startedMs = startedMs
  }

  /** The answer as the next request repeats it. */
  answer(): Message {
    const message: Message = { role: 'assistant', content: this.completion }
    if (this.tools.length) message.tool_calls = $state.snapshot(this.tools)
    return message
  }

  get said(): string {
    return this.messages.findLast((m) => m.role === 'user')?.content ?? ''
  }

  /** What came before the person's words and after them: instructions, calls of tools, their results. */
  get around(): [before: Message[], after: Message[]] {
    const at = this.messages.findLastIndex((m) => m.role === 'user')
    return [this.messages.slice(0, Math.max(at, 0)), this.messages.slice(at + 1)]
  }

  get live(): boolean {
    return this.state === 'waiting' || this.state === 'streaming'
  }

  /** Whether the server keeps it; null while nobody knows. */
  get isKept(): boolean | null {
    // What waits on the server's disk for its database is kept as well.
    if (this.note) return this.note.collected !== false
    if (this.fate) return true
    // Whoever ended early was told nothing about it.
    return this.misses < MISSES_MAX ? null : false
  }

  /** Whether it failed with nothing to show for it: the talk does not go on from there. */
  get barren(): boolean {
    return this.state === 'failed' && !this.completion && !this.tools.length
  }
}

/** Statuses that the same request gets again: malformed, too long, not to be processed. */
const REFUSALS = [400, 413, 422]

/** How often a turn may not be known before it counts as not kept: it is written a moment after it ended. */
const MISSES_MAX = 3

/** Longest pause between two times that text is put on the page. */
const PAINT_MS = 33

export class Conversation {
  /** The server's id, once it is known. */
  sessionId = $state<string | null>(null)
  /** What requests are sent under. */
  key: string | null
  nodes = $state<TurnNode[]>([])
  /** Which child is in sight, by parent. */
  chosen = $state<Record<string, string>>({})
  /** Whether what it would go on from was forgotten elsewhere. Its words are not sent again. */
  forgotten = $state(false)
  private count = 0

  path = $derived(this.pathOf())
  /** Whether the server has something of it, so that its address leads to it. */
  isKept = $derived(this.nodes.some((node) => node.isKept === true))
  /** Whether an answer in sight is still coming. */
  live = $derived(this.path.some((node) => node.live))

  constructor(sessionId: string | null, key: string | null) {
    this.sessionId = sessionId
    this.key = key
  }

  /** Where it is found again. */
  get address(): string[] {
    return this.isKept && this.sessionId !== null ? ['chat', this.sessionId] : ['chat']
  }

  static fresh(): Conversation {
    return new Conversation(null, `chat-${randomId()}`)
  }

  static async load(id: string, signal?: AbortSignal): Promise<Conversation> {
    const view = await loadSession(id, signal)
    const conversation = new Conversation(view.id, view.key ?? null)
    const known = new Set(view.turns.map((turn) => turn.turn_id))
    // Titles and summaries that programs ask for on the side are no part of the talk.
    conversation.nodes = view.turns.filter((turn) => turn.kind === 'main').map((turn) => {
      const parent = turn.parent_id && known.has(turn.parent_id) ? turn.parent_id : null
      const node = new TurnNode(turn.turn_id, parent, turn.messages.map(asSent), turn.started_ms)
      node.turnId = turn.turn_id
      node.completion = turn.content
      node.reasoning = turn.reasoning
      node.tools = turn.tool_calls
      node.version = turn.policy_version
      node.fate = turn.fate
      node.feedback = ownFeedback(turn.feedback)
      node.state = turn.fate.reason === 'cancelled' ? 'stopped' : 'done'
      return node
    })
    return conversation
  }

  siblings(node: TurnNode): TurnNode[] {
    return this.nodes.filter((other) => other.parent === node.parent)
  }

  choose(node: TurnNode) {
    this.chosen[node.parent ?? ''] = node.id
  }

  private pathOf(): TurnNode[] {
    const children = new Map<string, TurnNode[]>()
    for (const node of this.nodes) {
      const at = node.parent ?? ''
      children.set(at, [...(children.get(at) ?? []), node])
    }
    const path: TurnNode[] = []
    for (let at = ''; ; ) {
      const here = children.get(at)
      const next = here?.find((node) => node.id === this.chosen[at]) ?? here?.at(-1)
      if (!next || path.includes(next)) return path
      path.push(next)
      at = next.id
    }
  }

  /** Says something after the last answer in sight. What failed before it becomes a branch beside it. */
  say(text: string, model: string) {
    const parent = this.path.findLast((node) => !node.barren) ?? null
    return this.ask([{ role: 'user', content: text }], model, parent)
  }

  /** Says something else instead of what led to `node`. */
  edit(node: TurnNode, text: string, model: string) {
    const messages = [...node.messages]
    const last = messages.findLastIndex((m) => m.role === 'user')
    messages[last < 0 ? messages.length : last] = { role: 'user', content: text }
    this.makePlace(node)
    return this.ask(messages, model, this.find(node.parent), node)
  }

  /** Asks for another answer to the same. */
  retry(node: TurnNode, model: string) {
    this.makePlace(node)
    return this.ask(node.messages, model, this.find(node.parent), node)
  }

  /** Stops the answer in sight, or those to all of `nodes`. */
  stop(nodes = this.path) {
    for (const node of nodes) node.abort?.abort()
  }

  /** One that failed without a word is no branch to go back to. */
  private makePlace(node: TurnNode) {
    if (node.barren) this.nodes = this.nodes.filter((n) => n !== node)
  }

  private find(id: string | null): TurnNode | null {
    return this.nodes.find((node) => node.id === id) ?? null
  }

  /** Everything up to and with `node`, as the server wants it. */
  private history(node: TurnNode | null): Message[] {
    const parts: Message[] = []
    for (let at = node; at; at = this.find(at.parent)) {
      const answer = at.completion || at.tools.length ? [at.answer()] : []
      parts.unshift(...at.messages, ...answer)
    }
    return parts
  }

  /** `instead` is the branch that the new one stands beside. */
  private async ask(messages: Message[], model: string, parent: TurnNode | null, instead: TurnNode | null = null) {
    const node = new TurnNode(`local-${++this.count}`, parent?.id ?? null, messages, Date.now())
    this.nodes.push(node)
    this.choose(node)
    const abort = (node.abort = new AbortController())
    const paint = new Painter(node)
    try {
      const from = instead?.turnId ? instead : parent
      this.forgotten ||= from !== null && (await refreshFate(from))
      if (this.forgotten) throw new ApiError('This chat was forgotten.', 404, 'forgotten')
      const request = { model, messages: [...this.history(parent), ...messages], session_id: this.key ?? undefined, hone: setting.wish }
      await complete(request, this.listener(node, paint), abort.signal)
      paint.flush()
      node.state = 'done'
    } catch (error) {
      paint.flush()
      node.state = abort.signal.aborted ? 'stopped' : 'failed'
      if (!abort.signal.aborted) node.failure = describe(error)
      node.refused = error instanceof ApiError && REFUSALS.includes(error.status)
    } finally {
      node.abort = null
    }
    return node
  }

  private listener(node: TurnNode, paint: Painter) {
    return {
      begun: (turnId: string | null, sessionId: string | null, version: number | null) => {
        node.turnId = turnId
        node.version = version
        this.sessionId ??= sessionId
        node.state = 'streaming'
      },
      text: (piece: string) => paint.add(piece),
      reasoning: (piece: string) => {
        node.reasoning += piece
      },
      tool: (index: number, call: ToolCall) => mergeTool(node.tools, index, call),
      ended: (reason: string | null, note: HoneNote | null) => {
        paint.flush()
        node.stop = reason
        node.note = note
        if (note) node.version = note.policy_version
        if (note) node.memories = note.memories ?? []
        if (note) node.skills = note.skills ?? []
      },
    }
  }
}

/** Puts text on the page at most once a frame or so, however fast tokens come. */
class Painter {
  private held = ''
  private timer: ReturnType<typeof setTimeout> | null = null

  constructor(private readonly node: TurnNode) {}

  add(piece: string) {
    this.held += piece
    this.timer ??= setTimeout(() => this.flush(), PAINT_MS)
  }

  flush() {
    if (this.timer !== null) clearTimeout(this.timer)
    this.timer = null
    this.node.completion += this.held
    this.held = ''
  }
}

/** A kept message as a request has it. */
function asSent({ tool_calls, ...message }: KeptMessage): Message {
  if (!tool_calls) return message
  return { ...message, tool_calls: tool_calls.map(({ id, ...called }) => ({ id, type: 'function', function: called })) }
}

/** Over plain HTTP browsers have no `crypto.randomUUID`. */
function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}

function mergeTool(tools: ToolCall[], index: number, piece: ToolCall) {
  const call = (tools[index] ??= { type: 'function', function: { name: '', arguments: '' } })
  call.id ??= piece.id
  call.function ??= {}
  if (piece.function?.name) call.function.name = (call.function.name ?? '') + piece.function.name
  if (piece.function?.arguments) call.function.arguments = (call.function.arguments ?? '') + piece.function.arguments
}

function describe(error: unknown): string {
  const wait = error instanceof ApiError && error.retryAfterMs ? ` Try again in ${Math.ceil(error.retryAfterMs / 1000)} s.` : ''
  return explain(error) + wait
}
