/** Whether it learns: the server's sentence, without the word that the page says before it. */

import { sentence } from '../api/client'
import type { Why } from '../api/types'

export function answerOf({ learning, sentence: whole }: Why): [verdict: string, rest: string] {
  const verdict = learning === 'yes' ? 'Learning' : learning === 'soon' ? 'Learning soon' : 'Not learning'
  return [verdict, sentence(whole.replace(/^(Yes|No|Soon|Not yet): /, ''))]
}
