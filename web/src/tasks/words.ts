/** Tasks, attempts and queues in words. */

import type { Episode, JobState, Queue, Rollout, RolloutWish, Task, TaskState } from '../api/types'
import { plural } from '../lib/format'

type Tone = '' | 'good' | 'bad' | 'warn' | 'accent'

interface Said {
  words: string
  tone: Tone
  /** What it means, in a sentence. */
  means: string
}

export const TASK_STATES: Record<TaskState, Said> = {
  ready: { words: 'ready', tone: 'good', means: 'It was checked and can be tried.' },
  new: { words: 'being checked', tone: 'accent', means: 'Its solution has to pass its tests, and doing nothing must not.' },
  refused: { words: 'refused', tone: 'bad', means: 'It did not pass its check, so it is not tried.' },
  quarantined: { words: 'quarantined', tone: 'warn', means: 'Trying it failed again and again through no fault of the agent, so it is not tried any more.' },
}

/** In the order in which they are shown. */
export const TASK_STATE_NAMES = Object.keys(TASK_STATES) as TaskState[]

export const JOB_STATES: Record<JobState, Said> = {
  queued: { words: 'waiting', tone: '', means: 'It has not begun.' },
  running: { words: 'running', tone: 'accent', means: 'It is worked on.' },
  done: { words: 'done', tone: 'good', means: 'It came to its end.' },
  retried: { words: 'tried again', tone: 'warn', means: 'It failed through no fault of the agent, and another one took its place.' },
  skipped: { words: 'given up', tone: 'bad', means: 'It failed three times through no fault of the agent.' },
  failed: { words: 'without a reward', tone: 'bad', means: 'What came of it cannot be counted.' },
  cancelled: { words: 'cancelled', tone: '', means: 'Somebody cancelled it.' },
}

const REASONS: Record<string, string> = {
  submitted: 'the agent said that it is done',
  steps: 'the agent used up its steps',
  agent: 'the program never asked the model',
  context: "the conversation filled the model's context",
  time: 'time ran out',
  jail: 'the jail failed',
  model: 'the model did not answer',
  verifier: 'the tests gave no result',
  worker: 'the server ended meanwhile',
  ledger: 'the database was away',
  group: 'fewer than two attempts had a reward',
  no_signal: 'all attempts had the same reward',
}

/** Why a job stands where it stands; nothing where its state says it already. */
export function reasonOf(reason: string | null, kind: Queue['kind'] = 'episode'): string {
  if (reason === null || reason === 'cancelled') return ''
  // Only attempts have an agent.
  if (reason === 'submitted' && kind !== 'episode') return ''
  return REASONS[reason] ?? reason.replaceAll('_', ' ')
}

export const ROLLOUT_STATES: Record<Rollout['status'], Said> = {
  running: { words: 'running', tone: 'accent', means: '' },
  done: { words: 'done', tone: 'good', means: '' },
  cancelled: { words: 'cancelled', tone: '', means: '' },
}

export const AGENTS: Record<NonNullable<RolloutWish['agent']>, { words: string; means: string }> = {
  bash: { words: 'Works in a shell', means: 'It runs commands in a jail, closed off from everything else, until it says that it is done.' },
  answer: { words: 'Answers once', means: 'Its one answer is written to a file, which the tests read.' },
  command: { words: 'A program of your own', means: 'It runs in a jail, finds the task in $HONE_INSTRUCTION and asks the model at $OPENAI_BASE_URL or $ANTHROPIC_BASE_URL.' },
}

export const QUEUE_KINDS: Record<Queue['kind'], string> = {
  episode: 'Attempts at tasks',
  credit: 'Rewards of groups',
  check: 'Checks of tasks',
}

/** How an attempt ended, or where it stands. */
export function outcomeOf(episode: Pick<Episode, 'state' | 'reward'>): Said {
  if (episode.state !== 'done' || episode.reward === null) return JOB_STATES[episode.state]
  if (episode.reward >= 1) return { words: 'passed', tone: 'good', means: 'The tests passed.' }
  return { words: episode.reward > 0 ? 'passed in part' : 'not passed', tone: '', means: 'The tests did not all pass.' }
}

export interface Progress {
  ended: number
  all: number
  running: number
  waiting: number
}

/** How far a rollout is. What was tried again counts once. */
export function progressOf(rollout: Pick<Rollout, 'episodes' | 'groups' | 'attempts'>): Progress {
  const { queued = 0, running = 0, done = 0, skipped = 0, failed = 0, cancelled = 0 } = rollout.episodes
  return { ended: done + skipped + failed + cancelled, all: rollout.groups * rollout.attempts, running, waiting: queued }
}

/** What a rollout is for. */
export const aimOf = (rollout: Pick<Rollout, 'evaluate'>) => (rollout.evaluate ? 'only measures' : 'learns from it')

/** How much a rollout does: "3 groups of 4 attempts". */
export function sizeOf(groups: number, attempts: number): string {
  if (attempts === 1) return plural(groups, 'attempt')
  if (groups === 1) return `${plural(attempts, 'attempt')} at one task`
  return `${plural(groups, 'group')} of ${plural(attempts, 'attempt')}`
}

/** Whether a rollout can try a task. */
export const canBeTried = (task: Pick<Task, 'state' | 'held_out'>, evaluate: boolean) =>
  task.held_out === evaluate && (task.state === 'new' || task.state === 'ready')
