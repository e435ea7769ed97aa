// Streamed text is announced to screen readers a sentence at a time.

/** Splits off the complete sentences of text; the rest waits for more. Markdown's marks are not spoken. */
export function takeSentences(text: string): { spoken: string; rest: string } {
  const end = /[.!?…。！？](?=["')\]”’]*\s)|\n\n/g;
  let cut = 0;
  for (let m = end.exec(text); m; m = end.exec(text)) cut = m.index + m[0].length;
  return { spoken: plain(text.slice(0, cut)), rest: text.slice(cut) };
}

export function plain(text: string): string {
  return text
    .replace(/```[\s\S]*?(```|$)/g, ' (code) ')
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replace(/[*_`#>|]+/g, '')
    .replace(/\s+/g, ' ')
    .trim();
}
