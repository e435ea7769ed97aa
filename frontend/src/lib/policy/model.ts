// How models and their state are described.

import type { Container, ModelStatus } from '../bridge/types';
import { bytes, parameters, percent, speedRange } from './format';

const FAMILIES: Record<string, string> = {
  glm_moe_dsa: 'GLM-5',
  glm4_moe_lite: 'GLM-4 Lite',
  glm4_moe: 'GLM-4',
  deepseek_v3: 'DeepSeek V3',
  qwen3_moe: 'Qwen3 MoE',
  olmoe: 'OLMoE',
};

export function familyName(family: string): string {
  return FAMILIES[family] ?? family;
}

/** The state of the model, in the picker. */
export function statusWords(m: ModelStatus): string {
  switch (m.phase) {
    case 'none':
      return 'not loaded';
    case 'loading':
      return `loading ${percent(m.progress)}`;
    case 'ready':
      return 'ready';
    case 'failed':
      return 'could not be loaded';
  }
}

export interface Banner {
  level: 'info' | 'error';
  text: string;
  /** What the button that loads the container says, if one is offered. */
  load: string;
}

/** What is said above the composer while no model can answer. */
export function banner(m: ModelStatus, c: Container | undefined): Banner | null {
  if (m.phase === 'failed') return { level: 'error', text: m.error, load: c && !c.missing ? 'Try again' : '' };
  if (m.phase === 'none')
    return { level: 'info', text: 'No model is in memory.', load: c && !c.missing ? `Load ${c.name}` : '' };
  return null;
}

/** "4-bit (int4-g64)": what the name of a format means. */
export function formatWords(format: string): string {
  const bits = /^(?:int|fp|mxfp|bf|f)(\d+)/.exec(format)?.[1];
  return bits ? `${bits}-bit (${format})` : format;
}

/** Family, parameters, quantisation, experts: what a container is, in one line. */
export function description(c: Container): string {
  const parts: string[] = [];
  if (c.family) parts.push(familyName(c.family));
  if (c.parameters > 0) parts.push(`${parameters(c.parameters)} parameters`);
  if (c.format) parts.push(formatWords(c.format));
  if (c.experts > 0) parts.push(`${c.perToken} of ${c.experts} experts for each word`);
  return parts.join(' · ');
}

/** What running it takes, in one line. */
export function demands(c: Container, measuring = false): string {
  const parts: string[] = [];
  if (c.bytes > 0) parts.push(`${bytes(c.bytes)} on disk`);
  if (c.needBytes > 0) parts.push(`needs ${bytes(c.needBytes)} of memory`);
  const speed = speedRange(c.speedLow, c.speedHigh);
  if (speed) parts.push(speed);
  else if (measuring) parts.push('finding out how fast …');
  return parts.join(' · ');
}
