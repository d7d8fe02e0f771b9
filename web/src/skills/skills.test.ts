import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { everySkill, originWords, SkillList, usedWords } from './skills.svelte'
import type { Skill } from '../api/types'

let there: Partial<Skill>[]
let asked: [string, unknown][]
let refusal: { status: number; code: string; message: string } | null

const row = (name: string, more: Partial<Skill> = {}) => ({ object: 'skill', id: `skill_${name}`, name, state: 'active', version: 1, ...more }) as Skill

async function answer(path: string, { method, body }: { method: string; body?: string }) {
  const given = body ? JSON.parse(body) : null
  asked.push([`${method} ${path}`, given])
  if (method === 'GET') return Response.json({ object: 'list', data: there, next: null, mode: 'off', mode_max: 'full' })
  if (refusal) return Response.json({ error: refusal }, { status: refusal.status })
  const id = path.split('/')[3]
  const known = there.find((skill) => skill.id === id)
  if (method === 'PATCH') return Response.json({ ...known, state: given.paused ? 'paused' : 'active' })
  if (path.endsWith('/restore')) return Response.json({ ...known, version: given.version })
  if (method === 'DELETE') return known ? Response.json({}) : Response.json({ error: { message: 'no skill' } }, { status: 404 })
  const made = row(given.folder ?? 'x', given.tar ? { state: 'quarantined', version: 2 } : {})
  there = [made, ...there]
  return Response.json(made, { status: given.tar ? 200 : 201 })
}

beforeEach(() => {
  there = [row('b'), row('a')]
  asked = []
  refusal = null
  vi.stubGlobal('fetch', answer)
})
afterEach(() => vi.unstubAllGlobals())

function file(path: string, content: BlobPart): File {
  const made = new File([content], path.split('/').at(-1) ?? '')
  Object.defineProperty(made, 'webkitRelativePath', { value: path.includes('/') ? path : '' })
  return made
}

it('a folder is sent with its name, texts as texts and bytes as bytes', async () => {
  const list = new SkillList()
  const files = [file('c-d/SKILL.md', '---\n'), file('c-d/a/x.bin', new Uint8Array([0, 255])), file('c-d/.git/config', 'no')]
  expect(await list.add(files)).toBe('“c-d” is added.')
  expect(asked[0]).toEqual(['POST /v1/skills', { folder: 'c-d', files: { 'SKILL.md': '---\n', 'a/x.bin': { base64: 'AP8=' } } }])
  expect(list.rows.map((skill) => skill.name)).toEqual(['c-d', 'b', 'a'])
  const told = await list.add([file('x.tar', 'tar')])
  expect(told).toBe('“x” has version 2 now. No answer is shown it until you have looked at what was found in it.')
  expect(asked[2]).toEqual(['POST /v1/skills', { tar: 'dGFy' }])
})

it('what is too much is refused before it is sent', async () => {
  const list = new SkillList()
  const many = Array.from({ length: 65 }, (_, at) => file(`a/${at}`, 'x'))
  await expect(list.add(many)).rejects.toThrow('65 files, and a skill at most 64')
  await expect(list.add([file('a/SKILL.md', 'x'.repeat((1 << 20) + 1))])).rejects.toThrow('1 MB')
  expect(asked).toEqual([])
})

it('a skill is paused, brought back and forgotten, and the list says so at once', async () => {
  const list = new SkillList()
  await list.load()
  await list.change('skill_a', { paused: true })
  await list.restore('skill_b', 7)
  expect(list.rows.map((skill) => [skill.state, skill.version])).toEqual([
    ['active', 7],
    ['paused', 1],
  ])
  await list.forget('skill_a')
  await list.forget('skill_gone')
  expect(list.rows.map((skill) => skill.name)).toEqual(['b'])
  refusal = { status: 403, code: 'learning_off', message: 'nothing is kept of you' }
  await expect(list.add([file('c/SKILL.md', '')])).rejects.toThrow('while learning is off')
  refusal = { status: 400, code: 'invalid_value', message: 'SKILL.md, line 1: name is missing' }
  await expect(list.add([file('c/SKILL.md', '')])).rejects.toThrow('name is missing')
})

it('where it comes from and how often it was used is said in words', async () => {
  const made = (count: number) => row('a', { origin: 'corrections', turn_ids: Array.from({ length: count }, (_, at) => `${at}`) })
  expect(originWords(made(3))).toBe('made from these three corrections')
  expect(originWords(made(9))).toBe('made from these 9 corrections')
  expect(originWords(row('a', { origin: 'imported' }))).toBe('brought as a folder')
  expect(usedWords(row('a', { listed: 0, uses: 0 }))).toBe('not shown to an answer yet')
  expect(usedWords(row('a', { listed: 3, uses: 0 }))).toBe('not used yet, shown to 3 answers')
  expect(usedWords(row('a', { listed: 3, uses: 1 }))).toBe('used 1 time, shown to 3 answers')
  expect((await everySkill()).map((skill) => skill.name)).toEqual(['b', 'a'])
})
