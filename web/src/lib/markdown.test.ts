import { describe, expect, it } from 'vitest'
import { type Block, type Inline, parseMarkdown } from './markdown'

/** The tree as a short line: enough to see structure and text. */
function sketch(blocks: Block[]): string {
  return blocks.map(block).join('|')
}

function block(b: Block): string {
  switch (b.kind) {
    case 'heading':
      return `h${b.level}(${line(b.children)})`
    case 'paragraph':
      return `p(${line(b.children)})`
    case 'code':
      return `code:${b.language}(${b.text})`
    case 'quote':
      return `quote(${sketch(b.children)})`
    case 'list':
      return `${b.ordered ? `ol${b.start}` : 'ul'}(${b.items.map((i) => (i.task === null ? '' : i.task ? 'x ' : 'o ') + sketch(i.children)).join(';')})`
    case 'table':
      return `table(${b.head.map(line)};${b.rows.map((r) => r.map(line))};${b.align})`
    case 'rule':
      return 'rule'
  }
}

function line(nodes: Inline[]): string {
  return nodes
    .map((n) => {
      switch (n.kind) {
        case 'text':
          return n.text
        case 'code':
          return `\`${n.text}\``
        case 'break':
          return '/'
        case 'link':
          return `<${n.href}>(${line(n.children)})`
        default:
          return `${n.kind}(${line(n.children)})`
      }
    })
    .join('')
}

const check = (text: string, expected: string) => expect(sketch(parseMarkdown(text))).toBe(expected)

describe('markdown', () => {
  it.each([
    ['## a ##', 'h2(a)'],
    ['# a#', 'h1(a#)'],
    ['# C# #', 'h1(C#)'],
    ['### ###', 'h3()'],
    ['#', 'h1()'],
    ['#a', 'p(#a)'],
    ['plain words', 'p(plain words)'],
    ['# One #\n## Two', 'h1(One)|h2(Two)'],
    ['a\nb\n\nc', 'p(a/b)|p(c)'],
    ['**b** and *i* and _i_ and ~~d~~', 'p(strong(b) and em(i) and em(i) and del(d))'],
    ['***both***', 'p(strong(em(both)))'],
    ['snake_case_name and 2*3*4', 'p(snake_case_name and 2em(3)4)'],
    ['a * b * c', 'p(a * b * c)'],
    ['`a*b` ``x`y``', 'p(`a*b` `x`y`)'],
    ['\\*not\\*', 'p(*not*)'],
    ['```rust\nfn a() {}\n```\nafter', 'code:rust(fn a() {})|p(after)'],
    ['```\nnot closed *yet*', 'code:(not closed *yet*)'],
    ['> q\n> - a', 'quote(p(q)|ul(p(a)))'],
    ['- a\n- b\n  more\n- c', 'ul(p(a);p(b/more);p(c))'],
    ['- a\n  - inner\n- b', 'ul(p(a)|ul(p(inner));p(b))'],
    ['3. three\n4. four', 'ol3(p(three);p(four))'],
    ['- a\n\n- b', 'ul(p(a);p(b))'],
    ['- a\n\n\n- b\n\n\nc', 'ul(p(a);p(b))|p(c)'],
    ['- a\n\n\n  more', 'ul(p(a)|p(more))'],
    ['1. Do:\n   ```py\n   x = 1\n\n\n   y = 2\n   ```\n2. done', 'ol1(p(Do:)|code:py(x = 1\n\n\ny = 2);p(done))'],
    ['- [x] done\n- [ ] open', 'ul(x p(done);o p(open))'],
    ['|a|b|\n|:-|-:|\n|1|2|', 'table(a,b;1,2;left,right)'],
    ['Here it is:\n| a | b |\n|---|---|\n| 1 | 2 |\nafter', 'p(Here it is:)|table(a,b;1,2;,)|p(after)'],
    ['- so:\n  | a |\n  |---|', 'ul(p(so:)|table(a;;))'],
    ['one | two\n---', 'p(one | two)|rule'],
    ['a | b\n| no marks |', 'p(a | b/| no marks |)'],
    ['---', 'rule'],
    ['text\n- item', 'p(text)|ul(p(item))'],
    ['**太字。**です', 'p(strong(太字。)です)'],
    ['*a **b** c*', 'p(em(a strong(b) c))'],
    ['~5 to ~6', 'p(~5 to ~6)'],
    ['std::map<std::string, int>', 'p(std::map<std::string, int>)'],
    ['#include <std::x> &amp; &#65;', 'p(#include <std::x> &amp; &#65;)'],
    ['    not code\n\n[a]: b\n\n[a]', 'p(    not code)|p([a]: b)|p([a])'],
    ['> a\nstill a', 'quote(p(a/still a))'],
    ['```\na\n\n```', 'code:(a\n)'],
  ])('%j', check)
})

