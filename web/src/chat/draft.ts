/** What one person wrote and has not sent, so that it outlives a reload and a sign-in in this tab. */

import { keep, recall } from '../lib/kept'

const AT = 'hone.draft'

export function keepDraft(owner: string, text: string) {
  keep('sessionStorage', AT, text ? JSON.stringify({ owner, text }) : null)
}

/** Empty for anybody but who wrote it. */
export function draftOf(owner: string): string {
  const kept = JSON.parse(recall('sessionStorage', AT) ?? '{}') as { owner?: string; text?: string }
  return kept.owner === owner ? (kept.text ?? '') : ''
}
