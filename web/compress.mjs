// Stores every file of dist/ also compressed, so that the server only picks.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'

const PACKED = /\.(html|js|css|svg|json|txt|webmanifest)$/
/** Below this a header costs more than is saved. */
const BYTES_MIN = 512

let [plain, packed] = [0, 0]
for (const entry of readdirSync('dist', { recursive: true, withFileTypes: true })) {
  const path = join(entry.parentPath ?? entry.path, entry.name)
  if (!entry.isFile() || !PACKED.test(entry.name)) continue
  const bytes = readFileSync(path)
  plain += bytes.length
  if (bytes.length < BYTES_MIN) {
    packed += bytes.length
    continue
  }
  const gzip = gzipSync(bytes, { level: 9 })
  const quality = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY }
  writeFileSync(`${path}.gz`, gzip)
  writeFileSync(`${path}.br`, brotliCompressSync(bytes, { params: quality }))
  packed += gzip.length
}
console.log(`page: ${(plain / 1024).toFixed(0)} KiB, ${(packed / 1024).toFixed(0)} KiB with gzip`)
