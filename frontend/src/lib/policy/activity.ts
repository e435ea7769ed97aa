// What a token's time went into.

import type { Stats } from '../bridge/types';

export interface Part {
  kind: 'compute' | 'disk';
  label: string;
  share: number;
  text: string;
}

/** Means over the tokens since the model was loaded. */
export function timeSplit(stats: Stats | null): Part[] {
  const s = stats?.snapshot;
  if (!s || s.tokens === 0 || s.tokenNanos <= 0) return [];
  const perToken = s.tokenNanos / s.tokens;
  // Prefill waits too, so the sum of waits can exceed the time of the generated tokens.
  const disk = Math.min(s.waitNanos / s.tokens, perToken);
  const millis = (nanos: number) => `${(nanos / 1e6).toFixed(nanos < 1e7 ? 2 : 1)} ms`;
  return [
    { kind: 'compute', label: 'Computing', share: (perToken - disk) / perToken, text: millis(perToken - disk) },
    { kind: 'disk', label: 'Waiting for the disk', share: disk / perToken, text: millis(disk) },
  ];
}
