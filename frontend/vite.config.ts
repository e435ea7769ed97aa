import { svelte } from '@sveltejs/vite-plugin-svelte';
import type { Plugin } from 'vite';
import { defineConfig } from 'vitest/config';

/** KaTeX ships each font three times. Every web view the program runs in reads woff2. */
const onlyWoff2: Plugin = {
  name: 'only-woff2',
  enforce: 'pre',
  transform(code, id) {
    if (!id.includes('katex') || !/\.css/.test(id)) return null;
    return code.replace(/,url\([^)]*\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)/g, '');
  },
};

export default defineConfig({
  plugins: [onlyWoff2, svelte()],
  // Relative addresses: the page is served from wails://wails/ in the window and from http in the browser tests.
  base: './',
  build: {
    target: ['safari16', 'chrome115'],
    // The strict content policy forbids data: fonts, so nothing is inlined.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 900,
  },
  resolve: process.env.VITEST ? { conditions: ['browser'] } : {},
  test: {
    include: ['src/**/*.test.ts'],
    environment: 'node',
  },
});
