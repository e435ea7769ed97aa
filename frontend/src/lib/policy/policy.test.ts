import { describe, expect, it } from 'vitest';
import type { Container, Conversation, Message, ModelStatus, Receipt, Snapshot, Stats } from '../bridge/types';
import { gpuLines, timeSplit } from './activity';
import { droppedWords, readingWords, waitingWords } from './answer';
import { brightness, cellAt, cellWords, fitAtlas, parseAtlas, step } from './atlas';
import { composerAction, sendObstacle } from './composer';
import { meter } from './context';
import { groupByDay } from './days';
import { bytes, parameters, percent, rate, seconds, speedRange } from './format';
import { gauge } from './gauge';
import { inGroups } from './groups';
import { destination } from './links';
import { memoryChoice, memoryWords } from './memory';
import { byPart } from './licences';
import { banner, demands, description, formatWords, statusWords } from './model';
import { sameSampling } from './sampling';
import { ending, lines, samplingWords } from './receipt';
import { atEnd, followAfterScroll } from './scroll';
import { HEADING_HEIGHT, nearRows, ROW_HEIGHT } from './rows';
import { commandFor, keyLabel, SHORTCUTS } from './shortcuts';
import { marked } from './snippet';
import { plain, takeSentences } from './speech';
import { shownBranch } from './tree';

describe('figures', () => {
  it('are written as the Finder writes them', () => {
    expect([0, 1, 999, 1000, 99_449, 999_600, 21_000_000, 372e9].map(bytes)).toEqual([
      '0 bytes', '1 byte', '999 bytes', '1.0 KB', '99.4 KB', '1.0 MB', '21.0 MB', '372 GB',
    ]); // prettier-ignore
    expect([NaN, -1, Infinity].map(bytes)).toEqual(['–', '–', '–']);
    expect([31e6, 744e9, 1.5e12, 0].map(parameters)).toEqual(['31 M', '744 B', '1.5 T', '']);
    expect([0, NaN, 2.345, 45.67, 1234].map(rate)).toEqual(['–', '–', '2.35', '45.7', '1,234']);
    expect([0.873, NaN, 2].map(percent)).toEqual(['87 %', '0 %', '100 %']);
    expect([0.2, 2.34, 42, 90].map(seconds)).toEqual(['200 ms', '2.3 s', '42 s', '1 min 30 s']);
    const ranges: [number, number][] = [[3, 5], [5.23, 7.41], [0.61, 0.64], [0.04, 0.072], [0, 4], [9.7, 12.4], [96, 1340], [0, 0]]; // prettier-ignore
    expect(ranges.map(([low, high]) => speedRange(low, high))).toEqual([
      '3 to 5 tok/s', '5 to 7 tok/s', 'about 0.6 tok/s', '0.04 to 0.07 tok/s', 'about 4 tok/s', '10 to 12 tok/s', '96 to 1,300 tok/s', '',
    ]); // prettier-ignore
  });
});

describe('the sidebar', () => {
  const now = new Date(2026, 10, 30, 12).getTime();
  const day = 86_400_000;
  const c = (id: string, updated: number, pinned = false) => ({ id, updated, pinned }) as Conversation;
  it('groups by day, pinned first, newest first', () => {
    const groups = groupByDay(
      [c('old', now - 200 * day), c('a', now - 1000), c('b', now), c('y', now - 13 * 3_600_000), c('p', now - 300 * day, true), c('w', now - 4 * day), c('m', now - 20 * day), c('last', now - 500 * day)],
      now,
    ); // prettier-ignore
    expect(groups.map((g) => [g.label, g.conversations.map((x) => x.id).join()])).toEqual([
      ['Pinned', 'p'], ['Today', 'b,a'], ['Yesterday', 'y'], ['Previous 7 days', 'w'], ['Previous 30 days', 'm'], ['May', 'old'], ['July 2025', 'last'],
    ]); // prettier-ignore
  });
  it('marks matches', () => {
    expect(marked('a \u0002bird\u0003 and \u0002more\u0003')).toEqual([
      { text: 'a ', match: false }, { text: 'bird', match: true }, { text: ' and ', match: false }, { text: 'more', match: true },
    ]); // prettier-ignore
    expect(marked('plain')).toEqual([{ text: 'plain', match: false }]);
    expect(marked('')).toEqual([]);
  });
});

