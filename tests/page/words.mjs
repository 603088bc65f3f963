// The words of a session beside its chart: for the admin token, if they are kept; never as anything but text.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';

import { TestStack } from '../sdk/node/stack.mjs';
import { TIMEOUT_MS, checkAxe, closePage, isLive, openPage, waitForSame } from './browser.mjs';

const CONFIG = `
[content]
keep = true
[prune]
gate = ["always"]
protect_tokens = 100
protect_messages = 2
min_saving_tokens = 50
min_messages = 4
`;
const TURNS = 45;
const ATTACK = '<img src="x" onerror="window.attacked = true"><script>window.attacked = true</script>';
const SECRET = `sk-${'ant-api03-0123456789abcdef'}`;

// A conversation of many turns, the second with a tool result that is hostile, and long enough to be cut later.
async function talk(stack) {
  const messages = [];
  for (let turn = 1; turn <= TURNS; turn += 1) {
    messages.push({ role: 'user', content: `Question ${turn}: ${ATTACK} ${SECRET}` });
    if (turn === 2) {
      messages.push({ role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_01AbCdEf0001', name: 'Read', input: { path: 'log' } }] });
      messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_01AbCdEf0001', content: `Line of the log ${ATTACK}\n`.repeat(60) }] });
    }
    const headers = { 'x-api-key': 'sk-dummy-0000000000000000', 'anthropic-version': '2023-06-01', 'x-plimsoll-session': 'words' };
    const response = await fetch(`${stack.proxy}/v1/messages`, { method: 'POST', headers, body: JSON.stringify({ model: 'claude-sonnet-4-5', max_tokens: 64, messages }) });
    assert.equal(response.status, 200);
    messages.push({ role: 'assistant', content: (await response.json()).content });
  }
}

async function openSession(browser, stack, options) {
  const page = await openPage(browser, stack, options);
  await isLive(page);
  const [{ id }] = (await stack.getJson('/api/v1/sessions')).sessions;
  await page.evaluate((to) => { location.hash = to; }, `#/session/${encodeURIComponent(id)}`);
  await page.locator('.uplot canvas').first().waitFor({ timeout: TIMEOUT_MS });
  return page;
}

const chosenTurn = () => {
  const talk = document.querySelector('.talk').getBoundingClientRect();
  const call = document.querySelector('.call.chosen');
  const top = call?.getBoundingClientRect().top ?? 0;
  return [call?.querySelector('header button').textContent, top >= talk.top - 2 && top < talk.bottom];
};

// Content is text: nothing in it became an element, and its secrets are masked.
async function checkText(page) {
  const talk = page.locator('.talk');
  await talk.getByText(`Question ${TURNS}: ${ATTACK} [secret]`, { exact: true }).waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await talk.locator('img, script').count(), 0);
  assert.equal(await page.evaluate(() => window.attacked), undefined);
  assert(!(await talk.textContent()).includes(SECRET));
}

// A turn that is chosen in the chart is shown in the conversation, also if its page was not loaded; and the reverse.
async function checkLinks(page, what) {
  const chart = page.locator('.u-over').first();
  const { width, height } = await chart.boundingBox();
  await chart.click({ position: { x: width / TURNS * 1.5, y: height / 2 } });
  await waitForSame(page, chosenTurn, () => ['Turn 2', true], `${what}: from the chart`);
  const result = page.locator('.call.chosen details', { hasText: 'Result' });
  assert.match(await result.locator('summary').textContent(), /^Result · 60 lines cut at turn \d+: [\d,]+ → \d+ tokens$/);
  assert.equal(await result.evaluate((element) => element.open), false, 'a long result is folded');
  await result.locator('summary').click();
  await result.getByText('Line of the log <img').waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await page.locator('.talk').locator('img, script').count(), 0);
  await page.getByRole('button', { name: 'Later' }).click();
  await page.getByRole('button', { name: 'Turn 22', exact: true }).click();
  const shown = () => [document.querySelector('.readout span span').textContent, document.querySelector('tbody tr[aria-selected="true"] td')?.textContent];
  await waitForSame(page, shown, () => ['turn 22', '22'], `${what}: from the conversation`);
  await waitForSame(page, chosenTurn, () => ['Turn 22', true], `${what}: stays in sight`);
  await page.getByRole('button', { name: 'Earlier' }).click();
  await page.getByRole('button', { name: 'Turn 1', exact: true }).waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await page.locator('.call').count(), 41);
}

// `plain`: a stack that keeps no content.
export async function checkWords(browser, plain) {
  const missing = await openSession(browser, plain);
  await missing.getByText('The words of this session were not kept. With content.keep = true').waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await missing.locator('.words:visible').count(), 0);
  await closePage(missing);
  const stack = await TestStack.start({ model: false, config: CONFIG });
  try {
    await talk(stack);
    for (const colorScheme of ['light', 'dark']) {
      const page = await openSession(browser, stack, { colorScheme });
      await checkText(page);
      await checkLinks(page, colorScheme);
      await checkAxe(page, `${colorScheme}: words`);
      await closePage(page);
    }
    const phone = await openSession(browser, stack, { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
    await checkText(phone);
    await checkAxe(phone, 'phone: words');
    assert.equal(await phone.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, 'words are too wide');
    await closePage(phone);
    const token = (await readFile(path.join(stack.data, 'read.token'), 'utf8')).trim();
    const reader = await openSession(browser, stack, { url: `${stack.admin}/#token=${token}` });
    await reader.getByText('The words of this session need the admin token').waitFor({ timeout: TIMEOUT_MS });
    assert.deepEqual(reader.requests.filter((url) => url.includes('/transcript')), []);
    assert(!(await reader.locator('body').textContent()).includes('Question'));
    await closePage(reader);
  } finally {
    await stack.close();
  }
}
