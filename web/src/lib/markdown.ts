/**
 * Markdown into a small tree that Svelte renders as elements. No HTML is ever made from text: what
 * looks like a tag stays text, and links go only to http, https and mailto.
 */

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

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/
const QUOTE = /^ {0,3}>\s?/
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/
/** One cell of the line under a table's head. */
const MARK = /^:?-+:?$/

export function parseMarkdown(text: string): Block[] {
  return blocks(text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'), 0)
}

function blocks(lines: string[], depth: number): Block[] {
  const out: Block[] = []
  let at = 0
  while (at < lines.length) {
    const line = lines[at] ?? ''
    if (line.trim() === '') {
      at += 1
      continue
    }
    const special = depth < DEPTH_MAX ? blockAt(lines, at, depth) : null
    if (special) {
      out.push(special.block)
      at = special.next
      continue
    }
    const end = paragraphEnd(lines, at)
    out.push({ kind: 'paragraph', children: inlines(lines.slice(at, end).join('\n').trim()) })
    at = end
  }
  return out
}

type Found = { block: Block; next: number } | null

/** The text of a heading without the signs that may close it. */
function unclosed(text: string): string {
  const trimmed = text.trim()
  let end = trimmed.length
  while (trimmed[end - 1] === '#') end--
  const closes = end === 0 || /\s/.test(trimmed[end - 1] ?? '')
  return closes ? trimmed.slice(0, end).trimEnd() : trimmed
}

function blockAt(lines: string[], at: number, depth: number): Found {
  const line = lines[at] ?? ''
  const heading = HEADING.exec(line)
  if (heading) {
    const children = inlines(unclosed(line.slice(heading[0].length)))
    return { block: { kind: 'heading', level: heading[1]?.length ?? 1, children }, next: at + 1 }
  }
  if (RULE.test(line)) return { block: { kind: 'rule' }, next: at + 1 }
  return fence(lines, at) ?? quote(lines, at, depth) ?? list(lines, at, depth) ?? table(lines, at)
}

/** A code block; one that is not closed yet runs to the end, as it does while it streams. */
function fence(lines: string[], at: number): Found {
  const open = FENCE.exec(lines[at] ?? '')
  if (!open) return null
  const mark = open[1] ?? '```'
  const body: string[] = []
  let next = at + 1
  for (; next < lines.length; next++) {
    const line = lines[next] ?? ''
    const closing = line.trim()
    if (closing.length >= mark.length && closing.split('').every((c) => c === mark[0])) break
    body.push(line)
  }
  const language = (open[2] ?? '').trim().split(/\s+/)[0] ?? ''
  return { block: { kind: 'code', language, text: body.join('\n') }, next: next + 1 }
}

function quote(lines: string[], at: number, depth: number): Found {
  if (!QUOTE.test(lines[at] ?? '')) return null
  const inner: string[] = []
  let next = at
  for (; next < lines.length && QUOTE.test(lines[next] ?? ''); next++) {
    inner.push((lines[next] ?? '').replace(QUOTE, ''))
  }
  return { block: { kind: 'quote', children: blocks(inner, depth + 1) }, next }
}

function list(lines: string[], at: number, depth: number): Found {
  const first = ITEM.exec(lines[at] ?? '')
  if (!first) return null
  const ordered = /\d/.test(first[2] ?? '')
  const items: { task: boolean | null; children: Block[] }[] = []
  let next = at
  while (next < lines.length) {
    const item = ITEM.exec(lines[next] ?? '')
    if (!item || RULE.test(lines[next] ?? '') || /\d/.test(item[2] ?? '') !== ordered) break
    const taken = listItem(lines, next, item)
    items.push(itemOf(taken.inner, depth))
    next = taken.next
  }
  const start = ordered ? parseInt(first[2] ?? '1', 10) : 1
  return { block: { kind: 'list', ordered, start, items }, next }
}

/** Lines of one item: its own, those indented under it, and lazy continuations of its paragraph. */
function listItem(lines: string[], at: number, item: RegExpExecArray) {
  const indent = (item[1]?.length ?? 0) + (item[2]?.length ?? 1) + Math.min(item[3]?.length || 1, 4)
  const inner = [item[4] ?? '']
  let next = at + 1
  for (; next < lines.length; next++) {
    const line = lines[next] ?? ''
    const depth = indentOf(line)
    if (line.trim() === '') {
      let after = next + 1
      while (after < lines.length && lines[after]?.trim() === '') after += 1
      if (indentOf(lines[after] ?? '') < 2) {
        // Blank lines between two items keep them in one list.
        if (ITEM.test(lines[after] ?? '')) next = after
        break
      }
      for (; next < after; next++) inner.push('')
      next -= 1
    } else if (depth >= Math.min(indent, 2)) {
      inner.push(line.slice(Math.min(depth, indent)))
    } else if (ITEM.test(line) || HEADING.test(line) || FENCE.test(line) || QUOTE.test(line) || RULE.test(line)) {
      break
    } else {
      inner.push(line)
    }
  }
  return { inner, next }
}

const indentOf = (line: string) => line.length - line.trimStart().length

function itemOf(inner: string[], depth: number) {
  const task = /^\[([ xX])\]\s+/.exec(inner[0] ?? '')
  if (task) inner[0] = (inner[0] ?? '').slice(task[0].length)
  return { task: task ? task[1] !== ' ' : null, children: blocks(inner, depth + 1) }
}

/** The head of a table and the marks under it, if one begins here. */
function tableHead(lines: string[], at: number): { columns: string[]; marks: string[] } | null {
  const [head, delimiter] = [lines[at] ?? '', lines[at + 1] ?? '']
  if (!head.includes('|') || !delimiter.includes('-')) return null
  const marks = cells(delimiter)
  if (!marks.every((mark) => MARK.test(mark))) return null
  const columns = cells(head)
  return marks.length === columns.length ? { columns, marks } : null
}

function table(lines: string[], at: number): Found {
  const found = tableHead(lines, at)
  if (!found) return null
  const { columns, marks } = found
  const align = marks.map((mark): Align | null => {
    const [left, right] = [mark.startsWith(':'), mark.endsWith(':')]
    return left && right ? 'center' : right ? 'right' : left ? 'left' : null
  })
  const rows: Inline[][][] = []
  let next = at + 2
  for (; next < lines.length && (lines[next] ?? '').includes('|'); next++) {
    const row = cells(lines[next] ?? '')
    rows.push(columns.map((_, column) => inlines(row[column] ?? '')))
  }
  return { block: { kind: 'table', align, head: columns.map(inlines), rows }, next }
}

function cells(line: string): string[] {
  const inner = line.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '')
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, '|'))
}