describe('the shown branch', () => {
  const m = (id: string, parent: string, role: 'user' | 'assistant', created: number) =>
    ({ id, parent, role, created }) as Message;
  const all = new Map(
    [m('q', '', 'user', 1), m('a1', 'q', 'assistant', 2), m('a2', 'q', 'assistant', 3), m('q2', 'a2', 'user', 4), m('edited', '', 'user', 5)].map((x) => [x.id, x]),
  ); // prettier-ignore
  it('goes from the head to the root and knows the other versions', () => {
    expect(shownBranch(all, 'q2').map((s) => [s.message.id, s.versions.join()])).toEqual([
      ['q', 'q,edited'], ['a2', 'a1,a2'], ['q2', 'q2'],
    ]); // prettier-ignore
  });
  it('ends where a tree is damaged', () => {
    expect(shownBranch(all, 'nowhere')).toEqual([]);
    const loop = new Map([['x', m('x', 'y', 'user', 1)], ['y', m('y', 'x', 'assistant', 2)]]); // prettier-ignore
    expect(shownBranch(loop, 'x')).toHaveLength(2);
  });
});

describe('following the text', () => {
  const view = (scrollTop: number) => ({ scrollTop, scrollHeight: 1000, clientHeight: 400 });
  it('lets go at one pixel up and takes hold at the end', () => {
    expect(atEnd(view(600))).toBe(true);
    expect(atEnd(view(598.5))).toBe(true);
    expect(followAfterScroll(true, 600, view(590))).toBe(false);
    expect(followAfterScroll(true, 500, view(500))).toBe(true); // the text grew under a still view
    expect(followAfterScroll(false, 100, view(300))).toBe(false);
    expect(followAfterScroll(false, 300, view(600))).toBe(true);
  });
});

describe('the composer', () => {
  const key = (over: object) => ({ key: 'Enter', keyCode: 13, shiftKey: false, altKey: false, metaKey: false, ctrlKey: false, isComposing: false, ...over }); // prettier-ignore
  it('sends on Enter, and never while an input method is composing', () => {
    expect(composerAction(key({}), false)).toBe('send');
    expect(composerAction(key({ shiftKey: true }), false)).toBe('none');
    expect(composerAction(key({ isComposing: true }), false)).toBe('none');
    expect(composerAction(key({ keyCode: 229 }), false)).toBe('none'); // WebKit, after compositionend
    expect(composerAction(key({ key: 'Escape' }), true)).toBe('stop');
    expect(composerAction(key({ key: 'Escape' }), false)).toBe('none');
  });
  it('says why a question cannot be sent', () => {
    expect(sendObstacle({ text: 'x', generating: false, modelFailed: false })).toBe('');
    expect(sendObstacle({ text: '  \n', generating: false, modelFailed: false })).toContain('Type');
    expect(sendObstacle({ text: 'x', generating: true, modelFailed: false })).toContain('Stop it');
    expect(sendObstacle({ text: 'x', generating: false, modelFailed: true })).toContain('another one');
  });
});

describe('the context meter', () => {
  it('shows tokens, the wait, and what will be left out', () => {
    expect(meter(null)).toBeNull();
    expect(meter({ known: false, tokens: 0, limit: 0, prefillSeconds: 0 })).toBeNull();
    const calm = meter({ known: true, tokens: 500, limit: 2000, prefillSeconds: 3.2 });
    expect(calm).toMatchObject({ share: 0.25, level: 'calm' });
    expect(calm?.sentence).toContain('The first word comes in about 3.2 s.');
    expect(meter({ known: true, tokens: 1600, limit: 2000, prefillSeconds: 0 })?.level).toBe('full');
    expect(meter({ known: true, tokens: 2500, limit: 2000, prefillSeconds: 0 })).toMatchObject({
      share: 1,
      level: 'over',
    });
  });
});

