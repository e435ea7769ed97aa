// Conversations grouped by day, as the sidebar lists them.

import type { Conversation } from '../bridge/types';

export interface Group {
  label: string;
  conversations: Conversation[];
}

const MONTH = new Intl.DateTimeFormat('en-US', { month: 'long' });

export function dayLabel(time: number, now: number): string {
  const start = new Date(now);
  start.setHours(0, 0, 0, 0);
  const midnight = start.getTime();
  const day = new Date(time);
  if (time >= midnight) return 'Today';
  const daysAgo = Math.ceil((midnight - time) / 86_400_000);
  if (daysAgo <= 1) return 'Yesterday';
  if (daysAgo <= 7) return 'Previous 7 days';
  if (daysAgo <= 30) return 'Previous 30 days';
  const month = MONTH.format(day);
  return day.getFullYear() === start.getFullYear() ? month : `${month} ${day.getFullYear()}`;
}

/** Pinned ones first, then newest first. */
export function groupByDay(conversations: readonly Conversation[], now: number): Group[] {
  const sorted = [...conversations].sort((a, b) => b.updated - a.updated || (a.id < b.id ? 1 : -1));
  const groups: Group[] = [];
  const add = (label: string, c: Conversation) => {
    const last = groups.at(-1);
    if (last?.label === label) last.conversations.push(c);
    else groups.push({ label, conversations: [c] });
  };
  for (const c of sorted) if (c.pinned) add('Pinned', c);
  for (const c of sorted) if (!c.pinned) add(dayLabel(c.updated, now), c);
  return groups;
}
