import { expect, it } from 'vitest';
import type { Conversation } from '../bridge/types';
import { app } from './app.svelte';

it('keeps a conversation’s draft over events, which carry none', () => {
  const c = { id: 'c', title: '', head: '', draft: '', pinned: false } as Conversation;
  app.upsert(c);
  app.keepDraft('c', 'half a thought');
  app.event({ seq: 1, kind: 'conversation', data: { ...c, pinned: true } });
  expect(app.conversations).toEqual([{ ...c, pinned: true, draft: 'half a thought' }]);
});
