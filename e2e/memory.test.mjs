// Ten minutes of streaming (COLIBRI_SOAK=1), or half a minute of the same, leave neither the page nor the program larger.

import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { it } from 'node:test';
import { longAnswer } from './fixtures.mjs';
import { answered, ask, ready, record, startInBrowser, temporaryFolder } from './harness.mjs';

const soak = process.env.COLIBRI_SOAK === '1';
const ROUNDS = 10;
/** A round's answer; at 200 tokens a second of 4 letters it takes a minute. */
const ANSWER_BYTES = 48_000;

/**
 * What a round may leave: a conversation and its row in the sidebar with its menu, which are 40 nodes. An answer that stayed would be about
 * 10,000 nodes and 300 KB in the page, 100 KB in the program.
 */
const MAY_STAY = { page: 60_000, nodes: 60, program: 40_000 };

/** Bytes of what the page's script holds: no compiled code, of which the engine makes more for as long as it runs, and none of the browser's own records. */
async function scriptBytes(cdp) {
  const parts = [];
  const take = ({ chunk }) => parts.push(chunk);
  cdp.on('HeapProfiler.addHeapSnapshotChunk', take);
  await cdp.send('HeapProfiler.takeHeapSnapshot', {});
  cdp.off('HeapProfiler.addHeapSnapshotChunk', take);
  const { nodes, snapshot } = JSON.parse(parts.join(''));
  const { node_fields: fields, node_types: types } = snapshot.meta;
  const [type, size] = [fields.indexOf('type'), fields.indexOf('self_size')];
  let bytes = 0;
  for (let i = 0; i < nodes.length; i += fields.length) {
    if (/^(object|array|string|concatenated string|sliced string|closure|number|bigint|symbol|regexp)$/.test(types[0][nodes[i + type]])) bytes += nodes[i + size];
  }
  return bytes;
}

it(`${soak ? 'ten minutes' : 'half a minute'} of streaming leave neither the page nor the program larger`, async () => {
  const folder = temporaryFolder();
  const file = join(folder, 'answer.md');
  writeFileSync(file, longAnswer(96, ANSWER_BYTES));
  const s = await startInBrowser({ env: { COLIBRI_REPLAY: file } });
  const { page } = s;
  try {
    await ready(page);
    await page.evaluate((pace) => window.go.main.Dev.Pace(pace), soak ? 200 : 6000);
    await page.keyboard.press('Control+i'); // the curves and the atlas are drawn all the while
    const cdp = await page.context().newCDPSession(page);
    const after = [];
    for (let round = 0; round < ROUNDS; round++) {
      await answered(await ask(page, 'Explain the cache at length.'), 300_000);
      await page.keyboard.press('Control+n');
      await page.getByText('What shall we look at?').waitFor();
      const program = await page.evaluate(() => window.go.main.Dev.HeapBytes());
      await cdp.send('HeapProfiler.collectGarbage');
      const { nodes } = await cdp.send('Memory.getDOMCounters');
      after.push({ page: await scriptBytes(cdp), nodes, program });
      console.log(JSON.stringify(after.at(-1)));
    }
    record(`heap after each of ${ROUNDS} answers of ${ANSWER_BYTES / 1000} KB${soak ? ', ten minutes in all' : ''}`, after);
    // The first rounds fill what is kept on purpose: two minutes of figures for the curves, compiled script, caches.
    const settled = after.slice(4);
    for (const what of Object.keys(MAY_STAY)) {
      const values = settled.map((a) => a[what]);
      const perRound = (values.at(-1) - values[0]) / (values.length - 1);
      assert.ok(perRound < MAY_STAY[what], `${what}: ${Math.round(perRound)} more with each answer: ${after.map((a) => a[what])}`);
    }
    assert.deepEqual(s.errors, []);
  } finally {
    await s.stop();
    rmSync(folder, { recursive: true });
  }
});
