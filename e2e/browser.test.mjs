// Walks the features in Chromium against the real program: real bridge, real engine, real database, the bundled model.

import assert from 'node:assert/strict';
import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { thinkingModel, importMessages, openChat, turns, WALKS } from './fixtures.mjs';
import { answered, ask, picture, ready, root, startInBrowser, temporaryFolder, until } from './harness.mjs';

const container = join(root, 'testdata/containers/int8');

for (const look of WALKS) describe(look.name, () => {
  const other = look.theme === 'dark' ? 'light' : 'dark';
  let s;
  let page;

  before(async () => {
    s = await startInBrowser(look);
    page = s.page;
    await ready(page);
  });
  after(() => s?.stop());
  afterEach(() => {
    assert.deepEqual(s.errors.splice(0), [], 'the page reported errors');
    const foreign = s.requests.filter((r) => !r.startsWith(s.address) && !r.startsWith(s.address.replace('http', 'ws')));
    assert.deepEqual(foreign, [], 'the page asked for something outside');
  });

  const dev = (method, ...args) => page.evaluate(([m, a]) => window.go.main.Dev[m](...a), [method, args]);
  const sidebar = () => page.getByRole('navigation', { name: 'Chats' });
  const rows = () => sidebar().getByRole('listitem');

  // The words beside the name are left out of a narrow window.
  const modelReady = (name) => page.locator('.picker', { hasText: name }).locator('.state.ready').waitFor({ state: 'attached', timeout: 60_000 });

  async function newChat() {
    await page.keyboard.press('Control+n');
    await page.getByText('What shall we look at?').waitFor();
  }

  describe('the first minute', () => {
    it('opens with the bundled model ready and answers a question', async () => {
      await page.getByText('What shall we look at?').waitFor();
      await picture(page, `01-welcome-${look.name}`);
      await modelReady('Colibri Mini');
      const answer = await ask(page, 'Hello, how are you today?');
      const text = await answered(answer);
      assert.ok(text.length > 0, `the answer was ${JSON.stringify(text)}`);
      assert.ok(!text.includes('\uFFFD'));
      await picture(page, `02-answer-${look.name}`);
    });

    it('gives a receipt with the figures and the seed, and repeats the answer from it', async () => {
      const answers = page.getByRole('article', { name: 'Answer' });
      const first = await answers.last().locator('.markdown').innerText();
      await answers.last().getByRole('button', { name: /^Receipt/ }).click();
      const card = page.locator('.receipt-card');
      for (const line of ['Answer', 'First word after', 'Read from disk', 'Found in memory', 'Seed']) await card.getByText(line, { exact: true }).waitFor();
      await picture(page, `03-receipt-${look.name}`);
      await card.getByRole('button', { name: 'Again with the same settings' }).click();
      await page.getByText('2 / 2', { exact: true }).waitFor({ timeout: 60_000 });
      assert.equal(await answered(answers.last()), first, 'the same seed gave other words');
      await page.getByRole('button', { name: 'Previous version' }).click();
      await page.getByText('1 / 2', { exact: true }).waitFor();
    });

    it('stops, keeps what was written, and continues', async () => {
      await newChat();
      const answer = await ask(page, 'Tell me a very long story about a bird.');
      // Words of the answer, not of what is shown until there are some: stopped before, there is nothing to copy.
      await answer.locator('.markdown').last().waitFor();
      await until(async () => (await answer.locator('.markdown').last().innerText()).length > 3, 'the first words');
      await page.keyboard.press('Escape');
      await answer.getByRole('button', { name: 'Copy the answer' }).waitFor();
      const stopped = await answer.locator('.markdown').last().innerText();
      if (await answer.getByText('Stopped. What was written is kept.').isVisible()) {
        await answer.getByRole('button', { name: 'Continue' }).click();
        await answered(answer);
        const whole = await answer.locator('.markdown').last().innerText();
        assert.ok(whole.startsWith(stopped.slice(0, 20)), `${JSON.stringify(whole)} does not go on from ${JSON.stringify(stopped)}`);
      }
    });

    it('edits a question into a second version and keeps the first', async () => {
      const question = page.getByRole('article', { name: 'You' }).last();
      await question.hover();
      await question.getByRole('button', { name: 'Edit and ask again' }).click();
      await page.getByLabel('Edit the question').fill('What is your name?');
      await page.keyboard.press('Enter');
      await page.getByText('What is your name?').first().waitFor();
      await answered(page.getByRole('article', { name: 'Answer' }).last());
      await question.getByRole('button', { name: 'Previous version' }).click();
      await page.getByText('Tell me a very long story about a bird.').first().waitFor();
    });
  });

  describe('events and the ends of calls in either order', () => {
    afterEach(() => page.evaluate(() => window.restoreWire()));

    it('stops an answer of which no event has come yet', async () => {
      await newChat();
      await page.evaluate(() => {
        const { wails, go } = window;
        const notify = wails.EventsNotify;
        const stop = go.main.App.Stop;
        const held = [];
        wails.EventsNotify = (message) => held.push(message);
        window.stopped = 0;
        go.main.App.Stop = (...a) => {
          window.stopped += 1;
          return stop(...a);
        };
        window.restoreWire = () => {
          wails.EventsNotify = notify;
          for (const message of held.splice(0)) notify(message);
          go.main.App.Stop = stop;
        };
      });
      const answer = await ask(page, 'Tell me a very long story about a river.');
      await page.keyboard.press('Escape');
      const stopped = await page.evaluate(() => (window.restoreWire(), window.stopped));
      assert.equal(stopped, 1, 'the key was not taken as a stop');
      await answered(answer);
    });

    it('shows the whole of an answer that ended before its call returned', async () => {
      await newChat();
      await page.evaluate(() => {
        const { App } = window.go.main;
        const generate = App.Generate;
        window.restoreWire = () => (App.Generate = generate);
        App.Generate = async (...a) => {
          const made = await generate(...a);
          const transcript = async () => (await fetch(`/data/transcript?id=${a.at(-1).conversation}`)).json();
          const state = async () => (await transcript()).messages.find((m) => m.id === made.answer).state;
          while ((await state()) === 'streaming') await new Promise((done) => setTimeout(done, 20));
          return made;
        };
      });
      const text = await answered(await ask(page, 'Hello!'));
      assert.ok(text.length > 0, `the answer was ${JSON.stringify(text)}`);
    });
  });

  describe('the sidebar', () => {
    it('searches titles and messages, also of words in the middle of an answer', async () => {
      await page.keyboard.press('Control+f');
      await page.keyboard.type('story bird');
      await sidebar().locator('.hit').first().waitFor();
      await picture(page, `04-search-${look.name}`);
      await sidebar().locator('.hit').first().click();
      await page.getByText('Tell me a very long story about a bird.').first().waitFor();
      await page.keyboard.press('Control+f');
      await page.keyboard.press('Control+a');
      await page.keyboard.type('xyzzyplugh');
      await page.getByText('Nothing found').waitFor();
      await page.keyboard.press('Escape');
      await rows().first().waitFor();
    });

    it('renames, pins, deletes and restores', async () => {
      const before = await rows().count();
      const act = async (name) => {
        await rows().first().hover();
        await rows().first().getByRole('button', { name: /^Actions/ }).click();
        await page.getByRole('menuitem', { name }).click();
      };
      await act('Rename');
      await page.getByLabel('Title').fill('A tale of a bird');
      await page.keyboard.press('Enter');
      await sidebar().getByText('A tale of a bird').waitFor();
      await act('Pin');
      await sidebar().getByRole('heading', { name: 'Pinned' }).waitFor();
      await act('Delete');
      await page.getByText('“A tale of a bird” was deleted.').waitFor();
      await until(async () => (await rows().count()) === before - 1, 'the row to go');
      await page.getByRole('button', { name: 'Undo' }).click();
      await sidebar().getByText('A tale of a bird').waitFor();
    });

    it('exports a chat and imports it as a new one', async () => {
      const folder = temporaryFolder();
      for (const [item, name] of [
        ['Export as Markdown…', 'chat.md'],
        ['Export as JSON…', 'chat.json'],
      ]) {
        await dev('Answer', join(folder, name));
        await rows().first().hover();
        await rows().first().getByRole('button', { name: /^Actions/ }).click();
        await page.getByRole('menuitem', { name: item }).click();
        await until(() => existsSync(join(folder, name)), name);
      }
      await until(() => readFileSync(join(folder, 'chat.md'), 'utf8').includes('# A tale of a bird'), 'the export');
      const before = await rows().count();
      await dev('Answer', join(folder, 'chat.json'));
      await dev('Menu', 'import');
      await until(async () => (await rows().count()) === before + 1, 'the imported chat');
      rmSync(folder, { recursive: true });
    });
  });

  describe('drafts and reloads', () => {
    it('keeps a draft when another chat is opened and comes back', async () => {
      await rows().first().getByRole('button').first().click();
      await page.getByLabel('Your question').fill('half a thought');
      await rows().nth(1).getByRole('button').first().click();
      await until(async () => (await page.getByLabel('Your question').inputValue()) === '', 'the other chat');
      await rows().first().getByRole('button').first().click();
      await until(async () => (await page.getByLabel('Your question').inputValue()) === 'half a thought', 'the draft');
      await page.getByLabel('Your question').fill('');
    });

    it('joins what is typed while a chat is read to the draft that it has', async () => {
      const field = page.getByLabel('Your question');
      const pause = () => page.evaluate(() => new Promise((done) => setTimeout(done, 600))); // longer than the pause after which a draft is kept
      const show = (row) => rows().nth(row).getByRole('button').first().click();
      await show(0);
      await field.fill('half a thought');
      await show(1);
      await until(async () => (await field.inputValue()) === '', 'the other chat');
      let release;
      const held = new Promise((done) => (release = done));
      await page.route('**/data/transcript*', async (route) => {
        await held;
        await route.continue();
      });
      await show(0);
      await field.pressSequentially('and more');
      await pause();
      release();
      const whole = 'half a thought\nand more';
      await until(async () => (await field.inputValue()) === whole, 'both parts');
      await page.unroute('**/data/transcript*');
      await pause();
      await page.reload();
      await ready(page);
      await until(async () => (await field.inputValue()) === whole, 'both parts, kept');
      await field.fill('');
    });

    it('keeps what was typed into a chat that does not exist yet', async () => {
      await newChat();
      await page.getByLabel('Your question').fill('not sent yet');
      await page.evaluate(() => new Promise((done) => setTimeout(done, 1200))); // a draft is kept when typing pauses
      await page.reload();
      await ready(page);
      await until(async () => (await page.getByLabel('Your question').inputValue()) === 'not sent yet', 'the draft');
      await answered(await ask(page, 'Hello once more!'));
    });

    it('takes a question that is typed and sent before the page has its state', async () => {
      let release;
      const held = new Promise((done) => (release = done));
      await page.route('**/data/state', async (route) => {
        await held;
        await route.continue();
      });
      await page.reload();
      await ready(page);
      await page.getByLabel('Your question').fill('Who was first?');
      await page.keyboard.press('Enter');
      await page.getByLabel('Your question').pressSequentially('and this');
      await page.evaluate(() => new Promise((done) => setTimeout(done, 600))); // longer than the pause after which a draft is kept
      release();
      await page.getByRole('article', { name: 'You' }).filter({ hasText: 'Who was first?' }).waitFor();
      await page.unroute('**/data/state');
      await answered(page.getByRole('article', { name: 'Answer' }).last());
      assert.equal(await page.getByLabel('Your question').inputValue(), 'and this', 'what was typed meanwhile is gone');
      await page.getByLabel('Your question').fill('');
      await newChat();
      assert.equal(await page.getByLabel('Your question').inputValue(), '');
    });

    it('restores a running answer when the page is loaded again', async () => {
      await newChat();
      const answer = await ask(page, 'Tell me everything you know about flowers, gardens and birds.');
      await until(async () => (await answer.innerText()).length > 3, 'the first words');
      await page.reload();
      await ready(page);
      const again = page.getByRole('article', { name: 'Answer' }).last();
      await answered(again);
      const shown = await again.locator('.markdown').last().innerText();
      await page.reload();
      await ready(page);
      await answered(page.getByRole('article', { name: 'Answer' }).last());
      assert.equal(await page.getByRole('article', { name: 'Answer' }).last().locator('.markdown').last().innerText(), shown, 'the stored answer differs from the streamed one');
    });
  });

  describe('models', () => {
    const folder = temporaryFolder();
    const dropped = join(folder, 'Größe und Maß.colibri');
    after(() => rmSync(folder, { recursive: true, force: true }));

    it('describes a dropped container whose name has spaces and other letters, and adds it', async () => {
      cpSync(container, dropped, { recursive: true });
      await dev('Drop', [dropped]);
      const dialog = page.getByRole('dialog');
      await dialog.getByText('Add this model?').waitFor();
      await dialog.getByText('Größe und Maß', { exact: true }).waitFor();
      await picture(page, `05-offer-${look.name}`);
      await dialog.getByRole('button', { name: 'Add', exact: true }).click();
      await dialog.waitFor({ state: 'hidden' });
      await page.keyboard.press('Control+m');
      await page.getByRole('dialog').getByText('Größe und Maß').waitFor();
      await picture(page, `06-models-${look.name}`);
    });

    it('says in one sentence why a model cannot be used, and keeps the window usable', async () => {
      const entry = page.getByRole('dialog').getByRole('listitem').filter({ hasText: 'Größe und Maß' });
      await entry.getByRole('button', { name: 'Load' }).click(); // this one has no tokenizer
      await page.locator('.banner.error').getByText(/tokenizer/).waitFor();
      await page.keyboard.press('Control+m');
      await page.getByRole('dialog').getByText(/tokenizer/).first().waitFor();
      await page.getByRole('dialog').getByRole('listitem').filter({ hasText: 'comes with Colibri' }).getByRole('button', { name: 'Load' }).click();
      await modelReady('Colibri Mini');
    });

    it('shows a container that is gone as missing and locates it again', async () => {
      const moved = join(folder, 'moved.colibri');
      cpSync(dropped, moved, { recursive: true });
      rmSync(dropped, { recursive: true });
      await page.reload();
      await ready(page);
      await page.keyboard.press('Control+m');
      const entry = page.getByRole('dialog').getByRole('listitem').filter({ hasText: 'Größe und Maß' });
      await entry.getByText('not found').waitFor();
      await dev('Answer', moved);
      await entry.getByRole('button', { name: 'Locate…' }).click();
      await entry.getByRole('button', { name: 'Load' }).waitFor();
      await entry.getByRole('button', { name: /^Remove/ }).click();
      await entry.waitFor({ state: 'hidden' });
      await page.keyboard.press('Escape');
    });

    it('turns bad drops into sentences, several at once', async () => {
      writeFileSync(join(folder, 'notes.txt'), 'not a model');
      await dev('Drop', [join(folder, 'notes.txt'), '/nowhere/at all', '']);
      const dialog = page.getByRole('dialog');
      await dialog.getByText('2 things to look at').waitFor();
      await dialog.getByText(/nothing at \/nowhere\/at all/).waitFor();
      await picture(page, `07-bad-drop-${look.name}`);
      await dialog.getByRole('button', { name: 'Close' }).last().click();
      await dialog.waitFor({ state: 'hidden' });
    });
  });

  describe('settings and activity', () => {
    it('keeps settings, applies them at once and survives a reload', async () => {
      await page.keyboard.press('Control+,');
      const dialog = page.getByRole('dialog');
      await dialog.getByText('Appearance').waitFor();
      await picture(page, `08-settings-${look.name}`);
      await dialog.getByLabel('Appearance').selectOption(other);
      await until(() => page.evaluate((t) => document.documentElement.dataset.theme === t, other), 'the other theme');
      await dialog.getByLabel('Show all sampling values').check();
      await dialog.getByText('Repetition penalty').waitFor();
      await picture(page, `09-settings-${look.name}`);
      await page.keyboard.press('Escape');
      await page.reload();
      await ready(page);
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), other);
    });

    it('shows what the machine does', async () => {
      await page.getByRole('button', { name: 'Activity', exact: true }).click();
      await newChat();
      await answered(await ask(page, 'Hello again!'));
      await page.getByRole('img', { name: /^Expert atlas/ }).waitFor();
      await page.getByRole('img', { name: /^Tokens per second/ }).waitFor();
      await picture(page, `10-activity-${look.name}`);
      await page.locator('.gauge').click();
      await page.getByText('Always in memory').waitFor();
      await picture(page, `11-gauge-${look.name}`);
      await page.keyboard.press('Escape');
      await page.keyboard.press('Control+i'); // in a narrow window the panel lies over the chat
      await page.getByRole('complementary', { name: 'Activity' }).waitFor({ state: 'detached' });
    });

    it('keeps instructions and sampling for one chat', async () => {
      await page.getByRole('button', { name: 'Instructions and sampling of this chat' }).click();
      await page.getByRole('dialog').getByLabel('Instructions').fill('x'.repeat(70_000));
      await page.getByRole('dialog').getByRole('button', { name: 'Keep' }).click();
      const refusal = page.getByRole('alert').filter({ hasText: 'longer than 64 KB' });
      await refusal.getByText(/instructions and values are as they were, and yours are still in the dialog\./).waitFor();
      assert.equal((await page.getByRole('dialog').getByLabel('Instructions').inputValue()).length, 70_000, 'what was typed is gone');
      await refusal.getByRole('button', { name: 'Dismiss' }).click({ delay: 100 }); // as long as a person presses
      await page.getByRole('dialog').getByLabel('Instructions').fill('Answer briefly.');
      await page.getByRole('dialog').getByRole('button', { name: 'Precise' }).click();
      await picture(page, `12-chat-options-${look.name}`);
      await page.getByRole('dialog').getByRole('button', { name: 'Keep' }).click();
      await page.reload();
      await ready(page);
      await page.getByRole('button', { name: 'Instructions and sampling of this chat' }).click();
      await until(async () => (await page.getByRole('dialog').getByLabel('Instructions').inputValue()) === 'Answer briefly.', 'the instructions');
      await page.keyboard.press('Escape');
    });
  });

  describe('what a model does with a conversation', () => {
    const folder = temporaryFolder();
    after(() => rmSync(folder, { recursive: true, force: true }));

    it('is said where it cannot hold all of it: the oldest go, visibly, the instructions stay', async () => {
      await importMessages(page, 'a long one', turns(Array.from({ length: 40 }, (_, i) => `Number ${i}. ${'The bird drinks from a flower and flies on. '.repeat(9)}`)));
      await openChat(page, 'a long one');
      await page.getByText('Number 39.').waitFor();
      const meter = page.getByRole('meter', { name: 'Context' });
      await until(async () => (await meter.getAttribute('aria-valuetext'))?.includes('longer than the model can hold'), 'the warning before it is sent');
      await page.getByText('The oldest messages will be left out').waitFor();
      await page.getByRole('button', { name: 'Instructions and sampling of this chat' }).click();
      await page.getByRole('dialog').getByLabel('Instructions').fill('Answer in one short sentence.');
      await page.getByRole('dialog').getByRole('button', { name: 'Keep' }).click();
      const answer = await ask(page, 'And then?');
      await answered(answer);
      const marker = await answer.locator('.dropped').innerText();
      assert.match(marker, /^The [\d,]+ oldest messages were left out .* Instructions are always kept\.$/);
      await picture(page, `13-truncation-${look.name}`);
      assert.equal(await page.getByRole('article').count(), 42, 'what the model does not read is gone from the window too');
      await page.reload();
      await ready(page);
      assert.equal(await page.getByRole('article', { name: 'Answer' }).last().locator('.dropped').innerText(), marker, 'the marker is gone after a reload');
    });

    it('is kept apart while it thinks: the block is open until the answer begins, then closed, and is no part of the answer', async () => {
      await dev('Drop', [thinkingModel(folder)]);
      await page.getByRole('dialog').getByRole('button', { name: 'Add and load' }).click();
      await modelReady('Thinker');
      await newChat();
      await page.getByRole('button', { name: 'Instructions and sampling of this chat' }).click();
      await page.getByRole('dialog').getByLabel('Temperature').fill('0');
      await page.getByRole('dialog').getByRole('button', { name: 'Keep' }).click();
      // What the block did while the answer grew, seen from the page itself: it lasts a tenth of a second.
      await page.evaluate(() => {
        window.seen = [];
        const look = () => {
          const block = document.querySelector('.thinking');
          if (block) window.seen.push(block.querySelector('button').getAttribute('aria-expanded') + ' ' + block.querySelector('button').textContent.trim());
        };
        new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
      });
      const answer = await ask(page, 'Hello, how are you today?');
      const text = await answered(answer);
      assert.ok(text.trim() !== '' && !text.includes('think'), `the answer was ${JSON.stringify(text)}`);
      // On a slow machine all of it can come within one frame; the block is then closed from the start.
      const states = await page.evaluate(() => [...new Set(window.seen)]);
      assert.equal(states.pop(), 'false Thought about it');
      assert.ok(states.every((state) => state === 'true Thinking'), `while it thought the block was ${states}`);
      const block = answer.getByRole('button', { name: 'Thought about it' });
      await block.click();
      const thought = await answer.locator('.thinking .body').innerText();
      assert.ok(thought.trim() !== '' && !thought.includes(text.trim()), `it thought ${JSON.stringify(thought)}`);
      await picture(page, `14-thinking-${look.name}`);
      await block.click();
      await answer.locator('.thinking .body').waitFor({ state: 'detached' });
      await page.reload();
      await ready(page);
      const again = page.getByRole('article', { name: 'Answer' }).last();
      await again.getByRole('button', { name: 'Thought about it' }).click();
      assert.equal(await again.locator('.thinking .body').innerText(), thought, 'the thinking is not what it was before the reload');
    });

    it('is said when no model is in memory, with a way on', async () => {
      await page.keyboard.press('Control+m');
      await page.getByRole('dialog').getByRole('button', { name: 'Unload' }).click();
      await page.keyboard.press('Escape');
      await page.getByText('No model is in memory.').waitFor();
      await picture(page, `15-no-model-${look.name}`);
      await page.getByRole('button', { name: 'Load Thinker' }).click();
      await modelReady('Thinker');
    });
  });
});
