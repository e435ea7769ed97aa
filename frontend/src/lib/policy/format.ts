// How figures are written. Sizes are decimal, as the Finder shows them.

/** A value with its name. */
export interface Line {
  label: string;
  value: string;
}

const UNITS = ['bytes', 'KB', 'MB', 'GB', 'TB'] as const;

export function bytes(n: number): string {
  if (!Number.isFinite(n) || n < 0) return '–';
  let unit = 0;
  let value = n;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit++;
  }
  const digits = unit === 0 || value >= 99.5 ? 0 : 1;
  return `${value.toFixed(digits)} ${unit === 0 && n === 1 ? 'byte' : UNITS[unit]}`;
}

export function count(n: number): string {
  return n.toLocaleString('en-US');
}

/** 31 M, 744 B: parameter counts. */
export function parameters(n: number): string {
  if (n <= 0) return '';
  if (n >= 1e12) return `${(n / 1e12).toFixed(1)} T`;
  if (n >= 1e9) return `${n / 1e9 >= 100 ? Math.round(n / 1e9) : (n / 1e9).toFixed(1)} B`;
  return `${Math.max(1, Math.round(n / 1e6))} M`;
}

export function rate(perSecond: number): string {
  if (!Number.isFinite(perSecond) || perSecond <= 0) return '–';
  return perSecond >= 100 ? count(Math.round(perSecond)) : perSecond.toFixed(perSecond >= 10 ? 1 : 2);
}

export function percent(share: number): string {
  return `${Math.round(Math.min(1, Math.max(0, Number.isFinite(share) ? share : 0)) * 100)} %`;
}

export function seconds(s: number): string {
  if (!Number.isFinite(s) || s < 0) return '–';
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

/** "3 to 5 tok/s": an expectation, no finer than it can be; nothing where nothing is known. */
export function speedRange(low: number, high: number): string {
  if (low <= 0 && high <= 0) return '';
  const [a, b] = [roughly(low), roughly(high)];
  return a === b || low <= 0 ? `about ${b} tok/s` : `${a} to ${b} tok/s`;
}

/** One digit of what is below ten, two of the rest. */
function roughly(n: number): string {
  return count(Number(n.toPrecision(n < 10 ? 1 : 2)));
}
