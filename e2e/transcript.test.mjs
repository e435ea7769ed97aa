// What a transcript can do to the page: hostile text, long chats, a long answer, and the keyboard alone.

import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { importMessages, longAnswer, manyConversations, openChat as open, receipt, turns } from './fixtures.mjs';
import { HOSTILE } from './hostile.mjs';
import { answered, ask, heapBytes, inBrowser, picture, ready, record, startInBrowser, temporaryFolder, until } from './harness.mjs';

const importChat = (page, title, texts) => importMessages(page, title, turns(texts));

describe('hostile transcripts', () => {
  it(`${HOSTILE.length} payloads cause no request, no script, no navigation and no dead bindings`, inBrowser(async (page, s) => {
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
    await picture(page, '20-hostile');
    assert.ok((await page.evaluate(() => window.go.main.App.About())).version, 'the bindings are dead');
    for (const address of ['file:///etc/passwd', 'javascript:alert(1)', '-a Calculator', 'data:text/html,x', 'wails://wails/', 'https://', '/etc/passwd', '']) {
      const refused = await page.evaluate((a) => window.go.main.App.OpenLink(a).then(() => '', String), address);
      assert.match(refused, /^Only web addresses \(https and http\) can be opened\. Nothing was opened or changed\. Check the address\.$/, `“${address}” was opened`);
    }
  }));
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

describe('drops on the page', () => {
  it('of files and links are refused by it, of text taken where text is typed', inBrowser(async (page, s) => {
    const refused = await page.evaluate(() => {
      const drop = (fill, target, kind) => {
        const dataTransfer = new DataTransfer();
        fill(dataTransfer);
        const event = new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true });
        target.dispatchEvent(event);
        return event.defaultPrevented;
      };
      const file = (d) => d.items.add(new File(['x'], 'a.bin'));
      const link = (d) => d.setData('text/uri-list', 'https://example.org/');
      const text = (d) => d.setData('text/plain', 'a word');
      const field = document.querySelector('textarea');
      const all = {};
      for (const kind of ['dragenter', 'dragover', 'drop'])
        for (const [what, fill] of Object.entries({ file, link, text }))
          for (const [where, target] of Object.entries({ field, page: document.body, document })) all[`${kind} of ${what} on ${where}`] = drop(fill, target, kind);
      return all;
    });
    for (const [what, was] of Object.entries(refused)) assert.equal(was, !/text on field/.test(what), what);
    assert.ok(page.url().startsWith(s.address));
  }));
});

