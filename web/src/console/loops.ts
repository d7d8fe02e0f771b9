/** The four loops as the overview tells them. */

import type { LoopStatus } from '../api/types'

export interface LoopWords {
  name: string
  title: string
  does: string
  /** Of the series: how much it does, and how long its oldest work waits. */
  rate: string
  rateUnit: string
  lag: string | null
  /** What flows from it to the next. */
  hands: string
}

/** In the order of the ring. */
export const LOOPS: LoopWords[] = [
  { name: 'serve', title: 'Serve', does: 'answers', rate: 'tokens_per_s', rateUnit: 'tokens/s', lag: null, hands: 'turns' },
  { name: 'collect', title: 'Collect', does: 'remembers, and finds what was answered next', rate: 'turns_per_s', rateUnit: 'turns/s', lag: 'collect_lag_s', hands: 'transitions' },
  { name: 'judge', title: 'Judge', does: 'tells good answers from bad', rate: 'judged_per_s', rateUnit: 'verdicts/s', lag: 'judge_lag_s', hands: 'verdicts' },
  { name: 'train', title: 'Train', does: 'learns, checks, publishes', rate: 'trained_per_s', rateUnit: 'samples/s', lag: 'train_lag_s', hands: 'versions' },
]

export type Tone = 'good' | 'warn' | 'bad' | 'off'

export function tone(loop: LoopStatus | undefined): Tone {
  switch (loop?.state) {
    case 'running':
      return 'good'
    case 'paused':
    case 'starting':
    case 'draining':
      return 'warn'
    case 'restarting':
      return 'bad'
    default:
      return 'off'
  }
}
