// What the context meter says.

import type { ContextUse } from '../bridge/types';
import { count, seconds } from './format';

export interface Meter {
  share: number;
  level: 'calm' | 'full' | 'over';
  short: string;
  /** What the next prompt will cost, where that is worth saying. */
  cost: string;
  sentence: string;
}

export function meter(use: ContextUse | null): Meter | null {
  if (!use || !use.known || use.limit <= 0) return null;
  const share = use.tokens / use.limit;
  const after = use.prefillSeconds >= 0.1 ? `in about ${seconds(use.prefillSeconds)}` : '';
  const cost = after && `first word ${after}`;
  const wait = after && ` The first word comes ${after}.`;
  if (use.tokens >= use.limit) {
    return {
      share: 1,
      level: 'over',
      short: `${count(use.tokens)} / ${count(use.limit)}`,
      cost: '',
      sentence: `The conversation is longer than the model can hold (${count(use.tokens)} of ${count(use.limit)} tokens). The oldest messages will be left out of the next answer; the system prompt stays.`,
    };
  }
  return {
    share,
    level: share >= 0.75 ? 'full' : 'calm',
    short: `${count(use.tokens)} / ${count(use.limit)}`,
    cost,
    sentence: `This chat takes up ${count(use.tokens)} of the ${count(use.limit)} tokens that the model can hold; a word is about 1.3.${wait}`,
  };
}
