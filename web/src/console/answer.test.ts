import { expect, it } from 'vitest'
import { answerOf } from './answer'

it.each([
  ['yes' as const, 'Yes: the newest version was published 3 s ago.', 'Learning', 'The newest version was published 3 s ago.'],
  ['soon' as const, 'Soon: version 3 is on trial.', 'Learning soon', 'Version 3 is on trial.'],
  ['soon' as const, 'Not yet: 2 turns wait for a reply.', 'Learning soon', '2 turns wait for a reply.'],
  ['no' as const, 'No: the train loop is paused. Resume it.', 'Not learning', 'The train loop is paused. Resume it.'],
  ['no' as const, 'Unknown: the ledger does not answer.', 'Not learning', 'Unknown: the ledger does not answer.'],
])('%s with %j', (learning, sentence, verdict, rest) => {
  expect(answerOf({ object: 'why', learning, sentence, alerts: [] })).toEqual([verdict, rest])
})
