/** Server-sent events out of text that arrives in arbitrary pieces. */

export interface ServerEvent {
  event: string
  data: string
  id: string | null
}

export class SseParser {
  private rest = ''
  private event = ''
  private data: string[] = []
  private id: string | null = null

  /** Takes the next piece and gives the events that are now complete. */
  push(piece: string): ServerEvent[] {
    const events: ServerEvent[] = []
    this.rest += piece
    for (;;) {
      const end = this.rest.search(/[\r\n]/)
      if (end < 0) break
      const isReturn = this.rest[end] === '\r'
      // A carriage return at the very end may be half of a line end.
      if (isReturn && end + 1 === this.rest.length) break
      const width = isReturn && this.rest[end + 1] === '\n' ? 2 : 1
      const line = this.rest.slice(0, end)
      this.rest = this.rest.slice(end + width)
      const done = this.line(line)
      if (done) events.push(done)
    }
    return events
  }

  private line(line: string): ServerEvent | null {
    if (line === '') return this.finish()
    const colon = line.indexOf(':')
    if (colon === 0) return null
    const field = colon < 0 ? line : line.slice(0, colon)
    const raw = colon < 0 ? '' : line.slice(colon + 1)
    const value = raw.startsWith(' ') ? raw.slice(1) : raw
    if (field === 'data') this.data.push(value)
    if (field === 'event') this.event = value
    if (field === 'id') this.id = value
    return null
  }

  private finish(): ServerEvent | null {
    const done =
      this.data.length > 0
        ? { event: this.event || 'message', data: this.data.join('\n'), id: this.id }
        : null
    this.event = ''
    this.data = []
    return done
  }
}