describe('long transcripts', () => {
  it('500 messages of 4 KB open, scroll, and lead back to their end', inBrowser(async (page) => {
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
  }));

  it('2,000 conversations are listed, searched and opened, and the window starts as with none', async () => {
    const dataDir = temporaryFolder();
    const file = join(dataDir, 'chats.json');
    manyConversations(file, 2000);
    /** From the load of the page until something can be typed, and until the list is there. */
    const load = async (page) => {
      const began = Date.now();
      await page.reload();
      await ready(page);
      const typing = Date.now() - began;
      await page.waitForFunction(() => document.querySelector('nav .list li, nav .list .empty'));
      return { typingMillis: typing, listMillis: Date.now() - began };
    };
    let s = await startInBrowser({ dataDir });
    try {
      await ready(s.page);
      const empty = await load(s.page);
      await s.page.evaluate((f) => window.go.main.Dev.Answer(f), file);
      const began = Date.now();
      assert.equal(await s.page.evaluate(() => window.go.main.App.Import()), 2000);
      await s.page.getByRole('navigation').getByText('Chat number 0', { exact: true }).waitFor();
      const imported = Date.now() - began;
      await s.stop({ keep: true });

      s = await startInBrowser({ dataDir });
      const { page } = s;
      await ready(page);
      await page.locator('nav .list li').first().waitFor();
      const full = await load(page);
      const rows = await page.locator('nav .list li').count();
      assert.ok(rows > 10 && rows < 120, `${rows} of 2,000 rows are on the page`);
      // The farthest row is there when it is scrolled to.
      await page.locator('nav .list').evaluate((e) => (e.scrollTop = e.scrollHeight));
      await page.getByRole('navigation').getByText('Chat number 1999', { exact: true }).waitFor();

      const searched = {};
      for (const [query, shown] of [['needle1234', 'Chat number 1234'], ['bird flower', ''], ['expe', ''], ['number 77', 'Chat number 77'], ['xyzzyplugh', 'Nothing found'], ['the disk', ''], ['e', '']]) {
        const { millis, text } = await page.evaluate(async (query) => {
          const field = document.querySelector('nav input[type=search]');
          const list = document.querySelector('nav .list');
          const found = () => list.querySelector('.hit, .empty') !== null;
          const until = (holds) =>
            new Promise((done) => {
              const look = () => holds() && (watching.disconnect(), done());
              const watching = new MutationObserver(look);
              watching.observe(list, { childList: true, subtree: true });
              look();
            });
          const type = (text) => {
            field.value = text;
            field.dispatchEvent(new InputEvent('input', { bubbles: true }));
          };
          type('');
          await until(() => !found());
          for (let n = 0; n < 3; n++) await new Promise(requestAnimationFrame); // the list is on the screen again
          const began = performance.now();
          type(query);
          await until(found);
          return { millis: performance.now() - began, text: list.innerText };
        }, query);
        searched[query] = Math.round(millis);
        assert.ok(text.includes(shown), `“${query}” shows ${text.slice(0, 200)}`);
      }
      await page.keyboard.press('Control+f');
      await page.keyboard.press('Control+a');
      await page.keyboard.type('needle1234');
      await page.locator('.hit').first().click();
      await page.getByText('needle1234').first().waitFor();
      record('2,000 conversations of 6 messages', { importedMillis: imported, searchedMillis: searched, startMillis: full, startWithNoneMillis: empty });
      assert.deepEqual(s.errors, []);
    } finally {
      await s.stop();
    }
  });

  it('an answer of 100 KB with 200 code blocks streams at 200 tokens a second and does not move a reader who has scrolled away', async () => {
    const folder = temporaryFolder();
    const file = join(folder, 'answer.md');
    writeFileSync(file, longAnswer(200, 100_000));
    const s = await startInBrowser({ env: { COLIBRI_REPLAY: file } });
    const { page } = s;
    const pace = (tokensPerSecond) => page.evaluate((n) => window.go.main.Dev.Pace(n), tokensPerSecond);
    const blocks = () => page.evaluate(() => document.querySelectorAll('figure.code').length);
    // Seldom enough not to be a part of what is measured.
    const written = (n) => page.waitForFunction((n) => document.querySelectorAll('figure.code').length >= n, n, { polling: 250, timeout: 240_000 });
    try {
      await ready(page);
      // At the pace that is judged near the beginning and at the end, where it would be slowest; quickly in between.
      const answer = await ask(page, 'Explain the cache at length.');
      await written(4);
      const beginning = await frames(page, () => written(20));
      await pace(3000);
      await written(150); // the page is some blocks behind by then
      await pace(200);
      await written(170);
      // The reader scrolls away while the text still grows.
      await page.mouse.move(600, 400);
      await page.mouse.wheel(0, -600);
      const back = page.getByRole('button', { name: 'To the end of the conversation' });
      await back.waitFor();
      // What is read must stand still on the screen. The scroll position may change: sections that come near get their true heights.
      // The smooth scroll of the wheel has ended once the same place has been under the pointer for twenty frames.
      const top = await page.evaluateHandle(async () => {
        const under = () => document.elementFromPoint(600, 400)?.closest('.markdown *');
        let element = under();
        for (let still = 0, before = NaN; still < 20; ) {
          await new Promise(requestAnimationFrame);
          const y = element?.getBoundingClientRect().top;
          still = y === before ? still + 1 : 0;
          before = y;
          if (still === 0) element = under();
        }
        return element;
      });
      const where = () => top.evaluate((e) => Math.round(e.getBoundingClientRect().top));
      const place = await where();
      await written(180);
      const now = await where();
      assert.ok(Math.abs(now - place) < 3, `what is read moved from ${place} to ${now} under a reader who had scrolled away`);
      await back.click();
      await written(184);
      const from = await blocks();
      assert.ok(from < 190, `${from} blocks of code were there when the last 16 were to be measured`);
      const end = await frames(page, () => written(200));
      await answered(answer, 120_000);
      assert.ok(await page.locator('.scroller').evaluate((e) => e.scrollHeight - e.clientHeight - e.scrollTop < 4), 'the view did not follow to the end');
      record('100 KB answer with 200 code blocks at 200 tok/s', { blocks4to20: beginning, blocks184to200: end, heapBytes: await heapBytes(page) });
      assert.deepEqual(s.errors, []);
      await picture(page, '21-long-answer');
    } finally {
      await s.stop();
      rmSync(folder, { recursive: true });
    }
  });
});

describe('an answer that was stopped before its first word', () => {
  it('says so, and has nothing to copy, to continue or to account for', inBrowser(async (page) => {
    const [question, answer] = turns(['Anything?', '']);
    await importMessages(page, 'nothing yet', [question, { ...answer, state: 'stopped', receipt: { ...receipt, tokens: 0 } }]);
    await open(page, 'nothing yet');
    const shown = page.getByRole('article', { name: 'Answer' });
    await shown.getByText('Stopped before the first word.').waitFor();
    assert.deepEqual(await shown.getByRole('button').evaluateAll((all) => all.map((b) => b.getAttribute('aria-label'))), ['Another answer']);
  }));
});

describe('the keyboard', () => {
  it('alone reaches everything', inBrowser(async (page) => {
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
  }));
});
