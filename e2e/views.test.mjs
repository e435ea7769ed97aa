// Every view of the window, in both themes and at each size: a picture of it, and what axe says.

import assert from 'node:assert/strict';
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { EVERYTHING, importMessages, LOOKS, openChat, turns } from './fixtures.mjs';
import { answered, ask, picture, ready, root, startInBrowser, temporaryFolder } from './harness.mjs';

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

describe('for everybody', () => {
  for (const look of LOOKS) {
    it(`axe finds nothing serious in any view, ${look.name}`, async () => {
      const folder = temporaryFolder();
      const s = await startInBrowser(look);
      const { page } = s;
      const dev = (method, ...args) => page.evaluate(([m, a]) => window.go.main.Dev[m](...a), [method, args]);
      const dialog = page.getByRole('dialog');
      const check = async (what) => {
        // Evaluated by the debugger, which the content policy does not bind.
        await page.evaluate(axeSource);
        const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
        const serious = violations.filter((v) => v.impact === 'serious' || v.impact === 'critical').map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 160)).join(' | ')}`);
        await picture(page, `30-${look.name}-${what}`);
        assert.deepEqual(serious, [], what);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(overflow <= 0, `${what}: the page is ${overflow} pixels too wide`);
      };
      const away = async () => {
        await page.keyboard.press('Escape');
        await dialog.waitFor({ state: 'hidden' });
      };
      try {
        await page.emulateMedia({ reducedMotion: 'reduce' }); // a colour that is fading in has no contrast to speak of
        await ready(page);
        await page.locator('.picker .state.ready').waitFor({ state: 'attached', timeout: 60_000 });
        await check('welcome');

        await importMessages(page, 'Caches', EVERYTHING);
        await dev('Answer', '/nowhere/at/all.md');
        await page.getByRole('navigation').getByRole('listitem').first().hover();
        await page.getByRole('button', { name: 'Actions for Caches' }).click();
        await page.getByRole('menuitem', { name: 'Export as Markdown' }).click();
        const trouble = page.getByRole('alert').filter({ hasText: '/nowhere/at/all.md' });
        await trouble.waitFor();
        assert.match(await trouble.innerText(), /was not exported: write \/nowhere\/at\/all\.md: no such file or directory\. The chat itself is untouched\. Choose a folder that is there, then try again\./);
        await check('notice');
        await page.keyboard.press('Control+,');
        await dialog.waitFor();
        await check('notice-and-dialog');
        await dialog.getByRole('button', { name: 'Close' }).click(); // which the notice does not cover
        await dialog.waitFor({ state: 'hidden' });
        await trouble.getByRole('button', { name: 'Dismiss' }).click();
        await trouble.waitFor({ state: 'detached' });
        for (const title of ['A letter to translate', 'Plans for the garden in spring, with a list of all flowers']) await importMessages(page, title, turns([title, 'Gladly.']));
        await openChat(page, 'Caches');
        await page.locator('.end.failed').waitFor();
        await check('failed-and-truncated');
        await page.getByRole('button', { name: /^Receipt/ }).last().click();
        await page.locator('.receipt-card').waitFor();
        await check('receipt');
        await page.keyboard.press('Escape');
        await page.locator('figure.code').scrollIntoViewIfNeeded();
        await check('code');
        await page.locator('.formula').scrollIntoViewIfNeeded();
        await check('maths');
        await page.locator('.scroller').evaluate((e) => (e.scrollTop = 0));
        await check('thinking-closed');
        await page.getByRole('button', { name: 'Thought about it' }).click();
        await page.locator('.thinking .body').waitFor();
        await check('thinking-open');
        const question = page.getByRole('article', { name: 'You' }).first();
        await question.hover();
        await question.getByRole('button', { name: 'Edit and ask again' }).click();
        await page.getByLabel('Edit the question').waitFor();
        await check('edit');
        await page.getByRole('button', { name: 'Cancel' }).click();
        await page.getByText('the notes', { exact: true }).click();
        await dialog.waitFor();
        await check('link');
        await away();

        const row = page.getByRole('navigation').getByRole('listitem').first();
        await row.hover();
        await row.getByRole('button', { name: /^Actions/ }).click();
        await page.getByRole('menuitem', { name: 'Rename' }).waitFor();
        await check('menu');
        await page.keyboard.press('Escape');
        await page.keyboard.press('Control+f');
        await page.keyboard.type('garden');
        await page.locator('.hit').first().waitFor();
        await check('search');
        await page.keyboard.press('Control+a');
        await page.keyboard.type('xyzzyplugh');
        await page.getByText('Nothing found').waitFor();
        await check('search-empty');
        await page.keyboard.press('Escape');

        for (const [keys, what] of [['Control+,', 'settings'], ['Control+m', 'models'], ['Control+/', 'shortcuts']]) {
          await page.keyboard.press(keys);
          await dialog.waitFor();
          await check(what);
          await away();
        }
        await page.getByRole('button', { name: 'Instructions and sampling of this chat' }).click();
        await dialog.waitFor();
        await check('instructions');
        await away();
        await dev('Menu', 'about');
        await dialog.waitFor();
        await check('about');
        await dialog.getByRole('button', { name: 'Licences' }).click();
        await dialog.locator('summary').first().click();
        await dialog.locator('pre').first().waitFor();
        await check('licences');
        await away();

        await page.keyboard.press('Control+n');
        await answered(await ask(page, 'Hello, how are you today?'));
        await check('answer');
        await page.locator('.gauge').click();
        await page.getByText('Memory of the model').waitFor();
        await check('gauge');
        await page.keyboard.press('Escape');
        await page.keyboard.press('Control+i');
        await page.getByRole('img', { name: /^Expert atlas/ }).waitFor();
        await check('activity');
        await page.keyboard.press('Control+i');

        const container = join(folder, 'Größe und Maß.colibri');
        cpSync(join(root, 'testdata/containers/int8'), container, { recursive: true });
        writeFileSync(join(folder, 'notes.txt'), 'not a model');
        await dev('Drop', [join(folder, 'notes.txt'), '/nowhere/at all']);
        await dialog.waitFor();
        await check('bad-drop');
        await away();
        await page.evaluate(() => {
          const files = new DataTransfer();
          files.items.add(new File(['x'], 'a.bin'));
          window.dispatchEvent(new DragEvent('dragenter', { dataTransfer: files, bubbles: true, cancelable: true }));
        });
        await page.locator('.drop').waitFor();
        await check('drop');
        await page.evaluate(() => window.dispatchEvent(new DragEvent('dragleave', { bubbles: true })));
        await dev('Drop', [container]);
        await dialog.waitFor();
        await check('offer');
        await dialog.getByRole('button', { name: 'Add and load' }).click(); // it has no tokenizer
        await page.locator('.banner.error').waitFor();
        await check('model-failed');
        assert.deepEqual(s.errors, []);
      } finally {
        await s.stop();
        rmSync(folder, { recursive: true, force: true });
      }
    });
  }
});
