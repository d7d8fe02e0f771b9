/** What one asks for with "Try them". */

import type { RolloutWish } from '../api/types'

/** Numbers are null where a field is empty: the server's defaults hold. */
export interface Choice {
  agent: NonNullable<RolloutWish['agent']>
  /** Of a program; no other agent has one. */
  command: string
  evaluate: boolean
  /** Only where it measures; null is the newest. */
  version: number | null
  attempts: number | null
  groups: number | null
  steps: number | null
  tokens: number | null
  temperature: number | null
}

/** As the server does where nothing is said. */
export const usualAttempts = (evaluate: boolean) => (evaluate ? 1 : 4)
export const USUAL = { steps: 20, tokens: 1024, temperature: 1 }
export const ATTEMPTS_MAX = 64

export const choice = (): Choice => ({
  agent: 'bash',
  command: '',
  evaluate: false,
  version: null,
  attempts: usualAttempts(false),
  groups: null,
  steps: USUAL.steps,
  tokens: USUAL.tokens,
  temperature: USUAL.temperature,
})

/** A number that nobody changed goes with what the attempts are for. */
export const attemptsFor = (attempts: number | null, evaluate: boolean) => (attempts === usualAttempts(!evaluate) ? usualAttempts(evaluate) : attempts)

/** The request; what does not apply is left out. */
export function wishOf(set: string, chosen: Choice): RolloutWish {
  const { agent, evaluate, attempts, groups, tokens, temperature } = chosen
  const said = {
    attempts,
    groups,
    version: evaluate ? chosen.version : null,
    command: agent === 'command' ? chosen.command : null,
    steps_max: agent === 'answer' ? null : chosen.steps,
    tokens_max: tokens,
    temperature,
  }
  const known = Object.entries(said).filter(([, value]) => value !== null && value !== undefined)
  return { task_set: set, agent, evaluate, ...Object.fromEntries(known) }
}
