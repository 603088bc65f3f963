// What the page is made of: its own files, served as they are, and uPlot, byte for byte as its package has it. The lock file
// names the package by its hash.

import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const UI = path.join(HERE, '../../src/admin/ui');
// The most that the whole page may have, compressed.
const MOST_BYTES = 150 * 1024;

export async function checkBundle() {
  const shipped = await readFile(path.join(UI, 'uplot.js'));
  assert(shipped.equals(await readFile(path.join(HERE, 'node_modules/uplot/dist/uPlot.iife.min.js'))), 'uplot.js is not that of the package');
  assert.equal(await readFile(path.join(UI, 'uplot.LICENSE'), 'utf8'), await readFile(path.join(HERE, 'node_modules/uplot/LICENSE'), 'utf8'));
  const sources = await Promise.all((await readdir(UI)).map((name) => readFile(path.join(UI, name))));
  const bytes = sources.reduce((sum, source) => sum + gzipSync(source).length, 0);
  assert(bytes <= MOST_BYTES, `${bytes} bytes`);
  return bytes;
}

// The contrast (WCAG 2) of every colour that marks are drawn in with the card behind them, in both themes. `axe` checks texts.
export async function checkMarks() {
  const css = await readFile(path.join(UI, 'page.css'), 'utf8');
  const light = colours(/:root \{([^}]*)\}/.exec(css)[1]);
  const dark = { ...light, ...colours(/:root\.dark \{([^}]*)\}/.exec(css)[1]) };
  for (const [theme, names] of Object.entries({ light, dark })) {
    const marks = Object.keys(names).filter((name) => !/^(ground|card|raised|line|accent-soft)$/.test(name));
    assert(marks.length > 20, `${marks}`);
    for (const name of marks) assert(ratio(names[name], names.card) >= 3, `${theme}: ${name} ${ratio(names[name], names.card).toFixed(2)}`);
  }
}

const colours = (block) => Object.fromEntries([...block.matchAll(/--([\w-]+): (#[\da-f]{6})/g)].map(([, name, colour]) => [name, colour]));

function ratio(one, other) {
  const luminance = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255)
    .map((share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4))
    .reduce((sum, share, at) => sum + share * [0.2126, 0.7152, 0.0722][at], 0);
  const [dark, bright] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
}
