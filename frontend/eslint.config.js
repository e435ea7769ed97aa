import js from '@eslint/js';
import globals from 'globals';
import svelte from 'eslint-plugin-svelte';
import ts from 'typescript-eslint';
import svelteConfig from './svelte.config.js';

export default ts.config(
  { ignores: ['dist/', 'wailsjs/', 'node_modules/'] },
  js.configs.recommended,
  ...ts.configs.recommended,
  ...svelte.configs.recommended,
  { languageOptions: { globals: { ...globals.browser } } },
  {
    files: ['**/*.svelte', '**/*.svelte.ts'],
    languageOptions: { parserOptions: { parser: ts.parser, svelteConfig } },
  },
  {
    rules: {
      'no-undef': 'off', // TypeScript checks names, and knows the DOM's
      '@typescript-eslint/no-explicit-any': 'error',
      // The transcript is hostile: markup reaches the page only through lib/markdown/typeset.ts.
      'svelte/no-at-html-tags': 'error',
      'svelte/no-unused-svelte-ignore': 'off', // svelte-check knows of warnings that the plugin does not
      eqeqeq: 'error',
      'no-restricted-globals': ['error', 'fetch', 'alert', 'confirm', 'open'],
    },
  },
);