const snapshot = (over: Partial<Snapshot>): Snapshot => ({
  hits: 0, misses: 0, evictions: 0, reads: 0, readBytes: 0, tokens: 0, tokenNanos: 0, waitNanos: 0, loadingSlots: 0, cachedSlots: 0, pinnedSlots: 0, freeSlots: 0,
  limitBytes: 0, residentBytes: 0, slotBytes: 0, stagingBytes: 0, kvBytes: 0, scratchBytes: 0, usedBytes: 0, peakBytes: 0, gpu: null, ...over,
}); // prettier-ignore
const stats = (s: Partial<Snapshot>, over: Partial<Stats> = {}): Stats => ({
  snapshot: snapshot(s), hitRate: 0, tokensPerSecond: 0, readBytesPerSecond: 0, split: { tokens: 0, attentionMillis: 0, expertMillis: 0, waitMillis: 0, otherMillis: 0 }, pressure: '',
  memory: { totalBytes: 16e9, freeBytes: 4e9, fileCacheBytes: 2e9, compressedBytes: -1, processBytes: 1e9 }, ...over,
}); // prettier-ignore
const model = (phase: ModelStatus['phase']): ModelStatus => ({
  phase,
  id: 'm',
  name: 'M',
  stage: '',
  progress: 0.43,
  error: '',
  backend: '',
  context: 0,
});

describe('the memory gauge', () => {
  const s = { limitBytes: 1000, residentBytes: 100, slotBytes: 400, stagingBytes: 50, kvBytes: 60, scratchBytes: 40, usedBytes: 650, pinnedSlots: 1, cachedSlots: 2, loadingSlots: 0, freeSlots: 1 }; // prettier-ignore
  it('adds up to the limit and counts reads in flight', () => {
    const g = gauge(stats(s), model('ready'));
    expect(g.segments.reduce((sum, x) => sum + x.bytes, 0)).toBeCloseTo(1000);
    expect(g.segments.reduce((sum, x) => sum + x.share, 0)).toBeCloseTo(1);
    expect(Object.fromEntries(g.segments.map((x) => [x.kind, x.bytes]))).toEqual({
      resident: 100, pinned: 100, cached: 200, reading: 50, conversation: 60, scratch: 40, free: 450,
    }); // prettier-ignore
  });
  it('reads as one sentence', () => {
    const g = gauge(stats(s, { pressure: 'warning' }), model('ready'));
    expect(g.sentence).toMatch(
      /^650 bytes of 1.0 KB used: always in memory 100 bytes, .*working memory 40 bytes\. Memory is getting tight\.$/,
    );
    expect(gauge(stats({}), model('none')).sentence).toBe('No model is in memory.');
  });
  it('shows the rest of the machine, and never more than there is', () => {
    const machine = gauge(stats(s), model('ready')).machine;
    expect(machine.map((p) => [p.kind, p.bytes])).toEqual([['colibri', 1e9], ['other', 9e9], ['cache', 2e9], ['free', 4e9]]); // prettier-ignore
    expect(machine.reduce((sum, p) => sum + p.share, 0)).toBeCloseTo(1);
  });
});

