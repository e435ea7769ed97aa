// Conversations grouped by day, as the sidebar lists them.

import type { Conversation } from '../bridge/types';

export interface Group {
  label: string;
  conversations: Conversation[];
}

const MONTH = new Intl.DateTimeFormat('en-US', { month: 'long' });

/** Says under which heading a time is listed. Months are named once: thousands of conversations are grouped before the list is shown. */
export function dayLabels(now: number): (time: number) => string {
  const start = new Date(now);
  start.setHours(0, 0, 0, 0);
  const midnight = start.getTime();
  const months = new Map<number, string>();
  return (time) => {
    if (time >= midnight) return 'Today';
    const daysAgo = Math.ceil((midnight - time) / 86_400_000);
    if (daysAgo <= 1) return 'Yesterday';
    if (daysAgo <= 7) return 'Previous 7 days';
    if (daysAgo <= 30) return 'Previous 30 days';
    const day = new Date(time);
    const number = day.getFullYear() * 12 + day.getMonth();
    let label = months.get(number);
    if (label === undefined) {
      const month = MONTH.format(day);
      label = day.getFullYear() === start.getFullYear() ? month : `${month} ${day.getFullYear()}`;
      months.set(number, label);
    }
    return label;
  };
}

/** Pinned ones first, then newest first. */
export function groupByDay(conversations: readonly Conversation[], now: number): Group[] {
  const sorted = [...conversations].sort((a, b) => b.updated - a.updated || (a.id < b.id ? 1 : -1));
  const label = dayLabels(now);
  const groups: Group[] = [];
  const add = (label: string, c: Conversation) => {
    const last = groups.at(-1);
    if (last?.label === label) last.conversations.push(c);
    else groups.push({ label, conversations: [c] });
  };
  for (const c of sorted) if (c.pinned) add('Pinned', c);
  for (const c of sorted) if (!c.pinned) add(label(c.updated), c);
  return groups;
}
