// $…$, $$…$$, \(…\) and \[…\] become formulas. A dollar before a digit after a space is money: "$5 and $6" stays text.

import katex from 'katex';
import type MarkdownItConstructor from 'markdown-it';

type MarkdownIt = InstanceType<typeof MarkdownItConstructor>;

/** Macros could expand without end, and \href and its kin could lead away: nothing is trusted. */
function formula(source: string, display: boolean): string {
  const markup = katex.renderToString(source, {
    displayMode: display,
    throwOnError: false,
    trust: false,
    strict: 'ignore',
    maxExpand: 200,
    maxSize: 20,
    output: 'htmlAndMathml',
  });
  // Parsing a style attribute violates the content policy, even in a document that is never shown. KaTeX escapes every quote in
  // text, so this finds attributes only; sanitise.ts checks the values and typeset.ts applies them.
  return markup.replaceAll(' style="', ' data-style="');
}

const DISPLAY: readonly (readonly [string, string])[] = [
  ['$$', '$$'],
  ['\\[', '\\]'],
];

export function math(md: MarkdownIt): void {
  md.inline.ruler.before('escape', 'math', (state, silent) => {
    const { src, pos, posMax } = state;
    let open: string;
    let close: string;
    if (src.startsWith('\\(', pos)) [open, close] = ['\\(', '\\)'];
    else if (src.startsWith('\\[', pos)) [open, close] = ['\\[', '\\]'];
    else if (src.startsWith('$$', pos)) [open, close] = ['$$', '$$'];
    else if (src[pos] === '$') [open, close] = ['$', '$'];
    else return false;
    const from = pos + open.length;
    let end = src.indexOf(close, from);
    while (end > 0 && open.startsWith('$') && src[end - 1] === '\\') end = src.indexOf(close, end + 1);
    if (end < 0 || end === from || end + close.length > posMax) return false;
    const content = src.slice(from, end);
    if (open === '$') {
      if (/^\s|\s$/.test(content) || /\d/.test(src[end + 1] ?? '') || content.includes('\n\n')) return false;
    }
    if (!silent) {
      const token = state.push('math', 'math', 0);
      token.content = content.trim();
      token.meta = { display: open === '$$' || open === '\\[' };
    }
    state.pos = end + close.length;
    return true;
  });

  md.block.ruler.before(
    'fence',
    'math_block',
    (state, startLine, endLine, silent) => {
      const begin = (state.bMarks[startLine] ?? 0) + (state.tShift[startLine] ?? 0);
      const first = state.src.slice(begin, state.eMarks[startLine]);
      const pair = DISPLAY.find(([open]) => first.startsWith(open));
      if (!pair || (state.sCount[startLine] ?? 0) - state.blkIndent >= 4) return false;
      const [open, close] = pair;
      const rest = first.slice(open.length);
      const lines: string[] = [];
      let line = startLine;
      const closedAt = rest.indexOf(close);
      if (closedAt >= 0) {
        if (rest.slice(closedAt + close.length).trim() !== '') return false; // text follows: an inline formula
        lines.push(rest.slice(0, closedAt));
      } else {
        lines.push(rest);
        let closed = false;
        for (line = startLine + 1; line < endLine; line++) {
          if ((state.sCount[line] ?? 0) < state.blkIndent) break;
          const text = state.src.slice(state.bMarks[line], state.eMarks[line]);
          const at = text.indexOf(close);
          if (at >= 0) {
            lines.push(text.slice(0, at));
            closed = true;
            break;
          }
          lines.push(text);
        }
        if (!closed) return false;
      }
      if (silent) return true;
      const token = state.push('math_block', 'math', 0);
      token.block = true;
      token.content = lines.join('\n').trim();
      token.map = [startLine, line + 1];
      state.line = line + 1;
      return true;
    },
    { alt: ['paragraph', 'reference', 'blockquote', 'list'] },
  );

  md.renderer.rules.math = (tokens, i) => {
    const token = tokens[i];
    return formula(token?.content ?? '', (token?.meta as { display?: boolean } | null)?.display === true);
  };
  md.renderer.rules.math_block = (tokens, i) =>
    `<div class="formula" tabindex="0" role="region" aria-label="Formula">${formula(tokens[i]?.content ?? '', true)}</div>\n`;
}
