// Tells which tests passed, one line of JSON each. A file as a whole is no test, and a skipped test did not pass.
import path from 'node:path'

export default async function* (events) {
  for await (const { type, data } of events) {
    if (type !== 'test:pass' && type !== 'test:fail') continue
    const isFile = data.file !== undefined && path.resolve(data.name) === data.file
    if (isFile && type === 'test:pass') continue
    if (data.details?.type === 'suite' && type === 'test:pass') continue
    const passed = type === 'test:pass' && data.skip === undefined && data.todo === undefined
    yield `${JSON.stringify({ name: data.name, file: data.file, passed })}\n`
  }
}
