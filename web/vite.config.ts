import { svelte } from '@sveltejs/vite-plugin-svelte'
import { gzipSync } from 'node:zlib'
import type { Plugin } from 'vite'
import { defineConfig } from 'vitest/config'

// `npm run dev` serves the page itself and hands API calls to a running Hone.
const server = process.env.HONE_URL ?? 'http://127.0.0.1:8080'

/** Most bytes, compressed, that the first look at the page may cost. */
const FIRST_LOAD_BYTES_MAX = 200_000

/** Fails the build where the chunks that load at first outgrow the budget. */
function budget(): Plugin {
  return {
    name: 'first-load-budget',
    generateBundle(_, bundle) {
      const first = new Set<string>()
      const take = (name: string) => {
        const chunk = bundle[name]
        if (first.has(name) || chunk?.type !== 'chunk') return
        first.add(name)
        chunk.imports.forEach(take)
        chunk.viteMetadata?.importedCss.forEach((css) => first.add(css))
      }
      Object.values(bundle).forEach((chunk) => chunk.type === 'chunk' && chunk.isEntry && take(chunk.fileName))
      const sizes = [...first].map((name) => {
        const file = bundle[name]
        return gzipSync(file?.type === 'chunk' ? file.code : (file?.source ?? '')).length
      })
      const total = sizes.reduce((sum, size) => sum + size, 0)
      this.info(`first load: ${total} bytes compressed, of ${FIRST_LOAD_BYTES_MAX}`)
      if (total > FIRST_LOAD_BYTES_MAX) this.error(`first load: ${total} bytes are over ${FIRST_LOAD_BYTES_MAX}; load something lazily`)
    },
  }
}

export default defineConfig({
  plugins: [svelte(), budget()],
  build: {
    target: 'es2022',
    // Everything is a file of its own: a strict Content-Security-Policy refuses data: and inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
  },
  server: { proxy: { '/v1': server, '/admin': server, '/openapi.json': server } },
  test: { include: ['src/**/*.test.ts'] },
})
