/** Skills: the list, and what is done to it. */

import { ApiError, call, explain, get, send } from '../api/client'
import type { Skill, SkillDetail, Skills, SkillVersion } from '../api/types'
import { plural } from '../lib/format'
import { newest } from '../lib/repeat'

/** One has at most 200, and so they come on one page. */
const PAGE = 200
/** As the server has it. */
const FILES_MAX = 64
const BYTES_MAX = 1 << 20

export type Change = { text?: string; paused?: boolean; released?: true }

export const ORIGINS: Record<Skill['origin'], string> = {
  imported: 'brought as a folder',
  written: 'written by you',
  corrections: 'made from what you said about answers',
}

/** The list, newest first. */
export class SkillList {
  rows = $state.raw<Skill[]>([])
  modes = $state.raw<Pick<Skills, 'mode' | 'mode_max'> | null>(null)
  loaded = $state(false)
  failure = $state('')
  /** What is asked before something was changed here is older than that. */
  private readonly asks = newest()

  async load() {
    const isNewest = this.asks()
    try {
      const { data, mode, mode_max } = await get<Skills>('/v1/skills', { limit: PAGE })
      if (!isNewest()) return
      this.rows = data
      this.modes = { mode, mode_max }
      this.loaded = true
      this.failure = ''
    } catch (error) {
      if (isNewest()) this.failure = explain(error)
    }
  }

  /** Adds a folder as a skill, or as a version of the skill of its name; what became of it, in words. */
  async add(files: File[]): Promise<string> {
    const body = await folderOf(files)
    const reply = await inPageWords(() => send('POST', '/v1/skills', { body }))
    const skill = (await reply.json()) as Skill
    await this.load()
    return addedWords(skill, reply.status === 201)
  }

  async change(id: string, change: Change) {
    await this.act(async () => this.put(await inPageWords(() => call<Skill>('PATCH', `/v1/skills/${id}`, { body: change }))))
  }

  async restore(id: string, version: number) {
    await this.act(async () => this.put(await inPageWords(() => call<Skill>('POST', `/v1/skills/${id}/restore`, { body: { version } }))))
  }

  /** One that is gone already is gone. */
  async forget(id: string) {
    await this.act(async () => {
      try {
        await call('DELETE', `/v1/skills/${id}`)
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 404) throw error
      }
      this.rows = this.rows.filter((row) => row.id !== id)
    })
  }

  private put(changed: Skill) {
    this.rows = this.rows.map((row) => (row.id === changed.id ? changed : row))
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
}

export const skillText = (id: string, version?: number) => get<SkillDetail>(`/v1/skills/${id}`, { version })

export const versionsOf = async (id: string) => (await get<{ data: SkillVersion[] }>(`/v1/skills/${id}/versions`)).data

/** The folder as a tar archive. */
export const archiveOf = async (id: string): Promise<Blob> => (await send('GET', `/v1/skills/${id}/export`)).blob()

export const everySkill = async (): Promise<Skill[]> => (await get<Skills>('/v1/skills', { limit: PAGE })).data

/** How a skill came about, in words. */
export function originWords({ origin, turn_ids }: Skill): string {
  if (origin !== 'corrections') return ORIGINS[origin]
  const numbers = ['three', 'four', 'five', 'six', 'seven', 'eight']
  return `made from these ${numbers[turn_ids.length - 3] ?? turn_ids.length} corrections`
}

/** How often it was shown, in words. */
export function usedWords({ listed, uses }: Skill): string {
  if (!listed && !uses) return 'not shown to an answer yet'
  const used = uses ? `used ${plural(uses, 'time')}` : 'not used yet'
  return listed ? `${used}, shown to ${plural(listed, 'answer')}` : used
}

function addedWords({ name, state, version }: Skill, isNew: boolean): string {
  const what = isNew ? `“${name}” is added.` : `“${name}” has version ${version} now.`
  return state === 'quarantined' ? `${what} No answer is shown it until you have looked at what was found in it.` : what
}

/** The chosen files as the body that adds them. A browser gives each the path below the chosen folder, which has the skill's name. */
async function folderOf(chosen: File[]): Promise<{ files?: Record<string, unknown>; folder?: string; tar?: string }> {
  const [only] = chosen
  if (chosen.length === 1 && only?.name.endsWith('.tar')) {
    if (only.size > 4 * BYTES_MAX) throw new Error('The archive is larger than a skill can be, which is 1 MB.')
    return { tar: base64(await only.arrayBuffer()) }
  }
  const kept = chosen.filter((file) => !pathOf(file).split('/').some((part) => part === '.git' || part === '.DS_Store'))
  if (kept.length > FILES_MAX) throw new Error(`The folder has ${kept.length} files, and a skill at most ${FILES_MAX}.`)
  if (kept.reduce((sum, file) => sum + file.size, 0) > BYTES_MAX) throw new Error('The folder is larger than a skill can be, which is 1 MB.')
  const files: Record<string, unknown> = {}
  let folder: string | undefined
  for (const file of kept) {
    const [first, ...rest] = pathOf(file).split('/')
    if (rest.length) folder = first
    files[rest.length ? rest.join('/') : file.name] = contentOf(await file.arrayBuffer())
  }
  return { files, folder }
}

const pathOf = (file: File) => file.webkitRelativePath || file.name

function contentOf(bytes: ArrayBuffer): string | { base64: string } {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch {
    return { base64: base64(bytes) }
  }
}

function base64(bytes: ArrayBuffer): string {
  let text = ''
  for (const byte of new Uint8Array(bytes)) text += String.fromCharCode(byte)
  return btoa(text)
}

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
  if (status === 404) return 'It was removed in the meantime.'
  return explain(new ApiError(message, status, code))
}
