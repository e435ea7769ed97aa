// What the context meter says.

import type { ContextUse } from '../bridge/types';
import { count, seconds } from './format';

export interface Meter {
  share: number;
  level: 'calm' | 'full' | 'over';
  short: string;
  sentence: string;
}

export function meter(use: ContextUse | null): Meter | null {
  if (!use || !use.known || use.limit <= 0) return null;
  const share = use.tokens / use.limit;
  const wait = use.prefillSeconds >= 0.5 ? ` First word in about ${seconds(use.prefillSeconds)}.` : '';
  if (use.tokens >= use.limit) {
    return {
      share: 1,
      level: 'over',
      short: `${count(use.tokens)} / ${count(use.limit)}`,
      sentence: `The conversation is longer than the model can hold (${count(use.tokens)} of ${count(use.limit)} tokens). The oldest messages will be left out of the next answer; the system prompt stays.`,
    };
  }
  return {
    share,
    level: share >= 0.75 ? 'full' : 'calm',
    short: `${count(use.tokens)} / ${count(use.limit)}`,
    sentence: `${count(use.tokens)} of ${count(use.limit)} tokens used.${wait}`,
  };
}
