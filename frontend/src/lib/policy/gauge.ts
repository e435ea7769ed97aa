// What the memory gauge shows: segments of the limit, the rest of the machine, and the same as a sentence.

import type { ModelStatus, Stats } from '../bridge/types';
import { bytes } from './format';

export type SegmentKind = 'resident' | 'pinned' | 'cached' | 'reading' | 'conversation' | 'scratch' | 'free';

export interface Segment {
  kind: SegmentKind;
  label: string;
  bytes: number;
  /** Of the whole bar, 0 … 1. */
  share: number;
}

export interface MachinePart {
  kind: 'colibri' | 'other' | 'cache' | 'compressed' | 'free';
  label: string;
  bytes: number;
  share: number;
}

export interface Gauge {
  segments: Segment[];
  machine: MachinePart[];
  used: number;
  limit: number;
  pressure: string;
  sentence: string;
}

const LABELS: Record<SegmentKind, string> = {
  resident: 'Always in memory',
  pinned: 'Pinned experts',
  cached: 'Cached experts',
  reading: 'Being read',
  conversation: 'Conversation',
  scratch: 'Working memory',
  free: 'Free within the limit',
};

/** Slot memory is shared among pinned, cached, loading and empty slots in proportion to their number: slots are of one size. */
export function gauge(stats: Stats, model: ModelStatus): Gauge {
  const s = stats.snapshot;
  const slots = s.pinnedSlots + s.cachedSlots + s.loadingSlots + s.freeSlots;
  const slotShare = (n: number) => (slots > 0 ? (s.slotBytes * n) / slots : 0);
  const amounts: Record<SegmentKind, number> = {
    resident: s.residentBytes,
    pinned: slotShare(s.pinnedSlots),
    cached: slots > 0 ? slotShare(s.cachedSlots) : s.slotBytes,
    reading: slotShare(s.loadingSlots) + s.stagingBytes,
    conversation: s.kvBytes,
    scratch: s.scratchBytes,
    free: Math.max(0, s.limitBytes - s.usedBytes) + slotShare(s.freeSlots),
  };
  const whole = Math.max(s.limitBytes, s.usedBytes, 1);
  const kinds = Object.keys(amounts) as SegmentKind[];
  const segments = kinds
    .filter((kind) => amounts[kind] > 0)
    .map((kind) => ({ kind, label: LABELS[kind], bytes: amounts[kind], share: amounts[kind] / whole }));
  const pressure = pressureWords(stats.pressure);
  return {
    segments,
    machine: machine(stats),
    used: s.usedBytes,
    limit: s.limitBytes,
    pressure,
    sentence: sentence(segments, s.usedBytes, s.limitBytes, pressure, model),
  };
}

function machine(stats: Stats): MachinePart[] {
  const m = stats.memory;
  if (m.totalBytes <= 0) return [];
  const known = (n: number) => Math.max(0, n);
  const own = known(m.processBytes);
  const other = Math.max(
    0,
    m.totalBytes - own - known(m.freeBytes) - known(m.fileCacheBytes) - known(m.compressedBytes),
  );
  const parts: MachinePart[] = [
    { kind: 'colibri', label: 'Colibri', bytes: own, share: 0 },
    { kind: 'other', label: 'Other apps', bytes: other, share: 0 },
    { kind: 'compressed', label: 'Compressed', bytes: known(m.compressedBytes), share: 0 },
    { kind: 'cache', label: 'File cache', bytes: known(m.fileCacheBytes), share: 0 },
    { kind: 'free', label: 'Free', bytes: known(m.freeBytes), share: 0 },
  ];
  return parts.filter((p) => p.bytes > 0).map((p) => ({ ...p, share: p.bytes / m.totalBytes }));
}

export function pressureWords(pressure: string): string {
  switch (pressure) {
    case 'normal':
      return 'Memory is relaxed';
    case 'warning':
      return 'Memory is getting tight';
    case 'critical':
      return 'Memory is very tight; Colibri is giving some back';
    default:
      return '';
  }
}

function sentence(segments: Segment[], used: number, limit: number, pressure: string, model: ModelStatus): string {
  if (model.phase === 'loading') return 'The model is being loaded.';
  if (model.phase !== 'ready') return 'No model is in memory.';
  const parts = segments.filter((s) => s.kind !== 'free').map((s) => `${s.label.toLowerCase()} ${bytes(s.bytes)}`);
  const whole = limit > 0 ? `${bytes(used)} of ${bytes(limit)} used` : `${bytes(used)} used, no limit set`;
  return `${whole}: ${parts.join(', ')}.${pressure ? ` ${pressure}.` : ''}`;
}
