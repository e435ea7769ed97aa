// What the tests bring along: conversations as export files, a model that thinks, and the looks in which the window is tried.

import { cpSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { root, temporaryFolder } from './harness.mjs';

/** Both themes at the least size, at the usual one, and at the usual one enlarged to 200 %. */
const SIZES = [
  { name: '1280x800', viewport: { width: 1280, height: 800 }, scale: 1 },
  { name: '880x560', viewport: { width: 880, height: 560 }, scale: 1 },
  { name: '200-percent', viewport: { width: 640, height: 400 }, scale: 2 },
];
export const LOOKS = ['light', 'dark'].flatMap((theme) => SIZES.map((size) => ({ ...size, theme, name: `${size.name}-${theme}` })));

/** Looks for walks that take a minute each: every size and both themes, but not every pair. COLIBRI_E2E_ALL=1 walks all six. */
export const WALKS = process.env.COLIBRI_E2E_ALL ? LOOKS : LOOKS.filter((_, i) => i === 0 || i === 4 || i === 2);

const message = (id, parent, role, text, more = {}) => ({ id, parent, role, text, thinking: '', state: 'done', error: '', created: 1000, receipt: null, ...more });

/** A conversation as an export file has it; the last message is shown. */
function conversation(title, messages) {
  return { conversation: { id: 'c', title, head: messages.at(-1).id, created: 1, updated: 2, systemPrompt: '', draft: '', pinned: false, sampling: null }, messages };
}

/** Questions and answers in turn. */
export const turns = (texts) => texts.map((text, i) => message(`m${i}`, i === 0 ? '' : `m${i - 1}`, i % 2 === 0 ? 'user' : 'assistant', text));

/** An export file with many conversations, the newest first; each has its number in its title and, spelled out, in its last answer. */
export function manyConversations(file, count) {
  const words = 'a cache keeps what it expects to need and lets go of what was not asked for the longest while the disk reads the next expert and the bird drinks from a flower'.split(' ');
  const text = (seed, length) => Array.from({ length }, (_, i) => words[(seed * 7 + i * (1 + (seed % 5))) % words.length]).join(' ');
  const conversations = Array.from({ length: count }, (_, n) => {
    const texts = Array.from({ length: 6 }, (_, i) => text(n + i, i % 2 ? 120 : 20) + (i === 5 ? ` needle${n}` : ''));
    return conversation(`Chat number ${n}`, turns(texts));
  });
  writeFileSync(file, JSON.stringify({ format: 'colibri-conversations', version: 1, conversations }));
}

/**
 * Imports by the page's own call, not by the menu: the menu's event reaches the development build's own window too, and whichever of the two
 * asks second would take the answer meant for the next dialog.
 */
export async function importMessages(page, title, messages) {
  const folder = temporaryFolder();
  const file = join(folder, 'chat.json');
  writeFileSync(file, JSON.stringify({ format: 'colibri-conversations', version: 1, conversations: [conversation(title, messages)] }));
  await page.evaluate((f) => window.go.main.Dev.Answer(f), file);
  await page.evaluate(() => window.go.main.App.Import());
  await page.getByRole('navigation').getByText(title, { exact: true }).waitFor();
  rmSync(folder, { recursive: true });
}

export const openChat = (page, title) => page.getByRole('navigation').getByText(title, { exact: true }).first().click();

/** An answer of about so many bytes, of steps that each have a paragraph, a block of code and a table. */
export function longAnswer(codeBlocks, bytes) {
  const filler = 'The cache keeps what it expects to need, and lets go of what was not asked for the longest. ';
  const step = (i) =>
    `Step ${i} explains how the cache keeps an expert, in *a few* words, with \`evict()\` in it. %\n\n\`\`\`go\nfunc step${i}(x []float32) float32 {\n\tsum := float32(0)\n\tfor _, v := range x {\n\t\tsum += v * ${i}\n\t}\n\treturn sum // of everything, weighted by ${i}, which makes this line rather long\n}\n\`\`\`\n\n| a | b |\n|---|--:|\n| ${i} | ${i * 2} |\n\n`;
  return Array.from({ length: codeBlocks }, (_, i) => {
    const text = step(i);
    const room = Math.max(0, Math.round(bytes / codeBlocks) - text.length + 1);
    return text.replace('%', filler.repeat(Math.ceil(room / filler.length)).slice(0, room));
  }).join('');
}

export const receipt = {
  model: 'Colibri Mini', backend: 'cpu', promptTokens: 812, reusedTokens: 790, tokens: 431, finishReason: 'stop', timeToFirstTokenMillis: 812, tokensPerSecond: 7.91, prefillTokensPerSecond: 120,
  readBytes: 2.13e9, hitRate: 0.88, memoryLimitBytes: 32e9, seed: 4711,
  sampling: { temperature: 0.7, topP: 0.95, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0, seed: -1, maxTokens: 4096 },
  attentionMillis: 9000, expertMillis: 30000, waitMillis: 14000, otherMillis: 1500, droppedMessages: 0,
};

const ANSWER = `# How a cache decides

A cache keeps what it expects to need. The *least recently used* rule throws out what was **not asked for** the longest, see [the notes](https://example.org/notes) and \`evict()\`.

1. Look the expert up.
2. If it is there, use it.
   - count the use
   - move it to the front

\`\`\`go
// Acquire returns the expert, reading it when it is not in memory.
func (c *Cache) Acquire(layer, expert int) (*Slot, error) {
	if s, ok := c.slots[key{layer, expert}]; ok {
		c.hits++
		return s, nil
	}
	return c.read(layer, expert) // waits for the disk, which takes about two milliseconds on a fast one
}
\`\`\`

## Figures

| memory | hit rate | tokens a second |
|:--|--:|--:|
| 8 GB | 41 % | 1.8 |
| 32 GB | 88 % | 7.9 |

The expected time of a token is

$$ t = \\sum_{l=1}^{L} \\left( c_l + (1 - h_l)\\, \\frac{k\\,b}{d} \\right) $$

with $h_l$ the hit rate and $d$ the speed of the disk.

> Measure first. A cache that is too large can be slower than one that is too small.

- [x] a task that is done
- [ ] one that is not`;

/** A conversation with everything a transcript can show. */
export const EVERYTHING = [
  message('q1', '', 'user', 'How does an expert cache decide what to keep? Show me the code, the figures and the formula.'),
  message('a1', 'q1', 'assistant', ANSWER, { thinking: 'The question is about caches.\n\nI should explain the rule first, then give a small example.', receipt }),
  message('q2', 'a1', 'user', 'And if memory is short?'),
  message('a2', 'q2', 'assistant', 'Then fewer experts stay, and more are read for each word.', {
    state: 'failed', error: 'The disk “Models” is gone. What was written is kept. Connect it again and press Continue.', receipt: { ...receipt, droppedMessages: 6 },
  }),
];

/**
 * The bundled model, made to think: its template leaves <think> open, and its tokenizer calls the token of the full stop </think>. The first
 * sentence it writes is then its thinking, the rest its answer, through the whole of the real engine.
 */
export function thinkingModel(folder) {
  const model = join(folder, 'Thinker.colibri');
  cpSync(join(root, 'backend/bundled/model'), model, { recursive: true });
  for (const name of readdirSync(model).filter((n) => n.endsWith('.gz'))) {
    writeFileSync(join(model, name.slice(0, -3)), gunzipSync(readFileSync(join(model, name))));
    rmSync(join(model, name));
  }
  const tokenizer = JSON.parse(readFileSync(join(model, 'tokenizer.json'), 'utf8'));
  const { vocab } = tokenizer.model;
  const end = tokenizer.added_tokens.find((t) => t.content === '</think>');
  [vocab['.'], end.id] = [end.id, vocab['.']];
  vocab['</think>'] = end.id;
  writeFileSync(join(model, 'tokenizer.json'), JSON.stringify(tokenizer));
  writeFileSync(
    join(model, 'chat_template.jinja'),
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}{% else %}<|assistant|>\n{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n<think>\nWell{% endif %}",
  );
  return model;
}
