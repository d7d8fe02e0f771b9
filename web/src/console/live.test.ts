import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { live } from './live.svelte'

/** Connections that were made; those that are open take what is told. */
const sources: Source[] = []
class Source {
  static readonly CLOSED = 2
  readyState = 1
  onopen = () => {}
  private taken = (_: { data: string }) => {}
  constructor() {
    sources.push(this)
  }
  addEventListener(name: string, then: (event: { data: string }) => void) {
    if (name === 'sample') this.taken = then
  }
  tell(at_ms: number) {
    this.taken({ data: JSON.stringify({ at_ms, values: { a: at_ms }, why: {} }) })
  }
  close() {
    this.readyState = Source.CLOSED
  }
}

const open = () => sources.filter((source) => source.readyState !== Source.CLOSED)
const page = Object.assign(new EventTarget(), { hidden: false })
/** The next answers to who asks for the history. */
let answers: (() => Response | Promise<Response>)[]
/** What becomes of an ask for the status. */
let status: () => Response | Promise<Response>
let leave: () => void

const history = (...times: number[]) => Response.json({ step_ms: 1, data: { a: times.map((at) => [at, at]) } })
const broken = () => Response.json({}, { status: 503 })

function show(hidden: boolean) {
  page.hidden = hidden
  page.dispatchEvent(new Event('visibilitychange'))
}

/** Lets what was answered be read. */
async function read() {
  for (let turn = 0; turn < 5; turn += 1) await vi.advanceTimersByTimeAsync(0)
}

beforeEach(() => {
  vi.useFakeTimers()
  vi.stubGlobal('EventSource', Source)
  vi.stubGlobal('document', page)
  vi.stubGlobal('fetch', async (path: string) => {
    if (path.startsWith('/admin/v1/series')) return (answers.shift() ?? broken)()
    return path === '/admin/v1/status' ? status() : Response.json({})
  })
  sources.length = 0
  answers = []
  status = broken
  Object.assign(live.series, { times: [], columns: new Map() })
  show(false)
  leave = live.follow()
})

afterEach(() => {
  leave()
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

it('a history that was not read is asked for again, and no sample closes the gap before', async () => {
  answers = [broken, () => history(1000, 2000)]
  open()[0]?.onopen()
  await read()
  open()[0]?.tell(3000)
  expect(live.series.times).toEqual([])
  await vi.advanceTimersByTimeAsync(2_000)
  await read()
  expect(live.series.times).toEqual([1, 2, 3])
  open()[0]?.tell(4000)
  expect(live.series.times).toEqual([1, 2, 3, 4])
})

it('an answer that comes after the next ask leaves no gap', async () => {
  let late = (_: Response) => {}
  answers = [() => new Promise((resolve) => (late = resolve)), () => history(1000, 2000, 3000)]
  const [source] = open()
  source?.onopen()
  await read()
  // The connection breaks and comes back; what was told between is only in the newer answer.
  source?.onopen()
  source?.tell(4000)
  late(history(1000))
  await read()
  expect(live.series.times).toEqual([1, 2, 3, 4])
})

it('a hidden page holds no connection, and then gets what it missed', async () => {
  answers = [() => history(1000), () => history(1000, 2000)]
  open()[0]?.onopen()
  await read()
  show(true)
  expect([open().length, live.connected]).toEqual([0, false])
  await vi.advanceTimersByTimeAsync(20_000)
  expect(open().length).toBe(0)
  show(false)
  expect(open().length).toBe(1)
  open()[0]?.onopen()
  open()[0]?.tell(3000)
  await read()
  expect(live.series.times).toEqual([1, 2, 3])
  leave()
  show(false)
  expect(open().length).toBe(0)
  leave = live.follow()
})

it('a server that takes its time is not asked for its status a second time meanwhile', async () => {
  let asks = 0
  status = () => {
    asks += 1
    return new Promise(() => {})
  }
  await vi.advanceTimersByTimeAsync(60_000)
  expect(asks).toBe(1)
})

it('of two asks for the status the newer counts, whichever is answered first', async () => {
  const ends: ((answer: Response) => void)[] = []
  status = () => new Promise((end) => ends.push(end))
  const asked = [live.refresh(), live.refresh()]
  ends[1]?.(Response.json({ error: { message: 'newer' } }, { status: 500 }))
  await asked[1]
  ends[0]?.(Response.json({ error: { message: 'older' } }, { status: 500 }))
  await asked[0]
  expect(live.failure).toBe('Newer.')
})
