// Runs test files of a repository by Node's own runner, and ends with 0 only if every test that their text names was seen
// to pass. Each file runs in a process of its own; the runner tells a reporter outside of the work folder what passed.

import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const here = path.dirname(fileURLToPath(import.meta.url))
const { files } = JSON.parse(readFileSync(path.join(here, 'plan.json'), 'utf8'))
const command = ['--test', `--test-reporter=${path.join(here, 'reporter.mjs')}`, '--test-reporter-destination=stdout', ...files]
const env = { PATH: '/usr/local/bin:/usr/bin:/bin', HOME: '/tmp', LANG: 'C.UTF-8', TZ: 'UTC' }
const ran = spawnSync(process.execPath, command, { env, encoding: 'utf8', maxBuffer: 1 << 26 })
process.stderr.write(ran.stderr ?? '')
const events = (ran.stdout ?? '').split('\n').filter(Boolean).map((line) => JSON.parse(line))
const bad = events.filter((event) => !event.passed).map((event) => event.name)
const literal = /(?:^|[^.\w])(?:test|it)(?:\.only)?\(\s*(['"`])((?:\\.|(?!\1)[^\\])*?)\1/g
for (const file of files) {
  if (!existsSync(file)) bad.push(`${file} is missing`)
  const at = path.resolve(file)
  const passed = new Set(events.filter((event) => event.passed && event.file === at).map((event) => event.name))
  const named = [...readFileSync(file, 'utf8').matchAll(literal)]
  const wanted = named.map((match) => match[2]).filter((name) => !/[\\$]/.test(name))
  bad.push(...wanted.filter((name) => !passed.has(name)).map((name) => `${file}: ${name}`))
  if (passed.size === 0) bad.push(`${file}: no test`)
}
if (bad.length > 0 || ran.status !== 0) {
  console.log(`not passed: ${bad.slice(0, 20).join(', ')} (status ${ran.status})`)
  process.exit(1)
}
console.log(`${events.length} tests passed`)
