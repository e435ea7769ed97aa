// Starts the real program, with the real engine and the bundled model, and a browser or a screen to look at it with.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

export const root = resolve(dirname(fileURLToPath(import.meta.url)), '..');
export const pictures = join(root, 'test-results');
mkdirSync(pictures, { recursive: true });

export const devBinary = process.env.COLIBRI_DEV_APP ?? join(root, 'build/bin/colibri-app-dev');
export const appBinary = process.env.COLIBRI_APP ?? join(root, 'build/bin/colibri-app');

export function temporaryFolder(name = 'colibri-e2e-') {
  return mkdtempSync(join(tmpdir(), name));
}

async function freePort() {
  const server = net.createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  return port;
}

/** A screen of its own; returns its name and how to end it. */
export async function startScreen(size = '1400x900x24') {
  const server = spawn('Xvfb', ['-displayfd', '3', '-screen', '0', size, '-nolisten', 'tcp'], {
    stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
  });
  let said = '';
  server.stderr.on('data', (part) => (said += part));
  const failed = once(server, 'close').then(() => {
    throw new Error(`Xvfb gave no screen: ${said}`);
  });
  failed.catch(() => {}); // ending the screen is no failure
  const [text] = await Promise.race([once(server.stdio[3], 'data'), failed]);
  const display = `:${String(text).trim()}`;
  // A program whose screen is gone ends without a word.
  const lost = () => console.log(`the screen ${display} ended by itself and had said:\n${said}`);
  server.on('exit', lost);
  return { display, stop: () => (server.off('exit', lost), end(server)) };
}

export async function end(child, signal = 'SIGTERM', patienceMillis = 15_000) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill(signal);
  const late = setTimeout(() => child.kill('SIGKILL'), patienceMillis);
  await gone;
  clearTimeout(late);
}

/** Waits until check returns something truthy. */
export async function until(check, what, patienceMillis = 30_000) {
  const deadline = Date.now() + patienceMillis;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`waited ${patienceMillis} ms in vain for ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** The program on a screen. Options: binary, dataDir, display, args, env. */
export function startProgram({ binary, dataDir, display, args = [], env = {} }) {
  if (!existsSync(binary)) throw new Error(`${binary} is missing; build it first (make window window-dev does)`);
  const child = spawn(binary, args, {
    cwd: root,
    env: {
      ...process.env,
      DISPLAY: display,
      DBUS_SESSION_BUS_ADDRESS: 'disabled:',
      NO_AT_BRIDGE: '1',
      COLIBRI_DATA_DIR: dataDir,
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  child.stdout.on('data', (d) => (output += d));
  child.stderr.on('data', (d) => (output += d));
  // A program that ends by itself leaves a page that waits for it: the reason stands nowhere else.
  child.on('exit', (code, signal) => {
    if (code !== 0) console.log(`the program ended (${signal ?? code}) and had said:\n${output}`);
  });
  return { child, output: () => output, stop: (signal) => end(child, signal) };
}

/**
 * The development build with a Chromium page on it. What the page says on its console and every request it makes are kept:
 * errors and foreign requests fail a test at the end.
 */
export async function startInBrowser({ dataDir = temporaryFolder(), env = {}, viewport = { width: 1280, height: 800 }, theme = 'light', scale = 1 } = {}) {
  const screen = await startScreen();
  const port = await freePort();
  const program = startProgram({
    binary: devBinary,
    dataDir,
    display: screen.display,
    env: { assetdir: join(root, 'frontend/dist'), devserver: `127.0.0.1:${port}`, loglevel: 'error', ...env },
  });
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    headless: true,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  const context = await browser.newContext({ viewport, colorScheme: theme, deviceScaleFactor: scale });
  const page = await context.newPage();
  const address = `http://127.0.0.1:${port}/`;
  const errors = [];
  const requests = [];
  page.on('pageerror', (e) => {
    // Wails' development script takes messages before its runtime is there; production has neither.
    if (!/EventsNotify[^]*\/wails\/ipc\.js/.test(e.stack ?? '')) errors.push(e.stack ?? e.message);
  });
  page.on('console', (m) => {
    if (m.type() === 'error' && !isDevServersOwn(m)) errors.push(`${m.text()} (${m.location().url}:${m.location().lineNumber})`);
  });
  page.on('request', (r) => requests.push(r.url()));
  await until(async () => {
    if (program.child.exitCode !== null) throw new Error(`the program ended: ${program.output()}`);
    return page.goto(address).then(
      () => true,
      () => false,
    );
  }, 'the development server');
  return {
    page,
    browser,
    context,
    program,
    dataDir,
    address,
    errors,
    requests,
    screen,
    async stop({ keep = false, signal } = {}) {
      await browser.close();
      await program.stop(signal);
      await screen.stop();
      if (!keep) rmSync(dataDir, { recursive: true, force: true });
    },
  };
}

/**
 * Wails' development overlay styles itself inline, which our content policy forbids, and its calls go through a socket that is closed before a
 * page is left; production has neither.
 */
function isDevServersOwn(message) {
  return message.location().url.includes('/wails/ipc.js') || /reading 'send'\)[^]*\/wails\/ipc\.js/.test(message.text());
}

/** Figures of this run, kept beside the pictures. A slow machine makes them worse, so no test judges them. */
export function record(name, figures) {
  const file = join(pictures, 'performance.json');
  const all = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {};
  writeFileSync(file, JSON.stringify({ ...all, [name]: figures }, null, 2));
  console.log(`${name}: ${JSON.stringify(figures)}`);
}

/** Bytes of the page's heap after a collection. */
export async function heapBytes(page) {
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('HeapProfiler.collectGarbage');
  const { usedSize } = await cdp.send('Runtime.getHeapUsage');
  await cdp.detach();
  return usedSize;
}

export async function picture(page, name) {
  await page.screenshot({ path: join(pictures, `${name}.png`) });
}

/** A test with a window of its own, on whose page nothing goes wrong. */
export const inBrowser = (test) => async () => {
  const s = await startInBrowser();
  try {
    await ready(s.page);
    await test(s.page, s);
    assert.deepEqual(s.errors, []);
  } finally {
    await s.stop();
  }
};

/** Waits until something can be typed; the model may still be loading. */
export async function ready(page) {
  await page.getByLabel('Your question').waitFor();
}

export async function ask(page, text) {
  const answers = page.getByRole('article', { name: 'Answer' });
  const before = await answers.count();
  await page.getByLabel('Your question').fill(text);
  await page.keyboard.press('Enter');
  await answers.nth(before).waitFor();
  return answers.nth(before);
}

export async function answered(answer, patienceMillis = 60_000) {
  await answer.getByRole('button', { name: 'Another answer' }).waitFor({ timeout: patienceMillis });
  return answer.locator('.markdown').last().innerText();
}
