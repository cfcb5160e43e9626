// Drops optional packages from package-lock.json; run after `npm install`, before committing a new lock file.
//
// @qwen-code/qwen-code lists native add-ons (terminal, clipboard, audio, images) that no test uses and whose platform packages
// npm records without a version where it did not install them; `npm ci` then refuses the file as out of sync.
import { readFileSync, writeFileSync } from 'node:fs';

const file = new URL('package-lock.json', import.meta.url);
const lock = JSON.parse(readFileSync(file, 'utf8'));
for (const [name, entry] of Object.entries(lock.packages)) {
  if (entry.optional) delete lock.packages[name];
  delete entry.optionalDependencies;
}
writeFileSync(file, `${JSON.stringify(lock, null, 2)}\n`);