function paragraphEnd(lines: string[], at: number): number {
  let end = at + 1
  for (; end < lines.length; end++) {
    const line = lines[end] ?? ''
    const ends =
      line.trim() === '' ||
      HEADING.test(line) ||
      FENCE.test(line) ||
      QUOTE.test(line) ||
      RULE.test(line) ||
      /^ {0,3}([-*+]|1[.)])\s+\S/.test(line) ||
      tableHead(lines, end) !== null
    if (ends) break
  }
  return end
}

// === inlines ===

const SAFE_LINK = /^(https?:\/\/|mailto:)[^\s]+$/i
const AUTO_LINK = /^https?:\/\/[^\s<>"'`\]}]+/i
/** Most characters of a link's target. */
const TARGET_MAX = 2048
const ESCAPED = /\\([!-/:-@[-`{-~])/g

export function inlines(text: string, depth = 0): Inline[] {
  const out: Inline[] = []
  let plain = ''
  let at = 0
  const flush = () => {
    if (plain) out.push({ kind: 'text', text: plain })
    plain = ''
  }
  while (at < text.length) {
    const found = depth < DEPTH_MAX ? inlineAt(text, at, depth) : null
    if (!found) {
      plain += text[at]
      at += 1
      continue
    }
    if (typeof found.node === 'string') plain += found.node
    else {
      flush()
      out.push(found.node)
    }
    at = found.next
  }
  flush()
  return out
}

type FoundInline = { node: Inline | string; next: number } | null

function inlineAt(text: string, at: number, depth: number): FoundInline {
  switch (text[at]) {
    case '\\':
      if (text[at + 1] === '\n') return { node: { kind: 'break' }, next: at + 2 }
      return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '') ? { node: text[at + 1] ?? '', next: at + 2 } : null
    case '\n':
      return { node: { kind: 'break' }, next: at + 1 }
    case '`':
      return codeSpan(text, at)
    case '*':
    case '_':
    case '~':
      return emphasis(text, at, depth)
    case '!':
      return text[at + 1] === '[' ? link(text, at + 1, depth) : null
    case '[':
      return link(text, at, depth)
    case '<': {
      const auto = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(text.slice(at, at + TARGET_MAX))
      return auto ? { node: linkTo(auto[1] ?? ''), next: at + auto[0].length } : null
    }
    case 'h':
    case 'H': {
      if (/\w/.test(text[at - 1] ?? '')) return null
      const bare = bareLink(text.slice(at, at + TARGET_MAX))
      return bare ? { node: linkTo(bare), next: at + bare.length } : null
    }
    default:
      return null
  }
}

/** The address that a text begins with. What ends a sentence or closes a parenthesis around it is no part of it. */
function bareLink(text: string): string | null {
  const found = AUTO_LINK.exec(text)?.[0] ?? ''
  const href = found.slice(0, parenthesesEnd(found)).replace(/[.,;:!?]+$/, '')
  return /^https?:\/\/./i.test(href) ? href : null
}

/** Where a text closes a parenthesis that it did not open; its end where it does not. */
function parenthesesEnd(text: string): number {
  let open = 0
  for (let at = 0; at < text.length; at++) {
    if (text[at] === '\\') at += 1
    else if (text[at] === '(') open += 1
    else if (text[at] === ')' && --open < 0) return at
  }
  return text.length
}

const linkTo = (href: string): Inline => ({ kind: 'link', href, children: [{ kind: 'text', text: href }] })

function codeSpan(text: string, at: number): FoundInline {
  const mark = /^`+/.exec(text.slice(at))?.[0] ?? '`'
  let end = at + mark.length
  for (;;) {
    end = text.indexOf(mark, end)
    if (end < 0) return { node: mark, next: at + mark.length }
    if (text[end + mark.length] !== '`' && text[end - 1] !== '`') break
    while (text[end] === '`') end += 1
  }
  const inner = text.slice(at + mark.length, end).replace(/\n/g, ' ')
  const cut = inner.length > 2 && inner.startsWith(' ') && inner.endsWith(' ') ? inner.slice(1, -1) : inner
  return { node: { kind: 'code', text: cut }, next: end + mark.length }
}

function emphasis(text: string, at: number, depth: number): FoundInline {
  const mark = text[at] ?? '*'
  const width = text[at + 1] === mark ? 2 : 1
  if (mark === '~' && width === 1) return null
  const start = at + width
  if (/\s|^$/.test(text[start] ?? '')) return null
  if (mark === '_' && /\w/.test(text[at - 1] ?? '')) return null
  const end = emphasisEnd(text, start, mark, width)
  if (end < 0) return { node: mark.repeat(width), next: start }
  const kind = mark === '~' ? 'del' : width === 2 ? 'strong' : 'em'
  return { node: { kind, children: inlines(text.slice(start, end), depth + 1) }, next: end + width }
}

function emphasisEnd(text: string, start: number, mark: string, width: number): number {
  for (let end = start + 1; end < text.length; end++) {
    if (text[end] === '`') {
      const close = text.indexOf('`', end + 1)
      if (close > 0) end = close
      continue
    }
    if (text[end] !== mark || text[end - 1] === '\\' || /\s/.test(text[end - 1] ?? '')) continue
    let run = 1
    while (text[end + run] === mark) run += 1
    const closes = run === width || run === 3
    if (closes && !(mark === '_' && /\w/.test(text[end + run] ?? ''))) return end + (run === 3 ? 3 - width : 0)
    end += run - 1
  }
  return -1
}

function link(text: string, at: number, depth: number): FoundInline {
  let open = 0
  let close = at
  for (; close < text.length; close++) {
    if (text[close] === '\\') close += 1
    else if (text[close] === '[') open += 1
    else if (text[close] === ']' && --open === 0) break
  }
  if (text[close] !== ']' || text[close + 1] !== '(') return null
  const target = targetOf(text.slice(close + 2, close + 2 + TARGET_MAX))
  if (!target) return null
  const label = inlines(text.slice(at + 1, close), depth + 1)
  const { href } = target
  const next = close + 2 + target.length
  // Pictures are never loaded (whoever hosts them would learn of it); they become links too.
  if (!SAFE_LINK.test(href)) return { node: { kind: 'em', children: label }, next }
  return { node: { kind: 'link', href, children: label.length ? label : [{ kind: 'text', text: href }] }, next }
}

/** Where a link leads, and how long that is with its title and the parenthesis that ends it. */
function targetOf(text: string): { href: string; length: number } | null {
  const begin = /^\s*/.exec(text)?.[0].length ?? 0
  const marked = /^<([^\s<>]*)>/.exec(text.slice(begin))
  const plain = /^[^\s<>]*/.exec(text.slice(begin))?.[0] ?? ''
  // Parentheses of its own are part of it.
  const href = marked?.[1] ?? plain.slice(0, parenthesesEnd(plain))
  const after = begin + (marked?.[0] ?? href).length
  const rest = /^(?:\s+["'(][^\n]*?["')])?\s*\)/.exec(text.slice(after))
  return rest ? { href: href.replace(ESCAPED, '$1'), length: after + rest[0].length } : null
}
