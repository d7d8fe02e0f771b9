// A page that another server serves calls the API from the browser.

import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { after, before, test } from 'node:test'
import { Hone, QUICK, launch } from './hone.mjs'

/** A page of its own origin; gives its address. */
function served() {
  const server = createServer((_, reply) => reply.setHeader('content-type', 'text/html').end('<title>App</title>'))
  return new Promise((ready) => server.listen(0, '127.0.0.1', () => ready({ server, origin: `http://127.0.0.1:${server.address().port}` })))
}

/** Asks as the OpenAI client in a browser does; what the page could read of the answer. */
const ask = async ([url, model]) => {
  const read = async (reply) => ({
    status: reply.status,
    turn: reply.headers.get('x-hone-turn-id'),
    request: reply.headers.get('x-request-id'),
    text: await reply.text(),
  })
  const send = (body) =>
    fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: 'Bearer none', 'content-type': 'application/json', 'idempotency-key': crypto.randomUUID(), 'x-stainless-lang': 'js' },
      body: JSON.stringify(body),
    }).then(read, (error) => ({ failed: String(error) }))
  const messages = [{ role: 'user', content: 'What is the capital of France?' }]
  return {
    stream: await send({ model, messages, stream: true, max_tokens: 8 }),
    wrong: await send({ model: 'nobody', messages }),
    plain: await fetch(`${url}/v1/models`).then(read, (error) => ({ failed: String(error) })),
  }
}

let app, stranger, hone, browser
before(async () => {
  ;[app, stranger, browser] = await Promise.all([served(), served(), launch()])
  hone = await Hone.start({ ...QUICK, HONE__HTTP__ORIGINS_ALLOWED: app.origin })
})
after(async () => {
  await browser?.close()
  app?.server.close()
  stranger?.server.close()
  await hone?.stop()
})

const asked = async (origin) => {
  const page = await (await browser.newContext()).newPage()
  await page.goto(origin)
  return page.evaluate(ask, [hone.url, 'hone-starter'])
}

test('a page of an allowed origin asks and reads, errors and streams too', async () => {
  const { stream, wrong, plain } = await asked(app.origin)
  assert.equal(stream.status, 200, JSON.stringify(stream))
  assert.match(stream.turn, /^turn_/)
  assert.ok(stream.text.endsWith('data: [DONE]\n\n'), stream.text)
  assert.deepEqual([wrong.status, JSON.parse(wrong.text).error.code], [404, 'model_not_found'])
  assert.match(wrong.request, /^req_/)
  assert.equal(plain.status, 200)
})

test('a page of another origin reads nothing', async () => {
  for (const answer of Object.values(await asked(stranger.origin))) assert.match(answer.failed ?? '', /Failed to fetch/)
})
