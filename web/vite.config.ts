import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vitest/config'

// `npm run dev` serves the page itself and hands API calls to a running Hone.
const server = process.env.HONE_URL ?? 'http://127.0.0.1:8080'

export default defineConfig({
  plugins: [svelte()],
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
