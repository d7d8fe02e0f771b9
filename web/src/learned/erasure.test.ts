import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Erasure } from './erasure.svelte'

/** What the server says, one answer after the other. */
let answers: (() => Response | Promise<Response>)[]
let asked: string[]

const job = (turns_left: number) => () => Response.json({ id: 'fgt_1', turns: 9, turns_left, state: turns_left ? 'running' : 'done' })
const broken = () => Response.json({ error: { message: 'too busy' } }, { status: 503 })

beforeEach(() => {
  vi.useFakeTimers()
  asked = []
  vi.stubGlobal('fetch', async (path: string, { method }: { method: string }) => {
    asked.push(`${method} ${path}`)
    return (answers.shift() ?? broken)()
  })
})

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

it('what was begun is told at once, and followed over a look that failed', async () => {
  answers = [job(9), job(5), broken, job(0)]
  const erasure = new Erasure({ all: true })
  const begun = vi.fn()
  const ended = erasure.begin(begun)
  await vi.advanceTimersByTimeAsync(0)
  expect([begun.mock.calls.length, erasure.job?.turns_left]).toEqual([1, 9])
  await vi.advanceTimersByTimeAsync(600)
  expect([erasure.failure, erasure.job?.turns_left]).toEqual(['Too busy.', 5])
  await vi.advanceTimersByTimeAsync(2_000)
  await ended
  expect([erasure.failure, erasure.job?.state]).toEqual(['', 'done'])
  expect(begun).toHaveBeenCalledOnce()
})

it('it is asked for once, however often one presses', async () => {
  let answer = (_: Response) => {}
  answers = [() => new Promise((give) => (answer = give))]
  const erasure = new Erasure({ all: true })
  const ended = erasure.begin(() => {})
  await erasure.begin(() => {})
  expect([erasure.isBeginning, asked]).toEqual([true, ['POST /v1/forget']])
  answer(job(0)())
  await ended
  expect([erasure.isBeginning, erasure.job?.state]).toEqual([false, 'done'])
})

it('what was refused did not begin, and can be asked for again', async () => {
  answers = [broken, job(0)]
  const erasure = new Erasure({ all: true })
  const begun = vi.fn()
  await erasure.begin(begun)
  expect([begun.mock.calls.length, erasure.failure, erasure.isBeginning]).toEqual([0, 'Too busy.', false])
  await erasure.begin(begun)
  expect([begun.mock.calls.length, erasure.failure]).toEqual([1, ''])
})

it('once nobody looks nothing is asked any more', async () => {
  answers = [job(9), job(5)]
  const erasure = new Erasure({ all: true })
  const ended = erasure.begin(() => {})
  await vi.advanceTimersByTimeAsync(0)
  erasure.leave()
  await vi.advanceTimersByTimeAsync(10_000)
  await ended
  expect(asked).toEqual(['POST /v1/forget'])
})
