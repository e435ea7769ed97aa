// The keyboard map. On macOS the menu bar owns these keys; elsewhere the page does.

export type CommandName =
  | 'new-chat'
  | 'search'
  | 'models'
  | 'open'
  | 'settings'
  | 'sidebar'
  | 'activity'
  | 'stop'
  | 'regenerate'
  | 'copy-last'
  | 'export'
  | 'import'
  | 'shortcuts'
  | 'about';

export interface Shortcut {
  command: CommandName;
  label: string;
  /** The key with the platform's command key; shift where said. */
  key: string;
  shift: boolean;
}

export const SHORTCUTS: readonly Shortcut[] = [
  { command: 'new-chat', label: 'New chat', key: 'n', shift: false },
  { command: 'search', label: 'Search chats', key: 'f', shift: false },
  { command: 'models', label: 'Choose a model', key: 'm', shift: false },
  { command: 'open', label: 'Open a model', key: 'o', shift: false },
  { command: 'settings', label: 'Settings', key: ',', shift: false },
  { command: 'sidebar', label: 'Show or hide the sidebar', key: 'b', shift: false },
  { command: 'activity', label: 'Show or hide activity', key: 'i', shift: false },
  { command: 'stop', label: 'Stop the answer', key: '.', shift: false },
  { command: 'regenerate', label: 'Another answer', key: 'r', shift: false },
  { command: 'copy-last', label: 'Copy the last answer', key: 'c', shift: true },
  { command: 'export', label: 'Export this chat', key: 'e', shift: true },
  { command: 'shortcuts', label: 'Keyboard shortcuts', key: '/', shift: false },
];

export function commandFor(k: {
  key: string;
  shiftKey: boolean;
  altKey: boolean;
  metaKey: boolean;
  ctrlKey: boolean;
}): CommandName | null {
  if (k.altKey || k.metaKey === k.ctrlKey) return null;
  const key = k.key.toLowerCase();
  return SHORTCUTS.find((s) => s.key === key && s.shift === k.shiftKey)?.command ?? null;
}

/** ⌘N on a Mac, Ctrl+N elsewhere. */
export function keyLabel(s: Shortcut, mac: boolean): string {
  const key = s.key.toUpperCase();
  return mac ? `${s.shift ? '⇧' : ''}⌘${key}` : `Ctrl+${s.shift ? 'Shift+' : ''}${key}`;
}
