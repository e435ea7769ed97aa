// What a receipt shows.

import type { Receipt, Sampling } from '../bridge/types';
import { bytes, count, percent, rate, seconds, type Line } from './format';

/** The one line under an answer. */
export function summary(r: Receipt): string {
  const parts = [`${count(r.tokens)} ${r.tokens === 1 ? 'token' : 'tokens'}`];
  if (r.tokensPerSecond > 0) parts.push(`${rate(r.tokensPerSecond)} tok/s`);
  if (r.timeToFirstTokenMillis > 0) parts.push(`first word ${seconds(r.timeToFirstTokenMillis / 1000)}`);
  if (r.readBytes > 0) parts.push(`${bytes(r.readBytes)} read`);
  return parts.join(' · ');
}

export function lines(r: Receipt): Line[] {
  const out: Line[] = [
    { label: 'Model', value: r.backend ? `${r.model}, ${r.backend}` : r.model },
    { label: 'Answer', value: `${count(r.tokens)} tokens at ${rate(r.tokensPerSecond)} tok/s` },
    { label: 'First word after', value: seconds(r.timeToFirstTokenMillis / 1000) },
    {
      label: 'Prompt',
      value: `${count(r.promptTokens)} tokens${r.reusedTokens > 0 ? `, ${count(r.reusedTokens)} remembered` : ''}${
        r.prefillTokensPerSecond > 0 ? `; ${rate(r.prefillTokensPerSecond)} tok/s` : ''
      }`,
    },
    { label: 'Read from disk', value: bytes(r.readBytes) },
    { label: 'Found in memory', value: percent(r.hitRate) },
  ];
  if (r.memoryLimitBytes > 0) out.push({ label: 'Memory limit', value: bytes(r.memoryLimitBytes) });
  out.push({ label: 'Seed', value: String(r.seed) }, { label: 'Sampling', value: samplingWords(r.sampling) });
  return out;
}

export function samplingWords(s: Sampling): string {
  if (s.temperature === 0) return 'always the likeliest word';
  const parts = [`temperature ${s.temperature}`];
  if (s.topP < 1) parts.push(`top-p ${s.topP}`);
  if (s.topK > 0) parts.push(`top-k ${s.topK}`);
  if (s.minP > 0) parts.push(`min-p ${s.minP}`);
  if (s.repetitionPenalty !== 1) parts.push(`repetition ${s.repetitionPenalty}`);
  if (s.presencePenalty !== 0) parts.push(`presence ${s.presencePenalty}`);
  return parts.join(', ');
}

/** Why an answer ended, where that is worth saying. */
export function ending(state: string, error: string, finishReason: string, empty = false): string {
  switch (state) {
    case 'stopped':
      if (empty) return 'Stopped before the first word.';
      return 'Stopped. What was written is kept.';
    case 'interrupted':
      return 'Colibri was closed in the middle of this answer. What was written is kept.';
    case 'failed':
      return error;
    case 'done':
      if (finishReason === 'length') return 'The answer reached the longest length allowed.';
      if (finishReason === 'context') return 'The model’s memory for this conversation is full.';
  }
  return '';
}
