// Prints the npm packages of which something is in the page's bundle, as JSON: [{name, version, licence, folder}].
// Vite builds the page in memory and is asked which files went in; package.json would list too much, and miss what is bundled
// from a development package (Svelte's runtime).

import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const frontend = resolve(dirname(fileURLToPath(import.meta.url)), '../../frontend');
const { build } = await import(pathToFileURL(join(frontend, 'node_modules/vite/dist/node/index.js')).href);

const files = new Set();
const folders = new Set();
await build({
  root: frontend,
  configFile: join(frontend, 'vite.config.ts'),
  logLevel: 'error',
  build: { write: false },
  plugins: [
    {
      name: 'what-went-in',
      // Styles leave the chunks' lists of modules on their way to a file of their own.
      transform(_code, id) {
        if (/\.css($|\?)/.test(id)) files.add(id);
      },
      generateBundle(_options, bundle) {
        for (const chunk of Object.values(bundle)) for (const id of chunk.moduleIds ?? []) files.add(id);
      },
    },
  ],
});
for (const id of files) {
  // The helpers that bundlers add have names of their own instead of a path.
  if (id.startsWith('\0vite/')) folders.add(join(frontend, 'node_modules/vite'));
  else if (id.startsWith('\0rolldown/')) folders.add(join(frontend, 'node_modules/rolldown'));
  else {
    const inside = id.lastIndexOf('/node_modules/');
    if (inside < 0) continue;
    const parts = id.slice(inside + '/node_modules/'.length).split('/');
    const name = parts.slice(0, parts[0].startsWith('@') ? 2 : 1);
    folders.add(join(id.slice(0, inside), 'node_modules', ...name));
  }
}
const packages = [...folders].map((folder) => {
  if (!existsSync(join(folder, 'package.json'))) throw new Error(`${folder} has no package.json`);
  const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  return { name, version, licence: license ?? '', folder };
});
packages.sort((a, b) => (a.name < b.name ? -1 : 1));
console.log(JSON.stringify(packages));
