// The licences of what the program is made of, as the about box lists them.

import type { Licence } from '../bridge/types';

const TITLES: readonly (readonly [part: string, title: string])[] = [
  ['Colibri', 'Colibri itself'],
  ['program', 'In the program'],
  ['page', 'In the window'],
  ['model', 'What the bundled model learned from'],
];

export interface LicenceGroup {
  title: string;
  works: Licence[];
}

/** Every work is listed, those of a part that has no title here last. */
export function byPart(works: readonly Licence[]): LicenceGroup[] {
  const known = new Set(TITLES.map(([part]) => part));
  const groups = TITLES.map(([part, title]) => ({ title, works: works.filter((w) => w.part === part) }));
  groups.push({ title: 'Others', works: works.filter((w) => !known.has(w.part)) });
  return groups.filter((g) => g.works.length > 0);
}
