// Presets of sampling values.

import type { Sampling } from '../bridge/types';

/** Whether two settings draw alike; the seed is no part of a preset. */
export function sameSampling(a: Sampling, b: Sampling): boolean {
  return (Object.keys(a) as (keyof Sampling)[]).every((key) => key === 'seed' || a[key] === b[key]);
}
