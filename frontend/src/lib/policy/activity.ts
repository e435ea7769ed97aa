// What a token's time went into.

import type { Receipt } from '../bridge/types';

export interface Part {
  kind: 'attention' | 'experts' | 'disk' | 'rest';
  label: string;
  share: number;
  text: string;
}

/** Means over the tokens of an answer, the work on its prompt included. */
export function timeSplit(r: Receipt | null): Part[] {
  if (!r || r.tokens <= 0) return [];
  const times: [Part['kind'], string, number][] = [
    ['attention', 'Attention and shared experts', r.attentionMillis],
    ['experts', 'Routed experts', r.expertMillis],
    ['disk', 'Waiting for the disk', r.waitMillis],
    ['rest', 'Other', r.otherMillis],
  ];
  const whole = times.reduce((sum, [, , millis]) => sum + millis, 0);
  if (whole <= 0) return [];
  return times.map(([kind, label, millis]) => {
    const each = millis / r.tokens;
    return { kind, label, share: millis / whole, text: `${each.toFixed(each < 10 ? 2 : 1)} ms` };
  });
}
