/** The one place that calls the server. */

/** What went wrong, in words that can be shown. */
export class ApiError extends Error {
  constructor(
    message: string,
    /** HTTP status; 0 where no reply came. */
    readonly status: number,
    readonly code: string | null = null,
    readonly retryAfterMs: number | null = null,
  ) {
    super(message)
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>

interface Options {
  query?: Query
  body?: unknown
  signal?: AbortSignal
  /** Whose keeper acts: what is read and decided is that agent's. */
  agent?: string
  /** Whether it is sent to its end also where the page goes away. */
  keepalive?: boolean
}

/** Set from `/v1/me`; sent with everything but GET under a cookie session. */
let csrf: string | null = null
export function useCsrf(token: string | null) {
  csrf = token
}

/** Called when the server says that nobody is signed in. */
let onSignedOut: () => void = () => {}
export function whenSignedOut(then: () => void) {
  onSignedOut = then
}

/** Called when `csrf` is no longer the session's; says whether the same person is here, with what is now. */
let onStaleCsrf: () => Promise<boolean> = async () => false
export function whenCsrfIsStale(then: () => Promise<boolean>) {
  onStaleCsrf = then
}

export function url(path: string, query: Query = {}): string {
  const params = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') params.set(name, String(value))
  }
  const text = params.toString()
  return text ? `${path}?${text}` : path
}

/** Sends a request; throws an ApiError unless the reply is a success. */
export async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  let reply = await request(method, path, options)
  if (reply.ok) return reply
  let failure = await failureOf(reply)
  // Signing in anew in another tab brings another value; nothing was done yet.
  if (failure.status === 403 && failure.code === 'csrf' && (await onStaleCsrf())) {
    reply = await request(method, path, options)
    if (reply.ok) return reply
    failure = await failureOf(reply)
  }
  if (failure.status === 401 && !path.startsWith('/v1/auth/')) onSignedOut()
  throw failure
}

async function request(method: string, path: string, options: Options): Promise<Response> {
  const headers: Record<string, string> = { accept: 'application/json' }
  if (options.body !== undefined) headers['content-type'] = 'application/json'
  if (options.agent) headers['x-hone-agent'] = options.agent
  if (csrf && method !== 'GET') headers['x-hone-csrf'] = csrf
  try {
    return await fetch(url(path, options.query), {
      method,
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.signal,
      keepalive: options.keepalive,
      credentials: 'same-origin',
      cache: 'no-store',
    })
  } catch (error) {
    if (options.signal?.aborted) throw error
    throw new ApiError('The server cannot be reached: check your connection and that Hone is running, then try again.', 0, 'unreachable')
  }
}

/** Sends a request and reads the reply as JSON. */
export async function call<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const reply = await send(method, path, options)
  if (reply.status === 204) return undefined as T
  return (await reply.json()) as T
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) =>
  call<T>('GET', path, { query, signal })
export const post = <T>(path: string, body: unknown = {}) => call<T>('POST', path, { body })

/** Statuses of a proxy whose server is away. */
const AWAY = [502, 503, 504]

async function failureOf(reply: Response): Promise<ApiError> {
  let message = AWAY.includes(reply.status)
    ? `Hone does not answer the server in front of it (status ${reply.status}): check that it is running, then try again.`
    : `The server answered with status ${reply.status}.`
  let code: string | null = null
  try {
    const { error } = await reply.json()
    if (typeof error?.message === 'string') message = error.message
    if (typeof error?.code === 'string') code = error.code
  } catch {
    // Not one of Hone's replies (a proxy's page, say): the status says enough.
  }
  const retry = Number(reply.headers.get('retry-after-ms'))
  return new ApiError(message, reply.status, code, retry > 0 ? retry : null)
}

/** What to show for anything that was thrown. */
export function explain(error: unknown): string {
  if (error instanceof ApiError) return sentence(error.message)
  if (error instanceof Error) return error.message
  return String(error)
}

/** The server's words as a sentence of the page. */
export function sentence(text: string): string {
  const trimmed = text.trim()
  const first = trimmed.charAt(0).toUpperCase() + trimmed.slice(1)
  return /[.!?…)]$/.test(first) ? first : `${first}.`
}
