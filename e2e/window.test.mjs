// The real window, production build, on a screen of its own.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { cpSync, existsSync, rmSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { appBinary, end, pictures, root, startProgram, startScreen, temporaryFolder, until } from './harness.mjs';

let screen;
let manager;
const dataDir = temporaryFolder();

before(async () => {
  screen = await startScreen('1280x860x24');
  manager = spawn('openbox', [], { env: { ...process.env, DISPLAY: screen.display }, stdio: 'ignore' });
});
after(async () => {
  await end(manager);
  await screen?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

const tool = (name, ...args) => execFileSync(name, args, { env: { ...process.env, DISPLAY: screen.display }, encoding: 'utf8' });

async function windowOf(program) {
  const id = await until(() => {
    if (program.child.exitCode !== null) throw new Error(`the program ended: ${program.output()}`);
    try {
      return tool('xdotool', 'search', '--onlyvisible', '--name', '^Colibri$').trim().split('\n')[0];
    } catch {
      return '';
    }
  }, 'the window');
  tool('xdotool', 'windowactivate', '--sync', id);
  return id;
}

const shoot = (id, name) => {
  const file = join(pictures, `${name}.png`);
  tool('import', '-window', id, file);
  return file;
};

/** How many colours a picture has: a window that is not painted has one. */
const colours = (file) => Number(tool('identify', '-format', '%k', file));

/** Everything that is stored, as the command-line tool of the database would show it: the file and its log. */
const stored = () => ['conversations.db', 'conversations.db-wal'].map((f) => join(dataDir, f)).filter(existsSync).map((f) => readFileSync(f).toString('latin1')).join('');

it('paints, takes typing, answers, and keeps the text when it is quit in the middle', async () => {
  const began = Date.now();
  let program = startProgram({ binary: appBinary, dataDir, display: screen.display });
  let id = await windowOf(program);
  await until(() => colours(shoot(id, 'window-1-start')) > 50, 'the first paint');
  console.log(`first paint seen after ${Date.now() - began} ms (pictures take most of it)`);
  await until(() => stored().length > 0, 'the database');
  await new Promise((done) => setTimeout(done, 1500)); // the focus of a new window settles; typing before it would go nowhere
  tool('xdotool', 'type', '--delay', '15', 'Tell me a long story about a hummingbird');
  tool('xdotool', 'key', 'Return');
  await until(() => stored().includes('Tell me a long story about a hummingbird'), 'the question to be stored', 60_000);
  await new Promise((done) => setTimeout(done, 1200)); // some words, and the half second that they may be in memory
  shoot(id, 'window-2-answer');
  await program.stop('SIGTERM');

  program = startProgram({ binary: appBinary, dataDir, display: screen.display });
  id = await windowOf(program);
  await until(() => colours(shoot(id, 'window-3-reopened')) > 50, 'the second paint');
  await new Promise((done) => setTimeout(done, 1500));
  shoot(id, 'window-3-reopened');
  assert.ok(stored().includes('Tell me a long story about a hummingbird'));
  await program.stop('SIGTERM');
});

it('stops an answer with the Escape key and keeps what was written', async () => {
  const program = startProgram({ binary: appBinary, dataDir, display: screen.display });
  const id = await windowOf(program);
  await until(() => colours(shoot(id, 'window-3-reopened')) > 50, 'the paint');
  await new Promise((done) => setTimeout(done, 1500)); // as above
  tool('xdotool', 'key', 'ctrl+n');
  const ends = () => stored().split('"finishReason":"cancelled"').length;
  const before = ends();
  // An answer may be over before the key comes: then another one is asked for.
  await until(async () => {
    tool('xdotool', 'type', '--delay', '5', 'Tell me a long story about a river');
    tool('xdotool', 'key', 'Return');
    await new Promise((done) => setTimeout(done, 150));
    tool('xdotool', 'key', 'Escape');
    await new Promise((done) => setTimeout(done, 500));
    return ends() > before;
  }, 'an answer that was stopped');
  shoot(id, 'window-3-stopped');
  await program.stop('SIGTERM');
});

it('says in one sentence that there is no screen', async () => {
  const program = startProgram({ binary: appBinary, dataDir, display: ':nowhere' });
  await until(() => program.child.exitCode !== null, 'the end');
  assert.equal(program.child.exitCode, 1);
  assert.match(program.output(), /^colibri: there is no screen .*make cli$/m);
  assert.doesNotMatch(program.output(), /panic/);
});

it('takes a native drop of a container with a space and a letter beyond ASCII in its name', async () => {
  const folder = temporaryFolder();
  const container = join(folder, 'Mein Maß.colibri');
  cpSync(join(root, 'testdata/containers/int8'), container, { recursive: true });
  const source = join(folder, 'dragsource');
  const flags = tool('pkg-config', '--cflags', '--libs', 'gtk+-3.0').trim().split(/\s+/);
  execFileSync('cc', ['-o', source, join(root, 'e2e/dragsource.c'), ...flags]);

  const program = startProgram({ binary: appBinary, dataDir, display: screen.display });
  const id = await windowOf(program);
  await until(() => colours(shoot(id, 'window-4-before-drop')) > 50, 'the paint');
  const drag = spawn(source, [container], { env: { ...process.env, DISPLAY: screen.display }, stdio: 'ignore' });
  await new Promise((done) => setTimeout(done, 700));
  tool('xdotool', 'mousemove', '40', '30', 'mousedown', '1');
  for (let i = 1; i <= 12; i++) {
    tool('xdotool', 'mousemove', String(40 + i * 50), String(30 + i * 30));
    await new Promise((done) => setTimeout(done, 50));
  }
  tool('xdotool', 'mouseup', '1');
  // The offer is accepted with the keyboard: Tab from the dialog to its close button, the part that scrolls, and "Add and load".
  await new Promise((done) => setTimeout(done, 2500));
  shoot(id, 'window-5-offer');
  for (let i = 0; i < 3; i++) tool('xdotool', 'key', 'Tab');
  tool('xdotool', 'key', 'Return');
  await until(() => existsSync(join(dataDir, 'library.json')) && readFileSync(join(dataDir, 'library.json'), 'utf8').includes('Mein Maß'), 'the library to have the container');
  await end(drag);
  await program.stop('SIGTERM');
  rmSync(folder, { recursive: true, force: true });
});

it('says in a window why it cannot start', async () => {
  const folder = temporaryFolder();
  const taken = join(folder, 'a file');
  writeFileSync(taken, '');
  const program = startProgram({ binary: appBinary, dataDir: join(taken, 'data'), display: screen.display });
  const id = await windowOf(program);
  await until(() => colours(shoot(id, 'window-6-not-started')) > 20, 'the sentence');
  assert.match(program.output(), /the data folder cannot be made/);
  tool('xdotool', 'windowactivate', '--sync', id, 'key', 'alt+F4');
  await until(() => program.child.exitCode !== null || program.child.signalCode !== null, 'the end of the program');
  assert.notEqual(program.child.exitCode, 0);
  rmSync(folder, { recursive: true, force: true });
});
