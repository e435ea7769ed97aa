// What a transcript can do to the page: hostile text, long chats, a long answer, and the keyboard alone.

import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { importMessages, openChat as open, turns } from './fixtures.mjs';
import { HOSTILE } from './hostile.mjs';
import { answered, ask, picture, ready, record, startInBrowser, temporaryFolder, until } from './harness.mjs';

const importChat = (page, title, texts) => importMessages(page, title, turns(texts));

describe('hostile transcripts', () => {
  it(`${HOSTILE.length} payloads cause no request, no script, no navigation and no dead bindings`, async () => {
    const s = await startInBrowser();
    const { page } = s;
    try {
      await ready(page);
      await page.evaluate(() => (window.harmed = []));
      page.on('dialog', (d) => {
        s.errors.push(`a dialog opened: ${d.message()}`);
        void d.dismiss();
      });
      let navigations = 0;
      page.on('framenavigated', () => navigations++);
      for (let i = 0; i < HOSTILE.length; i += 20) {
        const part = HOSTILE.slice(i, i + 20);
        await importChat(page, `hostile ${i}`, part.flatMap((payload) => [payload, payload]));
        await open(page, `hostile ${i}`);
        await page.locator('article').nth(1).waitFor();
        // Through the whole of it, so that every message is rendered.
        await page.evaluate(async () => {
          for (const message of document.querySelectorAll('.message')) {
            message.scrollIntoView();
            for (let n = 0; n < 3; n++) await new Promise(requestAnimationFrame);
          }
        });
        await until(() => page.evaluate(() => document.querySelectorAll('.placeholder').length < 3), 'the messages to be rendered');
        const found = await page.evaluate(() => [...document.querySelectorAll('.markdown *')].filter((e) => /^(script|iframe|img|object|embed|form|input|link|meta|base|style|video|audio)$/i.test(e.tagName) || [...e.attributes].some((a) => /^on/i.test(a.name) || (/^(href|src|action|xlink:href)$/i.test(a.name) && !/^https?:/i.test(a.value)))).map((e) => e.outerHTML));
        assert.deepEqual(found, [], `payloads from ${i}`);
        for (const link of await page.locator('.markdown a').all()) {
          await link.click({ force: true, timeout: 5000 }).catch(() => {});
          await page.keyboard.press('Escape');
        }
      }
      assert.deepEqual(await page.evaluate(() => window.harmed), [], 'a payload ran');
      assert.equal(navigations, 0);
      assert.ok(page.url().startsWith(s.address));
      const foreign = s.requests.filter((r) => !r.startsWith(s.address) && !r.startsWith(s.address.replace('http', 'ws')));
      assert.deepEqual(foreign, []);
      assert.deepEqual(s.errors, []);
      await picture(page, '20-hostile');
      assert.ok((await page.evaluate(() => window.go.main.App.About())).version, 'the bindings are dead');
    } finally {
      await s.stop();
    }
  });
});

/**
 * What a frame costs while act runs: from its beginning to the end of its script, style, layout and paint; and the time between frames, which
 * other programs on the machine lengthen too. Figures are recorded, not judged: see docs/performance.md.
 */