const WIKI = 'https://a.example/Rust_(programming_language)'

describe('links keep the parentheses that are theirs', () => {
  it.each([
    [`[Rust](${WIKI})`, `p(<${WIKI}>(Rust))`],
    [`[Rust](${WIKI} "a title"), yes`, `p(<${WIKI}>(Rust), yes)`],
    [`[Rust](<${WIKI}>)`, `p(<${WIKI}>(Rust))`],
    ['([a](https://a.example/b(c(d))e))', 'p((<https://a.example/b(c(d))e>(a)))'],
    ['[a](https://a.example/b\\)c)', 'p(<https://a.example/b)c>(a))'],
    ['[a](https://a.example/b(c and', 'p([a](<https://a.example/b(c>(https://a.example/b(c) and)'],
    [`see ${WIKI}.`, `p(see <${WIKI}>(${WIKI}).)`],
    [`(see ${WIKI})`, `p((see <${WIKI}>(${WIKI})))`],
    ['(https://a.example/b), then', 'p((<https://a.example/b>(https://a.example/b)), then)'],
    ['https:// and (https://)', 'p(https:// and (https://))'],
  ])('%j', check)
})

describe('hostile text stays text', () => {
  it.each([
    ['<img src=x onerror=alert(1)>', 'p(<img src=x onerror=alert(1)>)'],
    ['<script>alert(1)</script>', 'p(<script>alert(1)</script>)'],
    ['[x](javascript:alert(1))', 'p(em(x))'],
    ['[x](JaVaScRiPt:a)', 'p(em(x))'],
    ['[x](data:text/html,a)', 'p(em(x))'],
    ['![spy](http://evil/?q=1)', 'p(<http://evil/?q=1>(spy))'],
    ['[ok](https://a.example/b)', 'p(<https://a.example/b>(ok))'],
    ['see https://a.example/b.', 'p(see <https://a.example/b>(https://a.example/b).)'],
  ])('%j', check)

  it('no link of any kind leaves http, https and mailto', () => {
    const hostile = ['javascript:a', 'vbscript:a', 'data:a', 'file:///etc', '//evil', '/v1/keys', 'java\nscript:a']
    for (const href of hostile) {
      expect(JSON.stringify(parseMarkdown(`[a](${href}) <${href}> ![b](${href})`))).not.toContain('"href"')
    }
  })

  it.each(['['.repeat(5000), '*'.repeat(5000), '> '.repeat(5000), '- '.repeat(3000), '`'.repeat(5001), `- a${'\n'.repeat(50_000)}  b`, `|\n-${' '.repeat(50_000)}x`, `# a${' '.repeat(50_000)}b`, '[a](('.repeat(5000), 'http://('.repeat(5000), `-${' -'.repeat(25_000)}x`])(
    'ends in good time (%#)',
    (text) => {
      const begun = performance.now()
      parseMarkdown(text)
      expect(performance.now() - begun).toBeLessThan(1000)
    },
  )
})
