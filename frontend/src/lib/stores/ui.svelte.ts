// What is open in the window. Nothing here outlives it.

import type { Destination } from '../policy/links';

export type Dialog = '' | 'settings' | 'models' | 'shortcuts' | 'about' | 'chat-options';

class UiStore {
  dialog = $state<Dialog>('');
  link = $state<Destination | null>(null);
  query = $state('');
  /** Counts requests to put the caret into the search field or the composer. */
  focusSearch = $state(0);
  focusComposer = $state(0);
  dragging = $state(false);
  mac = $state(false);
  fullscreen = $state(false);
  now = $state(Date.now());
  /** What a screen reader is told, politely. */
  announcement = $state('');
}

export const ui = new UiStore();
