// Markdown to markup. The transcript is hostile: raw HTML is text, images are links, and a second wall (sanitise.ts) follows.

import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import csharp from 'highlight.js/lib/languages/csharp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import kotlin from 'highlight.js/lib/languages/kotlin';
import makefile from 'highlight.js/lib/languages/makefile';
import markdownLanguage from 'highlight.js/lib/languages/markdown';
import objectivec from 'highlight.js/lib/languages/objectivec';
import php from 'highlight.js/lib/languages/php';
import python from 'highlight.js/lib/languages/python';
import ruby from 'highlight.js/lib/languages/ruby';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import swift from 'highlight.js/lib/languages/swift';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';
import MarkdownIt from 'markdown-it';
import { math } from './math';

const LANGUAGES = {
  bash, c, cpp, csharp, css, diff, go, java, javascript, json, kotlin, makefile, markdown: markdownLanguage, objectivec, php, python, ruby, rust, sql, swift, typescript, xml, yaml,
}; // prettier-ignore
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

/** Longer code is shown without colours: highlighting it would take longer than a frame. */
const MAX_HIGHLIGHTED = 20_000;

/** Nesting beyond this is shown as text; the parser's time grows with the square of it. */
const MAX_NESTING = 40;

const md = new MarkdownIt({ html: false, linkify: true, breaks: false, maxNesting: MAX_NESTING });
md.use(math);

const escape = md.utils.escapeHtml;

export function highlight(code: string, language: string): string {
  if (code.length > MAX_HIGHLIGHTED || !hljs.getLanguage(language)) return escape(code);
  return hljs.highlight(code, { language, ignoreIllegals: true }).value;
}

function codeBlock(code: string, info: string): string {
  const language = /^[\w+#.-]{1,20}/.exec(info.trim())?.[0] ?? '';
  return (
    `<figure class="code"><figcaption><span>${escape(language || 'text')}</span>` +
    `<button type="button" data-action="copy-code">Copy</button></figcaption>` +
    `<pre tabindex="0" role="region" aria-label="${escape(language || 'text')} code"><code>${highlight(code, language.toLowerCase())}</code></pre></figure>\n`
  );
}

md.renderer.rules.fence = (tokens, i) => codeBlock(tokens[i]?.content ?? '', tokens[i]?.info ?? '');
md.renderer.rules.code_block = (tokens, i) => codeBlock(tokens[i]?.content ?? '', '');
md.renderer.rules.table_open = () => '<div class="table" tabindex="0" role="region" aria-label="Table"><table>\n';
md.renderer.rules.table_close = () => '</table></div>\n';

// Column alignment as a class: the content policy forbids style attributes.
for (const rule of ['th_open', 'td_open'] as const) {
  md.renderer.rules[rule] = (tokens, i) => {
    const side = /right|center/.exec(String(tokens[i]?.attrGet('style') ?? ''))?.[0];
    return `<${rule.slice(0, 2)}${side ? ` class="${side}"` : ''}>`;
  };
}

// "- [x] done" and "- [ ] to do" of GitHub's lists.
md.core.ruler.push('tasks', (state) => {
  state.tokens.forEach((token, i) => {
    const first = token.type === 'inline' ? token.children?.[0] : undefined;
    if (first?.type !== 'text' || state.tokens[i - 2]?.type !== 'list_item_open') return;
    first.content = first.content.replace(/^\[([ xX])\] /, (_, mark: string) => (mark === ' ' ? '☐ ' : '☑ '));
  });
});

// An image would be fetched from wherever it lies, with what the model put into the address. It is shown as a link instead.
md.renderer.rules.image = (tokens, i) => {
  const token = tokens[i];
  const source = String(token?.attrGet('src') ?? '');
  const label = token?.content || 'image';
  return `<a href="${escape(source)}" class="image">${escape(label)}</a>`;
};

export function render(source: string): string {
  return md.render(source);
}

/** The start lines of the top-level blocks of source; what lies before the last one will not change when text is appended. */
export function blockStarts(source: string): number[] {
  const starts: number[] = [];
  for (const token of md.parse(source, {})) {
    if (token.level === 0 && token.nesting >= 0 && token.map) starts.push(token.map[0]);
  }
  return starts;
}
