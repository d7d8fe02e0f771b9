/**
 * Markdown into a small tree that Svelte renders as elements. `marked` reads the text; no HTML is ever made of
 * it: what looks like a tag stays text, and links go only to http, https and mailto.
 */

import { Lexer, Tokenizer, type MarkedToken, type Token, type Tokens } from 'marked'

export type Inline =
  | { kind: 'text'; text: string }
  | { kind: 'code'; text: string }
  | { kind: 'strong'; children: Inline[] }
  | { kind: 'em'; children: Inline[] }
  | { kind: 'del'; children: Inline[] }
  | { kind: 'link'; href: string; children: Inline[] }
  | { kind: 'break' }

export type Block =
  | { kind: 'heading'; level: number; children: Inline[] }
  | { kind: 'paragraph'; children: Inline[] }
  | { kind: 'code'; language: string; text: string }
  | { kind: 'quote'; children: Block[] }
  | { kind: 'list'; ordered: boolean; start: number; items: { task: boolean | null; children: Block[] }[] }
  | { kind: 'table'; align: (Align | null)[]; head: Inline[][]; rows: Inline[][][] }
  | { kind: 'rule' }

export type Align = 'left' | 'center' | 'right'

/** Deeper nesting than this stays text, so that hostile input cannot exhaust the stack. */
const DEPTH_MAX = 12
/** Most characters of a link's target. */
const TARGET_MAX = 2048
const SAFE_LINK = /^(https?:\/\/|mailto:)[^\s]+$/i
/** Where something else than plain text may begin. */
const SPECIAL = /[\\<!\[`*~_\n]|(?<!\w)https?:\/\//gi
const BARE_LINK = /^https?:\/\/[^\s<>"'`\]}]+/i

/** What of Markdown is read. A person's or a model's text means neither HTML nor definitions by what it looks like. */
class Reader extends Tokenizer {
  private depth = 0

  // Tags, indented code, headings by a line below them, and links by reference stay text.
  override html = () => undefined
  override tag = () => undefined
  override code = () => undefined
  override lheading = () => undefined
  override def = () => undefined
  override reflink = () => undefined

  override blockquote(src: string) {
    return this.nested(() => super.blockquote(src))
  }

  override list(src: string) {
    return this.nested(() => super.list(src))
  }

  /** A line without a bar ends a table. */
  override table(src: string) {
    const end = /\n[^|\n]*(?:\n|$)/.exec(src)
    return super.table(end ? src.slice(0, end.index + 1) : src)
  }

  /** The library does not take `**` for a sign between `。` and a letter, where languages without blanks need it. */
  override emStrong(src: string, masked: string, before?: string) {
    const found = super.emStrong(src, masked, before)
    const bold = found ? null : /^\*\*(?=\S)([^*\n]*[^*\s])\*\*(?!\*)/.exec(src)
    if (!bold) return found
    const [raw, text = ''] = bold
    return { type: 'strong' as const, raw, text, tokens: this.lexer.inlineTokens(text) }
  }

  /** One tilde is no sign: it stands for "about". */
  override del(src: string, masked: string, before?: string) {
    return src.startsWith('~~') ? super.del(src, masked, before) : undefined
  }

  /** `<std::vector>` is no address. */
  override autolink(src: string) {
    const found = super.autolink(src)
    return found && SAFE_LINK.test(found.href) ? found : undefined
  }

  override url(src: string): Tokens.Link | undefined {
    const href = bareLink(src.slice(0, TARGET_MAX))
    if (!href) return undefined
    const text = { type: 'text', raw: href, text: href }
    return { type: 'link', raw: href, href, text: href, tokens: [text] }
  }

