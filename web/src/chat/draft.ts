/** What one person wrote and has not sent, so that it outlives a reload and a sign-in in this tab. */

const AT = 'hone.draft'

export function keepDraft(owner: string, text: string) {
  if (text) sessionStorage.setItem(AT, JSON.stringify({ owner, text }))
  else sessionStorage.removeItem(AT)
}

/** Empty for anybody but who wrote it. */
export function draftOf(owner: string): string {
  const kept = JSON.parse(sessionStorage.getItem(AT) ?? '{}') as { owner?: string; text?: string }
  return kept.owner === owner ? (kept.text ?? '') : ''
}
