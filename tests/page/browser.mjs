// A page in Chromium: opened, waited for, and checked for errors, foreign requests and accessibility.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const HERE = fileURLToPath(new URL('.', import.meta.url));
// How soon the page must show an exchange. Without events it would only refresh every 30 s.
export const TIMEOUT_MS = 20_000;

// A page that counts its requests and collects its errors.
export async function openPage(browser, stack, { url = stack.pageUrl, origin = stack.admin, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.errors = [];
  page.requests = [];
  page.on('pageerror', (error) => page.errors.push(error.stack));
  page.on('console', (message) => message.type() === 'error' && page.errors.push(message.text()));
  page.on('request', (request) => {
    page.requests.push(request.url());
    if (request.url().includes(stack.token) && !request.isNavigationRequest()) page.errors.push(`the token is in ${request.url()}`);
    if (new URL(request.url()).origin !== origin) page.errors.push(`a request to ${request.url()}`);
  });
  await page.goto(url);
  return page;
}

export async function closePage(page) {
  assert.deepEqual(page.errors, []);
  await page.context().close();
}

export const isLive = (page) => page.locator('#state.live').waitFor({ timeout: TIMEOUT_MS });

export async function goTo(page, hash) {
  await page.evaluate((to) => { location.hash = to; }, hash);
  await page.locator('h1:visible').first().waitFor({ timeout: TIMEOUT_MS });
}

// Waits until `read` in the page returns what `expected` says.
export async function waitForSame(page, read, expected, what) {
  for (const deadline = Date.now() + TIMEOUT_MS; ; await page.waitForTimeout(100)) {
    const [shown, wanted] = [await page.evaluate(read), await expected()];
    try {
      assert.deepEqual(shown, wanted, what);
      return wanted;
    } catch (error) {
      if (Date.now() > deadline) throw error;
    }
  }
}

export async function checkAxe(page, what) {
  await page.evaluate(await readFile(path.join(HERE, 'node_modules/axe-core/axe.min.js'), 'utf8'));
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html, failureSummary }) => `${html} ${failureSummary}`).join('; ')}`);
  assert.deepEqual(found, [], `${what}: axe`);
}
