// Joins the page to Go: events to stores, the window's own happenings to Go.

import { Environment, WindowIsFullscreen } from '../../../wailsjs/runtime/runtime';
import * as bridge from '../bridge/bridge';
import { commandFor, type CommandName } from '../policy/shortcuts';
import { app } from './app.svelte';
import { chat } from './chat.svelte';
import { run } from './commands';
import { ui } from './ui.svelte';

const RESIZE_PAUSE_MILLIS = 500;

export async function start(): Promise<void> {
  guardDrops(); // before anything else: an unguarded drop replaces the page by what was dropped
  window.addEventListener('error', (e) => void bridge.reportError(`${e.message} at ${e.filename}:${e.lineno}`));
  window.addEventListener('unhandledrejection', (e) => void bridge.reportError(bridge.sentence(e.reason)));

  let opened = false;
  await bridge.start({
    state(state) {
      app.apply(state);
      if (opened) {
        void chat.refresh();
        return;
      }
      opened = true;
      const last = state.settings.lastConversation;
      void chat.begin(state.conversations.some((c) => c.id === last) ? last : '');
    },
    event(event) {
      app.event(event);
      chat.event(event);
      if (event.kind === 'offer') ui.dragging = false; // a drop that macOS delivered past the page
      if (event.kind === 'menu') run(event.data as CommandName);
    },
    trouble(text) {
      app.notify({ level: 'warning', text, action: '', subject: '' });
    },
  });

  const environment = await Environment();
  ui.mac = environment.platform === 'darwin';

  window.addEventListener('keydown', (e) => {
    if (ui.mac || e.defaultPrevented || e.isComposing) return;
    const command = commandFor(e);
    if (!command) return;
    e.preventDefault();
    run(command);
  });
  document.addEventListener('visibilitychange', () => {
    void bridge.setVisible(!document.hidden);
    if (document.hidden) void chat.keepDraft();
  });
  window.addEventListener('pagehide', () => void chat.keepDraft());
  let resize: ReturnType<typeof setTimeout> | undefined;
  window.addEventListener('resize', () => {
    clearTimeout(resize);
    resize = setTimeout(() => {
      void bridge.rememberWindow();
      if (ui.mac) void WindowIsFullscreen().then((full) => (ui.fullscreen = full));
    }, RESIZE_PAUSE_MILLIS);
  });
  setInterval(() => (ui.now = Date.now()), 60_000);
}

/** Dropped files reach Go by themselves; text goes where a text field takes it; nothing else happens, and nothing navigates. */
function guardDrops(): void {
  // The target can be the document or a text node, which are in no field.
  const isText = (e: DragEvent) => e.target instanceof Element && e.target.closest('textarea, input') !== null;
  const hasFiles = (e: DragEvent) =>
    e.dataTransfer !== null &&
    (e.dataTransfer.types.includes('Files') || e.dataTransfer.types.includes('text/uri-list'));
  let depth = 0;
  // Entering counts too: WebKit opens what is dropped right after a dragenter that nobody prevented.
  const accept = (e: DragEvent) => {
    if (!hasFiles(e) && isText(e)) return;
    e.preventDefault();
    if (hasFiles(e) && e.dataTransfer) e.dataTransfer.dropEffect = 'copy';
  };
  window.addEventListener('dragenter', (e) => {
    depth += 1;
    if (hasFiles(e)) ui.dragging = true;
    accept(e);
  });
  window.addEventListener('dragover', accept);
  window.addEventListener('dragleave', () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) ui.dragging = false;
  });
  window.addEventListener('drop', (e) => {
    depth = 0;
    ui.dragging = false;
    if (hasFiles(e) || !isText(e)) e.preventDefault();
  });
  // Dragging a link or an image out of the page crashes Wails on macOS.
  document.addEventListener('dragstart', (e) => {
    const selected = window.getSelection()?.toString() ?? '';
    if (selected === '' || (e.target instanceof Element && e.target.closest('a, img, svg') !== null))
      e.preventDefault();
  });
}
