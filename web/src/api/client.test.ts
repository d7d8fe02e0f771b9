import { afterEach, expect, it, vi } from 'vitest'
import { type ApiError, explain, get, post, useCsrf, whenCsrfIsStale } from './client'

afterEach(() => vi.unstubAllGlobals())

/** What is thrown where the server answers like this. */
async function failure(fetched: () => Promise<Response>): Promise<ApiError> {
  vi.stubGlobal('fetch', fetched)
  return get('/v1/models').then(
    () => expect.fail('it was answered'),
    (error: ApiError) => error,
  )
}

const page = (status: number) => async () => new Response('<h1>Bad Gateway</h1>', { status })

it('says what to do where no server answers', async () => {
  const gone = await failure(() => Promise.reject(new TypeError('Failed to fetch')))
  expect([gone.status, gone.code]).toEqual([0, 'unreachable'])
  expect(explain(gone)).toBe('The server cannot be reached: check your connection and that Hone is running, then try again.')
})

it.each([502, 503, 504])('says it where a proxy answers %i instead', async (status) => {
  const away = await failure(page(status))
  expect(away.status).toBe(status)
  expect(explain(away)).toContain('check that it is running, then try again')
})

it('keeps what Hone says, and a status that nobody explains', async () => {
  const error = { message: 'the server is stopping; try again in a moment', code: 'stopping' }
  const stopping = await failure(async () => Response.json({ error }, { status: 503 }))
  expect(explain(stopping)).toBe('The server is stopping; try again in a moment.')
  expect(explain(await failure(page(500)))).toBe('The server answered with status 500.')
})

it.each([true, false])('asks once more where the value beside the cookie was not the newest, if the same person is here: %s', async (isSame) => {
  const sent: (string | undefined)[] = []
  vi.stubGlobal('fetch', async (_: string, { headers }: { headers: Record<string, string> }) => {
    sent.push(headers['x-hone-csrf'])
    return Response.json({ error: { message: 'needs the header', code: 'csrf' } }, { status: 403 })
  })
  useCsrf('old')
  whenCsrfIsStale(async () => {
    useCsrf('new')
    return isSame
  })
  await expect(post('/v1/feedback')).rejects.toMatchObject({ status: 403, code: 'csrf' })
  expect(sent).toEqual(isSame ? ['old', 'new'] : ['old'])
})