describe('activity', () => {
  it('splits a token’s time', () => {
    const receipt = { tokens: 10, attentionMillis: 20, expertMillis: 50, waitMillis: 25, otherMillis: 5 } as Receipt;
    const idle = { tokens: 0, attentionMillis: 0, expertMillis: 0, waitMillis: 0, otherMillis: 0 };
    expect(timeSplit(idle, receipt)?.parts.map((p) => [p.kind, p.share, p.text])).toEqual([
      ['attention', 0.2, '2.00 ms'], ['experts', 0.5, '5.00 ms'], ['disk', 0.25, '2.50 ms'], ['rest', 0.05, '0.50 ms'],
    ]); // prettier-ignore
    const live = timeSplit(
      { tokens: 2, attentionMillis: 50, expertMillis: 100, waitMillis: 250, otherMillis: 0 },
      receipt,
    );
    expect(live?.title).toBe('Time for each token, now');
    expect(live?.parts.map((p) => p.text)).toEqual(['25.0 ms', '50.0 ms', '125 ms', '0.00 ms']);
    const prefill = timeSplit({ ...idle, attentionMillis: 30, waitMillis: 10 }, receipt);
    expect(prefill?.title).toBe('Time for reading the question, now');
    expect(prefill?.parts.map((p) => p.text)).toEqual(['75 %', '0 %', '25 %', '0 %']);
    expect(timeSplit(idle, null)).toBeNull();
  });
  it('says what the graphics processor did, and nothing where the CPU computes', () => {
    expect(gpuLines(null)).toEqual([]);
    const gpu = {
      blocks: 12_000,
      fallenBack: 0,
      experts: 96_000,
      gpuMillis: 61_500,
      setupMillis: 840,
      scatterMillis: 12.4,
      commitMillis: 0,
    };
    expect(gpuLines(gpu).map((l) => [l.label, l.value])).toEqual([
      ['Computing', '1 min 2 s'], ['Preparing its work', '840 ms'], ['Collecting results', '12 ms'], ['Committing memory', '0 ms'],
      ['Blocks of experts done', '12,000'], ['Left to the CPU', 'none'],
    ]); // prettier-ignore
    expect(gpuLines({ ...gpu, fallenBack: 3 }).at(-1)?.value).toBe('3');
  });
  it('reads and draws the atlas', () => {
    const buffer = new ArrayBuffer(8 + 5 * 6);
    const view = new DataView(buffer);
    view.setUint32(0, 3, true);
    view.setUint32(4, 2, true);
    view.setUint32(8 + 4 * 2, 5, true); // layer 1, expert 0: used 5 times
    view.setUint8(8 + 24 + 3, 3); // layer 1, expert 1: pinned
    view.setUint8(8 + 24 + 4, 2); // layer 2, expert 0: cached
    const a = parseAtlas(buffer);
    if (!a) throw new Error('nothing was read');
    expect(a.sparse).toEqual([1, 2]); // layer 0 is dense
    const fit = fitAtlas(a, 100, 300);
    expect(cellAt(a, fit, 60, 3)).toEqual({ layer: 1, expert: 1 });
    expect(cellAt(a, fit, 101, 3)).toBeNull();
    expect(cellWords(a, { layer: 1, expert: 0 })).toBe('Layer 1, expert 0: on disk, used 5 times.');
    expect(parseAtlas(new ArrayBuffer(9))).toBeNull();
    expect(brightness(0, 10)).toBeLessThan(brightness(1, 10));
    expect(brightness(10, 10)).toBe(1);
  });
});

describe('links', () => {
  it('lead to web addresses only', () => {
    for (const href of [
      'javascript:alert(1)',
      'data:text/html,x',
      'file:///etc/passwd',
      'mailto:a@b.c',
      '/relative',
      '-oops',
      '',
    ])
      expect(destination(href, '')).toBeNull();
    expect(destination('https://example.org/a?b#c', 'here')).toEqual({
      address: 'https://example.org/a?b#c',
      host: 'example.org',
      warning: '',
    });
  });
  it('warn where they pretend', () => {
    const warning = (href: string, text = '') => destination(href, text)?.warning;
    expect(warning('https://еxample.org/')).toContain('letters'); // a Cyrillic е
    expect(warning('https://bank.com@evil.example/')).toContain('user name');
    expect(warning('https://evil.example/', 'https://bank.com/login')).toContain('another site');
    expect(warning('https://www.bank.com/', 'bank.com')).toBe('');
    expect(warning(`https://x.example/?q=${'a'.repeat(300)}`)).toContain('data');
    expect(warning('http://x.example/')).toContain('not encrypted');
  });
});

describe('speech', () => {
  it('takes whole sentences and leaves the rest', () => {
    expect(takeSentences('One. Two is 3.5 long! And')).toEqual({ spoken: 'One. Two is 3.5 long!', rest: ' And' });
    expect(takeSentences('no end yet')).toEqual({ spoken: '', rest: 'no end yet' });
    expect(plain('**Bold** [link](https://x) `code`\n```go\nx\n```')).toBe('Bold link code (code)');
  });
});

