// The messages of a conversation form a tree; one branch of it is shown.

import type { Message } from '../bridge/types';

export interface Shown {
  message: Message;
  /** Ids of all versions of this message, oldest first, itself included. */
  versions: string[];
}

/** The branch that ends at head, with each message's other versions. */
export function shownBranch(messages: ReadonlyMap<string, Message>, head: string): Shown[] {
  const siblings = new Map<string, Message[]>();
  for (const m of messages.values()) {
    const key = `${m.role} ${m.parent}`;
    const list = siblings.get(key);
    if (list) list.push(m);
    else siblings.set(key, [m]);
  }
  const path: Shown[] = [];
  const seen = new Set<string>();
  for (let id = head; id !== '' && !seen.has(id);) {
    const message = messages.get(id);
    if (!message) break;
    seen.add(id);
    const versions = (siblings.get(`${message.role} ${message.parent}`) ?? [message])
      .toSorted((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1))
      .map((m) => m.id);
    path.push({ message, versions });
    id = message.parent;
  }
  return path.reverse();
}
