// The memory slider: its ends and what it says.

import type { Container } from '../bridge/types';
import { bytes, speedRange } from './format';

export interface MemoryChoice {
  floor: number;
  ceiling: number;
  step: number;
  suggested: number;
}

/** The ceiling leaves the rest of the computer a quarter of its memory, and never less than 4 GB on large machines. */
export function memoryChoice(c: Container | undefined, totalBytes: number): MemoryChoice {
  const total = totalBytes > 0 ? totalBytes : 8e9;
  const floor = Math.max(c?.needBytes ?? 0, 16e6);
  const ceiling = Math.max(floor, Math.min(total * 0.75, Math.max(total - 4e9, total / 2)));
  const wanted = c && c.bytes > 0 ? Math.min(ceiling, Math.max(floor, c.bytes * 1.3)) : ceiling;
  const step = Math.max(1e6, 10 ** Math.floor(Math.log10(Math.max(ceiling - floor, 1e6) / 100)));
  return { floor: Math.round(floor), ceiling: Math.round(ceiling), step, suggested: Math.round(wanted) };
}

export function memoryWords(choice: MemoryChoice, c: Container | undefined, limit: number): string {
  const name = c?.name ?? 'The model';
  const least = `${name} needs at least ${bytes(choice.floor)}.`;
  const all = c && c.bytes > 0 ? c.bytes * 1.3 : 0;
  if (all > 0 && all <= choice.ceiling && (limit <= 0 || limit >= all))
    return `All of ${name} fits into memory: nothing is read from the disk while it answers. ${least}`;
  const speed = c ? speedRange(c.speedLow, c.speedHigh) : '';
  return `More memory keeps more experts at hand, so fewer are read from the disk.${speed ? ` Expect ${speed}.` : ''} ${least} Beyond ${bytes(choice.ceiling)} the rest of this computer would suffer.`;
}
