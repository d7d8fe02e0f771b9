/** Where the page is: everything that can be looked at has an address after the hash. */

export interface Place {
  /** `#/console/turns?state=settled` is `['console', 'turns']`. */
  path: string[]
  query: URLSearchParams
}

function read(): Place {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?', 2)
  return { path: path.split('/').filter(Boolean).map(safeDecode), query: new URLSearchParams(query) }
}

function safeDecode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export const place = $state<Place>(read())

window.addEventListener('hashchange', () => Object.assign(place, read()))

type Params = Record<string, string | number | null | undefined>

/** The address of a view. */
export function link(path: (string | number)[], params: Params = {}): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== '') query.set(name, String(value))
  }
  const text = query.toString()
  return `#/${path.map((part) => encodeURIComponent(part)).join('/')}${text ? `?${text}` : ''}`
}

export function go(path: (string | number)[], params: Params = {}) {
  location.hash = link(path, params)
}

/** Changes the address without a step in the history: filters, a chat's id once it is known. */
export function replace(path: (string | number)[], params: Params = {}) {
  history.replaceState(null, '', link(path, params))
  Object.assign(place, read())
}
