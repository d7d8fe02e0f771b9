/** Asks for a completion and hands on what arrives. */

import { ApiError, send } from '../api/client'
import { SseParser } from '../api/sse'
import type { HoneNote, Message, ToolCall } from '../api/types'

export interface Request {
  model: string
  messages: Message[]
  session_id?: string
  hone?: { memory: 'full' | 'off' }
}

export interface Heard {
  /** The reply's head arrived: which turn and session this is, before any text. */
  begun(turnId: string | null, sessionId: string | null, version: number | null): void
  text(piece: string): void
  reasoning(piece: string): void
  tool(index: number, call: ToolCall): void
  ended(reason: string | null, note: HoneNote | null): void
}

interface Chunk {
  error?: { message?: string; code?: string }
  choices?: {
    delta?: {
      content?: string | null
      reasoning_content?: string | null
      tool_calls?: ({ index?: number } & ToolCall)[]
    }
    finish_reason?: string | null
  }[]
  hone?: HoneNote | null
}

/** Ends when the completion has ended; throws if it failed or was aborted. */
export async function complete(request: Request, heard: Heard, signal: AbortSignal) {
  const reply = await send('POST', '/v1/chat/completions', { body: { ...request, stream: true }, signal })
  const version = reply.headers.get('x-hone-policy-version')
  heard.begun(
    reply.headers.get('x-hone-turn-id'),
    reply.headers.get('x-hone-session-id'),
    version === null ? null : Number(version),
  )
  const reader = reply.body?.pipeThrough(new TextDecoderStream()).getReader()
  if (!reader) throw new ApiError('The reply has no body.', reply.status)
  const parser = new SseParser()
  let ended = false
  for (;;) {
    const { done, value } = await read(reader, signal)
    if (done) break
    for (const { data } of parser.push(value)) {
      if (data !== '[DONE]') ended = chunk(JSON.parse(data) as Chunk, heard) || ended
    }
  }
  if (!ended) throw new ApiError('The connection broke before the answer was complete.', 0, 'cut')
}

async function read(reader: ReadableStreamDefaultReader<string>, signal: AbortSignal) {
  try {
    return await reader.read()
  } catch (error) {
    if (signal.aborted) throw error
    throw new ApiError('The connection broke before the answer was complete.', 0, 'cut')
  }
}

/** Hands on one chunk; whether it was the last with content. */
function chunk(chunk: Chunk, heard: Heard): boolean {
  if (chunk.error) throw new ApiError(chunk.error.message ?? 'The completion failed.', 200, chunk.error.code ?? null)
  const choice = chunk.choices?.[0]
  if (!choice) return false
  const delta = choice.delta
  if (delta?.reasoning_content) heard.reasoning(delta.reasoning_content)
  if (delta?.content) heard.text(delta.content)
  for (const call of delta?.tool_calls ?? []) heard.tool(call.index ?? 0, call)
  if (!choice.finish_reason) return false
  heard.ended(choice.finish_reason, chunk.hone ?? null)
  return true
}
