// What a token's time went into: over the last second while an answer is made, over the whole of it afterwards.

import type { GPUCounters, Receipt, TimeSplit } from '../bridge/types';
import { count, percent, seconds, type Line } from './format';

export interface Part {
  kind: 'attention' | 'experts' | 'disk' | 'rest';
  label: string;
  share: number;
  text: string;
}

export interface Split {
  title: string;
  parts: Part[];
}

type Times = Pick<TimeSplit, 'attentionMillis' | 'expertMillis' | 'waitMillis' | 'otherMillis'>;

/** The split of this moment where something is being computed, else that of the last answer. */
export function timeSplit(live: TimeSplit, last: Receipt | null): Split | null {
  if (total(live) > 0) {
    if (live.tokens > 0) return { title: 'Time for each token, now', parts: parts(live, live.tokens) };
    return { title: 'Time for reading the question, now', parts: parts(live, 0) };
  }
  if (!last || last.tokens <= 0 || total(last) <= 0) return null;
  return { title: 'Time for each token of the last answer', parts: parts(last, last.tokens) };
}

function total(t: Times): number {
  return t.attentionMillis + t.expertMillis + t.waitMillis + t.otherMillis;
}

/** Without tokens, shares alone say something. */
function parts(t: Times, tokens: number): Part[] {
  const whole = total(t);
  const times: [Part['kind'], string, number][] = [
    ['attention', 'Attention and shared experts', t.attentionMillis],
    ['experts', 'Routed experts', t.expertMillis],
    ['disk', 'Waiting for the disk', t.waitMillis],
    ['rest', 'Other', t.otherMillis],
  ];
  return times.map(([kind, label, millis]) => ({
    kind,
    label,
    share: millis / whole,
    text: tokens > 0 ? `${milliseconds(millis / tokens)} ms` : percent(millis / whole),
  }));
}

/** What the graphics processor has done since the model was loaded; nothing where the CPU computes. */
export function gpuLines(gpu: GPUCounters | null): Line[] {
  if (!gpu) return [];
  return [
    { label: 'Computing', value: seconds(gpu.gpuMillis / 1000) },
    { label: 'Preparing its work', value: seconds(gpu.setupMillis / 1000) },
    { label: 'Collecting results', value: seconds(gpu.scatterMillis / 1000) },
    { label: 'Committing memory', value: seconds(gpu.commitMillis / 1000) },
    { label: 'Blocks of experts done', value: count(gpu.blocks) },
    { label: 'Left to the CPU', value: gpu.fallenBack > 0 ? count(gpu.fallenBack) : 'none' },
  ];
}

function milliseconds(n: number): string {
  return n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0);
}
