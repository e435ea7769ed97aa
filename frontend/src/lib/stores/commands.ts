// What menu items and shortcuts do.

import * as bridge from '../bridge/bridge';
import type { CommandName } from '../policy/shortcuts';
import { app } from './app.svelte';
import { chat } from './chat.svelte';
import { ui } from './ui.svelte';

export function run(command: CommandName): void {
  switch (command) {
    case 'new-chat':
      void chat.open('').then(() => (ui.focusComposer += 1));
      break;
    case 'search':
      void app.changeSettings({ sidebarOpen: true });
      ui.focusSearch += 1;
      break;
    case 'models':
    case 'settings':
    case 'shortcuts':
    case 'about':
      ui.dialog = ui.dialog === command ? '' : command;
      break;
    case 'open':
      void app.attempt(bridge.openContainer());
      break;
    case 'sidebar':
      void app.changeSettings({ sidebarOpen: !app.settings?.sidebarOpen });
      break;
    case 'activity':
      void app.changeSettings({ activityOpen: !app.settings?.activityOpen });
      break;
    case 'stop':
      void chat.stop();
      break;
    case 'regenerate':
      if (chat.last?.role === 'assistant' && !chat.answering) void chat.regenerate(chat.last);
      break;
    case 'copy-last': {
      const answer = chat.branch.findLast((s) => s.message.role === 'assistant');
      if (answer) void copy(answer.message.text);
      break;
    }
    case 'export':
      void exportChat(chat.id, 'markdown');
      break;
    case 'import':
      void importChats();
      break;
  }
}

export async function copy(text: string): Promise<void> {
  const done = await app.succeeds(bridge.copyText(text));
  if (done) ui.announcement = 'Copied.';
}

export async function exportChat(id: string, format: 'markdown' | 'json'): Promise<void> {
  if (id === '') return;
  const path = await app.attempt(bridge.exportChat(id, format));
  if (path) app.notify({ level: 'info', text: `The chat was written to ${path}.`, action: '', subject: '' });
}

export async function importChats(): Promise<void> {
  const n = await app.attempt(bridge.importChats());
  if (n)
    app.notify({
      level: 'info',
      text: n === 1 ? 'One chat was imported.' : `${n} chats were imported.`,
      action: '',
      subject: '',
    });
}

export async function loadModel(id: string): Promise<void> {
  ui.dialog = '';
  await app.attempt(bridge.loadModel(id));
}
