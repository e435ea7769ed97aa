// Messages are put on the page in groups: what is far from the view costs a frame as much as its group, not as each message.

export const GROUP = 8;

export function inGroups<T>(items: readonly T[], size = GROUP): T[][] {
  const groups: T[][] = [];
  for (let i = 0; i < items.length; i += size) groups.push(items.slice(i, i + size));
  return groups;
}