async function frames(page, act) {
  await page.evaluate(() => {
    window.frames_ = { work: [], between: [] };
    const after = new MessageChannel();
    let began = 0;
    let last = 0;
    after.port1.onmessage = () => window.frames_?.work.push(performance.now() - began);
    const tick = (now) => {
      if (!window.frames_) return;
      began = performance.now();
      if (last) window.frames_.between.push(now - last);
      last = now;
      after.port2.postMessage(0);
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  });
  await act();
  return page.evaluate(() => {
    const { work, between } = window.frames_;
    window.frames_ = null;
    const summary = (times) => {
      const sorted = times.slice(10).sort((x, y) => x - y);
      const at = (q) => Number((sorted[Math.floor((sorted.length - 1) * q)] ?? 0).toFixed(1));
      return { count: sorted.length, median: at(0.5), p95: at(0.95), longest: at(1) };
    };
    return { workMillis: summary(work), betweenMillis: summary(between) };
  });
}

/** Bytes of the page's heap after a collection. */
async function heapBytes(page) {
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('HeapProfiler.collectGarbage');
  const { usedSize } = await cdp.send('Runtime.getHeapUsage');
  await cdp.detach();
  return usedSize;
}

describe('long transcripts', () => {
  it('500 messages of 4 KB open, scroll, and lead back to their end', async () => {
    const s = await startInBrowser();
    const { page } = s;
    try {
      await ready(page);
      const words = 'A hummingbird hovers before a flower and drinks. **It** remembers `every` one of them.\n\n'.repeat(46).slice(0, 4096);
      await importChat(page, 'long chat', Array.from({ length: 500 }, (_, i) => `Number ${i}: ${words}`));
      const began = Date.now();
      await open(page, 'long chat');
      await page.waitForFunction(() => document.querySelector('.message:last-child .markdown p'));
      const opened = Date.now() - began;
      const scroll = await frames(page, async () => {
        for (let i = 0; i < 60; i++) {
          await page.mouse.move(600, 400);
          await page.mouse.wheel(0, -400);
        }
      });
      record('500 messages of 4 KB', { openedMillis: opened, scrolling: scroll, heapBytes: await heapBytes(page) });
      await page.getByRole('button', { name: 'To the end of the conversation' }).click();
      assert.ok(await page.locator('.scroller').evaluate((e) => e.scrollHeight - e.clientHeight - e.scrollTop < 4), 'the end is not the end');
      assert.deepEqual(s.errors, []);
    } finally {
      await s.stop();
    }
  });

  it('an answer of 100 KB with 200 code blocks streams at 800 tokens a second and does not move a reader who has scrolled away', async () => {
    const folder = temporaryFolder();
    const file = join(folder, 'answer.md');
    const block = (i) => `Step ${i} explains how the cache keeps an expert, in *a few* words, with some more to fill the paragraph as a model would.\n\n\`\`\`go\nfunc step${i}(x []float32) float32 {\n\tsum := float32(0)\n\tfor _, v := range x {\n\t\tsum += v * ${i}\n\t}\n\treturn sum // of everything, weighted by ${i}, which makes this line rather long\n}\n\`\`\`\n\n| a | b |\n|---|--:|\n| ${i} | ${i * 2} |\n\n`;
    const long = Array.from({ length: 200 }, (_, i) => block(i)).join('').padEnd(100_000, 'The end. ');
    writeFileSync(file, long);
    process.env.COLIBRI_REPLAY = file;
    process.env.COLIBRI_REPLAY_RATE = '800';
    const s = await startInBrowser();
    delete process.env.COLIBRI_REPLAY;
    const { page } = s;
    try {
      await ready(page);
      const answer = await ask(page, 'Explain the cache at length.');
      await until(() => page.evaluate(() => document.querySelectorAll('figure.code').length > 60), 'the first 60 code blocks', 90_000);
      const steady = await frames(page, () => until(() => page.evaluate(() => document.querySelectorAll('figure.code').length >= 150), 'the next 90', 120_000));
      record('100 KB answer with 200 code blocks at 800 tok/s', { frames: steady, heapBytes: await heapBytes(page) });
      // The reader scrolls away while the text still grows.
      await page.mouse.move(600, 400);
      await page.mouse.wheel(0, -600);
      await page.getByRole('button', { name: 'To the end of the conversation' }).waitFor();
      await page.evaluate(() => new Promise((done) => setTimeout(done, 500))); // the smooth scroll ends
      const place = await page.locator('.scroller').evaluate((e) => e.scrollTop);
      await answered(answer, 120_000);
      const now = await page.locator('.scroller').evaluate((e) => e.scrollTop);
      assert.ok(Math.abs(now - place) < 3, `the view moved from ${place} to ${now} under a reader who had scrolled away`);
      assert.deepEqual(s.errors, []);
      await picture(page, '21-long-answer');
    } finally {
      await s.stop();
      rmSync(folder, { recursive: true });
    }
  });
});

describe('the keyboard', () => {
  it('alone reaches everything', async () => {
    const s = await startInBrowser();
    const { page } = s;
    try {
      await ready(page);
      await importChat(page, 'a chat', ['A question', 'An answer']);
      await open(page, 'a chat');
      await page.getByRole('article', { name: 'Answer' }).waitFor();
      const reached = new Set();
      for (let i = 0; i < 60; i++) {
        await page.keyboard.press('Tab');
        reached.add(await page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent?.trim() ?? ''));
      }
      const all = [...reached].join('\n');
      for (const part of ['Hide the sidebar', 'New chat', 'Search chats', 'a chat', 'Actions for a chat', 'Settings', 'Colibri Mini', 'Memory.', 'Activity', 'Edit and ask again', 'Copy the answer', 'Another answer', 'Your question', 'Instructions and sampling'])
        assert.ok(all.includes(part), `Tab does not reach “${part}”; it reached:\n${all}`);
    } finally {
      await s.stop();
    }
  });
});