describe('receipts', () => {
  const r: Receipt = {
    model: 'M', backend: 'cpu', promptTokens: 30, reusedTokens: 10, tokens: 12, finishReason: 'stop', timeToFirstTokenMillis: 230, tokensPerSecond: 40, prefillTokensPerSecond: 900,
    readBytes: 5e6, hitRate: 0.9, memoryLimitBytes: 0, seed: 7, sampling: { temperature: 0.7, topP: 0.9, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0, seed: 7, maxTokens: 100 },
    droppedMessages: 0, attentionMillis: 0, expertMillis: 0, waitMillis: 0, otherMillis: 0,
  }; // prettier-ignore
  it('list what an answer took and how to repeat it', () => {
    const text = lines(r).map((l) => `${l.label}: ${l.value}`);
    expect(text).toContain('Prompt: 30 tokens, 10 remembered; 900 tok/s');
    expect(text).toContain('Seed: 7');
    expect(samplingWords({ ...r.sampling, temperature: 0 })).toBe('always the likeliest word');
  });
  it('say how an answer ended', () => {
    expect(ending('done', '', 'stop')).toBe('');
    expect(ending('done', '', 'length')).toContain('longest');
    expect(ending('done', '', 'context')).toContain('full');
    expect(ending('stopped', '', '')).toContain('kept');
    expect(ending('stopped', '', '', true)).toBe('Stopped before the first word.');
    expect(ending('interrupted', '', '')).toContain('kept');
    expect(ending('failed', 'The disk is gone.', '')).toBe('The disk is gone.');
  });
});

describe('models and memory', () => {
  const c = { name: 'Big', family: 'glm_moe_dsa', parameters: 744e9, format: 'int4-g64', experts: 256, perToken: 8, bytes: 372e9, needBytes: 30e9, speedLow: 0, speedHigh: 0 } as Container; // prettier-ignore
  it('are described', () => {
    expect(description(c)).toBe('GLM-5 · 744 B parameters · 4-bit (int4-g64) · 8 of 256 experts for each word');
    expect(demands(c)).toBe('372 GB on disk · needs 30.0 GB of memory');
    expect(demands(c, true)).toBe('372 GB on disk · needs 30.0 GB of memory · finding out how fast …');
    expect(demands({ ...c, speedLow: 3, speedHigh: 5 }, true)).toBe(
      '372 GB on disk · needs 30.0 GB of memory · 3 to 5 tok/s',
    );
    expect(['none', 'loading', 'ready', 'failed'].map((p) => statusWords(model(p as ModelStatus['phase'])))).toEqual([
      'not loaded', 'loading 43 %', 'ready', 'could not be loaded',
    ]); // prettier-ignore
  });
  it('have a slider whose ends make sense', () => {
    for (const total of [8e9, 16e9, 64e9, 128e9]) {
      const choice = memoryChoice(c, total);
      expect(choice.floor).toBe(30e9);
      expect(choice.ceiling).toBeGreaterThanOrEqual(choice.floor);
      expect(choice.suggested).toBeGreaterThanOrEqual(choice.floor);
    }
    expect(memoryChoice({ ...c, needBytes: 1e9 }, 64e9).ceiling).toBe(48e9);
    expect(memoryWords(memoryChoice({ ...c, bytes: 30e6, needBytes: 9e6 }, 16e9), { ...c, bytes: 30e6 }, 0)).toContain(
      'All of Big fits',
    );
    expect(memoryWords(memoryChoice(c, 64e9), c, 40e9)).toContain('More memory');
  });
});

describe('shortcuts', () => {
  it('need the command key of one platform, not of both', () => {
    const k = { key: 'n', shiftKey: false, altKey: false, metaKey: false, ctrlKey: true };
    expect(commandFor(k)).toBe('new-chat');
    expect(commandFor({ ...k, metaKey: true })).toBeNull();
    expect(commandFor({ ...k, ctrlKey: false })).toBeNull();
    expect(commandFor({ ...k, key: 'C', shiftKey: true })).toBe('copy-last');
    expect(commandFor({ ...k, key: 'c' })).toBeNull(); // copying stays copying
  });
  it('are unique', () => {
    expect(new Set(SHORTCUTS.map((s) => keyLabel(s, true))).size).toBe(SHORTCUTS.length);
  });
});