  /** Plain text. The library's own pattern takes a time that grows with the square of a run of blanks. */
  override inlineText(src: string): Tokens.Text {
    SPECIAL.lastIndex = /^(?:`+|~+|[^])/.exec(src)?.[0].length ?? 1
    const raw = src.slice(0, SPECIAL.exec(src)?.index)
    return { type: 'text', raw, text: raw }
  }

  private nested<T>(read: () => T): T | undefined {
    if (this.depth >= DEPTH_MAX) return undefined
    this.depth += 1
    try {
      return read()
    } finally {
      this.depth -= 1
    }
  }
}

export function parseMarkdown(text: string): Block[] {
  return blocks(new Lexer({ gfm: true, breaks: true, tokenizer: new Reader() }).lex(text))
}

function blocks(tokens: Token[]): Block[] {
  return (tokens as MarkedToken[]).flatMap((token) => block(token) ?? [])
}

function block(token: MarkedToken): Block | null {
  switch (token.type) {
    case 'heading':
      return { kind: 'heading', level: token.depth, children: inlines(token.tokens) }
    case 'paragraph':
    case 'text':
      return { kind: 'paragraph', children: inlines(token.tokens ?? [token]) }
    case 'code':
      // Behind a blank last line the library keeps one line break more.
      return { kind: 'code', language: token.lang?.split(/\s+/)[0] ?? '', text: token.text.replace(/\n$/, '') }
    case 'blockquote':
      return { kind: 'quote', children: blocks(token.tokens) }
    case 'list':
      return {
        kind: 'list',
        ordered: token.ordered,
        start: token.start === '' ? 1 : token.start,
        items: token.items.map((item) => ({ task: item.task ? item.checked === true : null, children: blocks(item.tokens) })),
      }
    case 'table':
      return {
        kind: 'table',
        align: token.align,
        head: token.header.map((cell) => inlines(cell.tokens)),
        rows: token.rows.map((row) => row.map((cell) => inlines(cell.tokens))),
      }
    case 'hr':
      return { kind: 'rule' }
    default:
      return null
  }
}

function inlines(tokens: Token[]): Inline[] {
  return (tokens as MarkedToken[]).map(inline)
}

function inline(token: MarkedToken): Inline {
  switch (token.type) {
    case 'br':
      return { kind: 'break' }
    case 'escape':
      return { kind: 'text', text: token.text }
    case 'codespan':
      return { kind: 'code', text: token.text }
    case 'em':
      return emphasis(token)
    case 'strong':
    case 'del':
      return { kind: token.type, children: inlines(token.tokens) }
    case 'link':
    case 'image':
      return linkTo(token.href, inlines(token.tokens))
    default:
      return { kind: 'text', text: token.raw }
  }
}

/** `***both***` is strong first, as elsewhere on the page. */
function emphasis(token: Tokens.Em): Inline {
  const [only, ...more] = token.tokens as MarkedToken[]
  if (only?.type !== 'strong' || more.length > 0) return { kind: 'em', children: inlines(token.tokens) }
  return { kind: 'strong', children: [{ kind: 'em', children: inlines(only.tokens) }] }
}

/** Pictures are never loaded (whoever hosts them would learn of it); they become links too. */
function linkTo(href: string, children: Inline[]): Inline {
  if (!SAFE_LINK.test(href) || href.length > TARGET_MAX) return { kind: 'em', children }
  return { kind: 'link', href, children: children.length ? children : [{ kind: 'text', text: href }] }
}

/** The address that a text begins with. What ends a sentence or closes a parenthesis around it is no part of it. */
function bareLink(text: string): string | null {
  const found = BARE_LINK.exec(text)?.[0] ?? ''
  const href = found.slice(0, parenthesesEnd(found)).replace(/[.,;:!?]+$/, '')
  return /^https?:\/\/./i.test(href) ? href : null
}

/** Where a text closes a parenthesis that it did not open; its end where it does not. */
function parenthesesEnd(text: string): number {
  let open = 0
  for (let at = 0; at < text.length; at++) {
    if (text[at] === '(') open += 1
    else if (text[at] === ')' && --open < 0) return at
  }
  return text.length
}
