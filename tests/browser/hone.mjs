// The real program with the built-in model, and the real browser.

import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { chromium } from 'playwright-core'

const BINARY = process.env.HONE ?? 'target/debug/hone'
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const PICTURES = process.env.SCREENSHOTS ?? 'target/screenshots'
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium'

/** Longest that anything is waited for. */
export const PATIENCE_MS = Number(process.env.PATIENCE_MS ?? 60_000)

/** Small batches, so that one person teaches a version within seconds; quick samples. */
export const QUICK = {
  HONE__TRAIN__BATCH_TURNS: '4',
  HONE__TRAIN__BATCH_TURNS_MIN: '2',
  HONE__TRAIN__BATCH_WAIT_MS: '200',
  HONE__TRAIN__TICK_MS: '100',
  HONE__CONSOLE__SAMPLE_STEP_MS: '500',
  HONE__CONSOLE__COARSE_STEP_MS: '1000',
}

/** A server with a data folder of its own; `port` 0 takes a free one. */
export class Hone {
  static async start(env = QUICK) {
    const hone = new Hone()
    hone.env = env
    hone.data = mkdtempSync(join(tmpdir(), 'hone-browser-'))
    await hone.run('127.0.0.1:0')
    return hone
  }

  /** A server that was taught a little, with so many turns and versions written into its database. */
  static async startWithMany(turns, versions, env = QUICK) {
    const hone = await Hone.start(env)
    await hone.teach()
    await calm(hone)
    await hone.end()
    const script = join(import.meta.dirname, 'many.py')
    execFileSync('python3', [script, join(hone.data, 'data', 'ledger.db'), String(turns), String(versions)])
    await hone.run(new URL(hone.url).host)
    return hone
  }

  async run(bind) {
    this.output = ''
    this.child = spawn(BINARY, ['serve', '--bind', bind, '--data', join(this.data, 'data')], {
      env: { ...process.env, HONE__LOG__LEVEL: 'error', ...this.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.ended = new Promise((resolve) => this.child.once('exit', resolve))
    for (const stream of [this.child.stdout, this.child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => (this.output += text))
    }
    await until(() => /listens on (http:\S+)/.test(this.output) || this.child.exitCode !== null)
    this.url = /listens on (http:\S+)/.exec(this.output)?.[1]
    assert.ok(this.url, `the server did not start: ${this.output}`)
  }

  /** Ends the server and starts it again at the same address with the same data. */
  async restart() {
    await this.end()
    await this.run(new URL(this.url).host)
  }

  async end() {
    this.child.kill('SIGTERM')
    await this.ended
  }

  async stop() {
    await this.end()
    rmSync(this.data, { recursive: true, force: true })
  }

  /** The link that makes the first admin. */
  firstLink() {
    return until(() => {
      try {
        return readFileSync(join(this.data, 'data', 'first-admin-link'), 'utf8').trim()
      } catch {
        return undefined
      }
    })
  }

  async call(method, path, body, headers = {}) {
    const reply = await fetch(this.url + path, {
      method,
      headers: body === undefined ? headers : { 'content-type': 'application/json', ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    })
    const text = await reply.text()
    assert.ok(reply.ok, `${method} ${path}: ${reply.status} ${text}`)
    return text === '' ? null : JSON.parse(text)
  }

  get(path) {
    return this.call('GET', path)
  }

  chat(content, more = {}) {
    const messages = [{ role: 'user', content }]
    return this.call('POST', '/v1/chat/completions', { model: 'hone-starter', messages, max_tokens: 48, ...more })
  }

  /** Talks with alternating feedback until a version is there. */
  async teach() {
    for (let seed = 0; seed < 40; seed += 1) {
      const reply = await this.chat('What is the capital of France?', { seed })
      const score = seed % 2 === 0 ? 1 : -1
      await this.call('POST', '/v1/feedback', { turn_id: reply.hone.turn_id, score })
      if (seed >= 3 && (await this.get('/v1/versions')).data.length > 0) return
    }
    await until(async () => (await this.get('/v1/versions')).data.length > 0)
  }
}

/** Waits until nothing is on its way to a verdict or a version. */
export async function calm(hone) {
  const moving = ['awaiting_verdict', 'awaiting_training']
  await until(async () => {
    const { ledger } = await hone.get('/admin/v1/status')
    return ledger?.pending.every(([stage, count]) => count === 0 || !moving.includes(stage))
  })
}

export async function until(good, patience_ms = PATIENCE_MS) {
  const end = Date.now() + patience_ms
  for (;;) {
    const found = await good()
    if (found) return found
    assert.ok(Date.now() < end, `waited ${patience_ms} ms in vain for ${good}`)
    await new Promise((wake) => setTimeout(wake, 50))
  }
}

export function launch() {
  return chromium.launch({
    executablePath: CHROMIUM,
    args: [
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  })
}

/**
 * A window of its own: nothing shared with others. Whatever the page complains about, and whatever
 * it asks of another site, is kept in `page.complaints`.
 */
export async function open(browser, hone, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options })
  const page = await context.newPage()
  page.setDefaultTimeout(PATIENCE_MS)
  page.complaints = []
  page.on('pageerror', (error) => page.complaints.push(String(error)))
  page.on('console', (message) => {
    if (message.type() === 'error') page.complaints.push(`${message.text()} ${message.location().url ?? ''}`)
  })
  page.on('request', (request) => {
    const url = new URL(request.url())
    if (url.protocol.startsWith('http') && url.host !== new URL(hone.url).host) {
      page.complaints.push(`asked another site: ${request.url()}`)
    }
  })
  return page
}

/** Types a message, sends it, and waits for the end of the answer. */
export async function say(page, text) {
  const turns = page.getByTestId('turn')
  const before = await turns.count()
  await page.getByTestId('composer').fill(text)
  await page.getByTestId('send').click()
  await turns.nth(before).getByTestId('version').waitFor()
  return turns.nth(before)
}

/** Confirms a destructive act by typing the name it asks for. */
export async function confirm(page) {
  const dialog = page.locator('dialog[open]')
  const name = await dialog.locator('b.mono').innerText()
  await dialog.getByTestId('confirm-name').fill(name)
  await dialog.getByTestId('confirm-act').click()
}

/** What of a page axe finds serious. */
export async function issues(page) {
  await page.evaluate(AXE)
  const found = await page.evaluate(() =>
    window.axe.run(document, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }),
  )
  const serious = found.violations.filter((v) => ['serious', 'critical'].includes(v.impact))
  return serious.map((v) => `${v.id}: ${v.nodes.map((node) => node.html.slice(0, 160)).join(' | ')}`)
}

/** Keeps what a page looks like, for people to look at. */
export async function picture(page, name) {
  mkdirSync(PICTURES, { recursive: true })
  await page.screenshot({ path: join(PICTURES, `${name}.png`), animations: 'disabled' })
}