describe('long lists', () => {
  it('have on the page only the rows near the view, and every row at some place of it', () => {
    const counts = [3, 0, 2000, 40];
    const height = counts.length * HEADING_HEIGHT + 2043 * ROW_HEIGHT;
    const seen = counts.map(() => new Set<number>());
    for (let top = 0; top < height; top += 300) {
      const spans = nearRows(counts, { top, height: 600 });
      expect(spans.reduce((n, s) => n + s.to - s.from, 0)).toBeLessThan(60);
      spans.forEach((s, g) => {
        for (let i = s.from; i < s.to; i++) seen[g]?.add(i);
      });
    }
    expect(seen.map((s) => s.size)).toEqual(counts);
  });
  it('of messages are cut into groups in order', () => {
    expect(inGroups([1, 2, 3, 4, 5], 2)).toEqual([[1, 2], [3, 4], [5]]);
    expect(inGroups([], 2)).toEqual([]);
  });
});

describe('what is said around an answer', () => {
  const model = { phase: 'ready', id: 'm', name: 'GLM', stage: '', progress: 0.43, error: '', backend: '', context: 0 } as ModelStatus; // prettier-ignore
  it('says what is waited for', () => {
    expect(waitingWords({ ...model, phase: 'loading' })).toBe('Waiting for GLM, which is loading (43 %)');
    expect(waitingWords(model)).toBe('Waiting for its turn');
    expect(readingWords(512, 2048)).toBe('Reading the conversation, 25 % of 2,048 tokens');
  });
  it('says how much was left out, and that instructions were not', () => {
    expect(droppedWords(1)).toMatch(/^The oldest message was left out .* Instructions are always kept\.$/);
    expect(droppedWords(1200)).toMatch(/^The 1,200 oldest messages were left out/);
  });
  it('offers a way on while no model can answer', () => {
    const c = { name: 'GLM', missing: false } as Container;
    expect(banner(model, c)).toBeNull();
    expect(banner({ ...model, phase: 'loading' }, c)).toBeNull();
    expect(banner({ ...model, phase: 'none' }, c)).toEqual({
      level: 'info',
      text: 'No model is in memory.',
      load: 'Load GLM',
    });
    expect(banner({ ...model, phase: 'failed', error: 'Why.' }, c)).toEqual({
      level: 'error',
      text: 'Why.',
      load: 'Try again',
    });
    expect(banner({ ...model, phase: 'failed', error: 'Why.' }, { ...c, missing: true })?.load).toBe('');
  });
  it('names formats by their bits', () => {
    expect(['int4-g64', 'int8-row', 'fp8', 'mxfp4', 'bf16', 'odd'].map(formatWords)).toEqual([
      '4-bit (int4-g64)', '8-bit (int8-row)', '8-bit (fp8)', '4-bit (mxfp4)', '16-bit (bf16)', 'odd',
    ]); // prettier-ignore
  });
  it('knows a preset by its values, not by its seed', () => {
    const a = {
      temperature: 0.7,
      topP: 1,
      topK: 0,
      minP: 0,
      repetitionPenalty: 1,
      presencePenalty: 0,
      seed: 5,
      maxTokens: 10,
    };
    expect(sameSampling(a, { ...a, seed: -1 })).toBe(true);
    expect(sameSampling(a, { ...a, topK: 1 })).toBe(false);
  });
  it('lists every licence once', () => {
    const w = (name: string, part: string) => ({ name, part, version: '1', spdx: 'MIT', text: '' });
    const groups = byPart([w('a', 'page'), w('b', 'program'), w('c', 'new'), w('d', 'page')]);
    expect(groups.map((g) => `${g.title}: ${g.works.map((x) => x.name).join()}`)).toEqual([
      'In the program: b',
      'In the window: a,d',
      'Others: c',
    ]);
  });
});

describe('the atlas by keyboard', () => {
  const a = { layers: 4, experts: 3, sparse: [1, 3], heat: new Uint32Array(12), tiers: new Uint8Array(12), hottest: 0 };
  it('walks over the layers that have experts and stays inside', () => {
    expect(step(a, null, 'ArrowRight')).toEqual({ layer: 1, expert: 0 });
    expect(step(a, { layer: 1, expert: 0 }, 'ArrowDown')).toEqual({ layer: 3, expert: 0 });
    expect(step(a, { layer: 3, expert: 2 }, 'ArrowRight')).toEqual({ layer: 3, expert: 2 });
    expect(step(a, { layer: 1, expert: 1 }, 'ArrowUp')).toEqual({ layer: 1, expert: 1 });
    expect(step(a, null, 'Enter')).toBeNull();
  });
});
