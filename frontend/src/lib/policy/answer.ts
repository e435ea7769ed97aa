// What is said about an answer while it is made, and about what it was made from.

import type { ModelStatus } from '../bridge/types';
import { count, percent } from './format';

/** Before an answer's turn has come. */
export function waitingWords(m: ModelStatus): string {
  if (m.phase === 'loading') return `Waiting for ${m.name || 'the model'}, which is loading (${percent(m.progress)})`;
  if (m.phase === 'ready') return 'Waiting for its turn';
  return 'Waiting for the model';
}

/** While the prompt is computed. */
export function readingWords(done: number, all: number): string {
  return all > 0
    ? `Reading the conversation, ${percent(done / all)} of ${count(all)} tokens`
    : 'Reading the conversation';
}

/** Above an answer that did not see the whole conversation. */
export function droppedWords(messages: number): string {
  const what = messages === 1 ? 'The oldest message was' : `The ${count(messages)} oldest messages were`;
  return `${what} left out of what the model read for this answer, because the conversation has become longer than it can hold. Instructions are always kept.`;
}
