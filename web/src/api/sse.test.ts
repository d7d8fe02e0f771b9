import { describe, expect, it } from 'vitest'
import { SseParser, type ServerEvent } from './sse'

function check(pieces: string[], expected: Partial<ServerEvent>[]) {
  const parser = new SseParser()
  const events = pieces.flatMap((piece) => parser.push(piece))
  expect(events).toMatchObject(expected)
  expect(events.length).toBe(expected.length)
}

const text = 'event: status\r\nid: 7\r\ndata: {"a":\r\ndata: 1}\r\n\r\n: beat\n\ndata:x\n\n'
const events = [
  { event: 'status', id: '7', data: '{"a":\n1}' },
  { event: 'message', data: 'x' },
]

describe('server-sent events', () => {
  it('in one piece', () => check([text], events))
  it('one character at a time', () => check([...text], events))
  it('an event that is cut off is none', () => check(['data: half\n'], []))
  it('comments and empty events are none', () => check([': 1\n\nevent: x\n\n'], []))
  it('bare carriage returns end lines', () => check(['data: a\r\rdata: b\r\r '], [{ data: 'a' }, { data: 'b' }]))
  it('at most one space is cut', () => check(['data:  two\n\n'], [{ data: ' two' }]))
})
