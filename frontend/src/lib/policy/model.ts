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

/** Family, parameters, quantisation, experts: what a container is, in one line. */
export function description(c: Container): string {
  const parts: string[] = [];
  if (c.family) parts.push(familyName(c.family));
  if (c.parameters > 0) parts.push(`${parameters(c.parameters)} parameters`);
  if (c.format) parts.push(c.format);
  if (c.experts > 0) parts.push(`${c.perToken} of ${c.experts} experts`);
  return parts.join(' · ');
}

/** What running it takes, in one line. */
export function demands(c: Container): string {
  const parts: string[] = [];
  if (c.bytes > 0) parts.push(`${bytes(c.bytes)} on disk`);
  if (c.needBytes > 0) parts.push(`needs ${bytes(c.needBytes)} of memory`);
  const speed = speedRange(c.speedLow, c.speedHigh);
  if (speed) parts.push(`about ${speed}`);
  return parts.join(' · ');
}
