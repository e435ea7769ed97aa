// A growing text is rendered block by block: what is complete is rendered once, only the last block again. The work for
// each piece is then bounded by the size of a block, not of the answer.

export interface Block {
  source: string;
  html: string;
}

export interface Renderer {
  render(source: string): string;
  blockStarts(source: string): number[];
}

/** Definitions of link references work across blocks; a text with one is rendered whole when it is complete. */
const REFERENCE = /^ {0,3}\[[^\]\n]+\]:/m;

/** An open block that grows beyond this is shown as plain text until it is complete, but for its first part. */
const MAX_OPEN_CODE = 8_000;

export class BlockRenderer {
  private readonly renderer: Renderer;
  private source = '';
  private done: Block[] = [];
  private doneLength = 0;
  private open: Block | null = null;

  constructor(renderer: Renderer) {
    this.renderer = renderer;
  }

  /** Takes the whole text so far and returns its blocks. Complete blocks are the same objects as before. */
  update(text: string, complete: boolean): Block[] {
    if (!text.startsWith(this.source)) this.reset();
    this.source = text;
    if (complete && REFERENCE.test(text)) {
      this.reset();
      this.source = text;
      this.done = [{ source: text, html: this.renderer.render(text) }];
      this.doneLength = text.length;
      return this.done;
    }
    this.settle(complete);
    const tail = text.slice(this.doneLength);
    if (tail.trim() === '') this.open = null;
    else if (this.open?.source !== tail || (complete && !this.openWhole))
      this.open = { source: tail, html: this.renderOpen(tail, complete) };
    return this.open ? [...this.done, this.open] : [...this.done];
  }

  /** Moves complete blocks out of the tail. */
  private settle(complete: boolean): void {
    const tail = this.source.slice(this.doneLength);
    if (!complete && !/\n[ \t]*\n|\n[`~]{3}/.test(tail) && !tail.startsWith('#')) return; // most pieces end no block
    const starts = this.renderer.blockStarts(tail);
    if (starts.length < 2) return;
    const offsets = lineOffsets(tail);
    for (let i = 0; i + 1 < starts.length; i++) {
      const from = offsets[starts[i] ?? 0] ?? 0;
      const to = offsets[starts[i + 1] ?? 0] ?? tail.length;
      const source = tail.slice(from, to);
      // Most were complete when they were rendered last, but for the empty line below them.
      const html =
        this.openWhole?.source.trimEnd() === source.trimEnd() ? this.openWhole.html : this.renderer.render(source);
      this.done.push({ source, html });
    }
    this.doneLength += offsets[starts.at(-1) ?? 0] ?? 0;
  }

  /** The open block, unless part of it is shown as plain text. */
  private get openWhole(): Block | null {
    return this.open && this.open.source.length <= MAX_OPEN_CODE ? this.open : null;
  }

  private renderOpen(tail: string, complete: boolean): string {
    if (complete || tail.length <= MAX_OPEN_CODE) return this.renderer.render(tail);
    return this.renderer.render(tail.slice(0, MAX_OPEN_CODE)) + plainTail(tail.slice(MAX_OPEN_CODE));
  }

  private reset(): void {
    this.source = '';
    this.done = [];
    this.doneLength = 0;
    this.open = null;
  }
}

function plainTail(text: string): string {
  const escaped = text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
  return `<pre class="tail">${escaped}</pre>`;
}

function lineOffsets(text: string): number[] {
  const offsets = [0];
  for (let i = text.indexOf('\n'); i >= 0; i = text.indexOf('\n', i + 1)) offsets.push(i + 1);
  return offsets;
}
