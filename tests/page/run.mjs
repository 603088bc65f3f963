// The context page in a real browser: it shows what the API says, it updates without a reload, and it can be used by
// keyboard alone, in light and in dark mode.
//
// Chromium is controlled by `playwright-core`. Plimsoll forwards to the demo's scripted provider, on loopback only.

import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import path from 'node:path';

import { chromium } from 'playwright-core';

import { anthropicMessages } from '../sdk/node/drivers.mjs';
import { TestStack } from '../sdk/node/stack.mjs';

const BROWSER = process.env.CHROMIUM ?? '/usr/bin/chromium';
const BROWSER_FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
// How soon the page must show an exchange. Without events it would only refresh every 30 s.
const TIMEOUT_MS = 5_000;
const MODEL = 'claude-sonnet-4-6';
// The least contrast that WCAG 2 requires for text of this size (1.4.3), and for anything that is not text (1.4.11).
const MIN_TEXT_CONTRAST = 4.5;
const MIN_OTHER_CONTRAST = 3;

// Every session as the API describes it, newest first.
async function fetchSessions(stack) {
  const { sessions } = await stack.getJson('/api/v1/sessions?limit=20');
  return Promise.all(sessions.map(({ id }) => stack.getJson(`/api/v1/sessions/${id}`)));
}

// What the page must show for these sessions: every number, in the page's order.
function expectedView(sessions) {
  const sum = (key) => sessions.reduce((total, { totals }) => total + totals[key], 0);
  const inaccurate = sessions.flatMap(({ session, threads }) => threads.filter(({ measured }) => measured?.error != null)
    .filter(({ measured: { error, error_ratio } }) => Math.abs(error) > 50 && Math.abs(error_ratio) > 0.01)
    .map(({ measured }) => ({ session, ratio: measured.error_ratio })));
  return {
    worst: inaccurate.sort((a, b) => Math.abs(b.ratio) - Math.abs(a.ratio)).slice(0, 5).map(({ session }) => session),
    totals: [sum('input'), sum('output'), sum('cache_read')],
    sessions: sessions.map(({ session, title, agent, project, turns, totals, threads }) => ({
      name: title || session,
      names: [title && session, agent && [agent.name, agent.version].filter(Boolean).join(' '), project].filter(Boolean).join(' · '),
      numbers: [turns, totals.input, totals.output, ...(totals.reasoning ? [totals.reasoning] : []), totals.cache_read],
      threads: threads.map(({ model, context, measured, turns, provider_request_id }) => ({
        model,
        context: [context.total, context.window, Math.round(context.percent)],
        estimate: measured?.error == null ? [] : [measured.error, Number((measured.error_ratio * 100).toFixed(1))],
        turns,
        provider: provider_request_id ?? null,
      })),
    })),
  };
}

// What the page shows, in the same form. `numbers` parses digit groups and signs, nothing else.
function shownView() {
  const numbers = (text) => [...text.matchAll(/[−+]?\d[\d,]*(\.\d+)?/g)].map(([number]) => Number(number.replaceAll(',', '').replace('−', '-')));
  const threads = (card) => [...card.querySelectorAll('details > summary')].map((line) => {
    const [name, context, estimate, turns] = line.children;
    return { model: name.firstChild.textContent, context: numbers(context.textContent), estimate: numbers(estimate.textContent), turns: numbers(turns.textContent)[0], provider: name.textContent.match(/provider's request id: (\S+)/)?.[1] ?? null };
  });
  return {
    worst: [...document.querySelectorAll('#worst:not([hidden]) a')].map((link) => link.textContent.split(', ')[0]),
    totals: numbers(document.querySelector('#totals').textContent),
    sessions: [...document.querySelectorAll('section')].map((card) => ({
      name: card.querySelector('h2').textContent,
      names: card.querySelector('header .names')?.textContent ?? '',
      numbers: numbers(card.querySelector('header small:not(.names)').textContent),
      threads: threads(card),
    })),
  };
}

// Waits until the page shows what the API says, and returns that.
async function waitForPage(page, stack, when) {
  for (const deadline = Date.now() + TIMEOUT_MS; ; await page.waitForTimeout(30)) {
    const expected = expectedView(await fetchSessions(stack));
    const shown = await page.evaluate(shownView);
    try {
      assert.deepEqual(shown, expected, when);
      return expected;
    } catch (error) {
      if (Date.now() > deadline) throw error;
    }
  }
}

// The page links to the threads with the worst estimates. The link opens the thread's context view. Estimates of the
// scripted provider are nearly exact, so the test changes the API's response to contain an error.
async function checkWorstLink(page, session) {
  await page.route('**/api/v1/sessions/*', async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    if (json.session === session) json.threads[0].measured = { ...json.threads[0].measured, error: -900, error_ratio: -0.3 };
    await route.fulfill({ response, json });
  });
  await page.reload();
  const link = page.locator('#worst a');
  await link.first().waitFor({ timeout: TIMEOUT_MS });
  assert.equal((await link.allTextContents())[0], `${session}, ${MODEL} (−30.0%)`);
  await link.first().click();
  assert.deepEqual(await focusedThread(page), { session, open: true });
  await page.unrouteAll({ behavior: 'wait' });
}

// The contrast (WCAG 2) of each text and of the focus outline with the first opaque background behind it.
function measureContrast() {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const background = (element) => {
    for (let ancestor = element; ancestor; ancestor = ancestor.parentElement) {
      const [red, green, blue, alpha = 1] = channels(getComputedStyle(ancestor).backgroundColor);
      if (alpha === 1) return [red, green, blue];
    }
    return [255, 255, 255];
  };
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((channel) => channel / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (a, b) => (Math.max(luminance(a), luminance(b)) + 0.05) / (Math.min(luminance(a), luminance(b)) + 0.05);
  const hasText = (element) => [...element.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  const texts = [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility() && hasText(element));
  const focused = document.activeElement;
  const outline = getComputedStyle(focused);
  return {
    pageLuminance: luminance(background(document.body)),
    texts: texts.map((element) => ({ what: `${element.localName} "${element.textContent.slice(0, 30)}"`, ratio: ratio(channels(getComputedStyle(element).color), background(element)) })),
    focus: { style: outline.outlineStyle, width: parseFloat(outline.outlineWidth), ratio: ratio(channels(outline.outlineColor).slice(0, 3), background(focused)) },
  };
}

// The thread that has the focus: the name of its session, and whether it is open.
const focusedThread = (page) => page.evaluate(() => {
  const line = document.activeElement.closest('details > summary');
  return line && { session: line.closest('section').querySelector('h2').textContent, open: line.parentElement.open };
});

// Presses Tab until a session's first thread has the focus.
async function tabTo(page, session) {
  for (let presses = 0; presses < 20; presses++) {
    await page.keyboard.press('Tab');
    if ((await focusedThread(page))?.session === session) return;
  }
  throw new Error(`Tab did not reach ${session}`);
}

// Opens and closes a thread by keyboard. Meanwhile another session begins. Returns the contrasts of the open page.
async function checkKeyboard(page, stack, session, other) {
  await tabTo(page, session);
  assert.equal((await focusedThread(page)).open, false, 'only the newest is open at first');
  await page.keyboard.press('Enter');
  const card = page.locator('section').filter({ has: page.getByRole('heading', { name: session, exact: true }) });
  const { id, threads } = (await fetchSessions(stack)).find((candidate) => candidate.session === session);
  const apiTexts = () => Promise.all([`sessions/${id}/threads/${threads[0].id}/context`, `requests/${threads[0].request}/explain`]
    .map(async (path) => (await stack.fetch(`/api/v1/${path}?format=text`)).text()));
  await card.locator('pre').filter({ hasText: 'tokens' }).waitFor({ timeout: TIMEOUT_MS });
  // The text says how long ago something was, which changes while the test runs.
  const timeless = (text) => text.replace(/\d+ (s|min) ago/g, 'some time ago');
  assert.equal(timeless(await card.locator('pre').first().textContent()), timeless((await apiTexts()).join('\n')));
  // Another session begins and is shown above this one, which must keep the focus and stay open.
  const before = (await fetchSessions(stack)).length;
  await other.next();
  const { sessions } = await waitForPage(page, stack, 'after a call of another session');
  assert.equal(sessions.length, before + 1);
  assert.deepEqual(await focusedThread(page), { session, open: true });
  const contrast = await page.evaluate(measureContrast);
  await page.keyboard.press('Enter');
  assert.equal((await focusedThread(page)).open, false, 'closed again');
  return contrast;
}

function checkContrast({ pageLuminance, texts, focus }, scheme) {
  assert.equal(pageLuminance > 0.5 ? 'light' : 'dark', scheme);
  assert.deepEqual(texts.filter(({ ratio }) => ratio < MIN_TEXT_CONTRAST), [], 'texts with too little contrast');
  assert(texts.length > 15, `${texts.length} texts`);
  assert(focus.style === 'solid' && focus.width >= 2 && focus.ratio >= MIN_OTHER_CONTRAST, JSON.stringify(focus));
}

async function checkPage(browser, stack, scheme) {
  const context = await browser.newContext({ colorScheme: scheme, viewport: { width: 1200, height: 900 } });
  const page = await context.newPage();
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.stack));
  page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
  page.on('request', (request) => request.url().includes(stack.token) && !request.isNavigationRequest() && errors.push(`the token is in ${request.url()}`));
  page.on('request', (request) => new URL(request.url()).origin === stack.admin || request.url().startsWith('data:') || errors.push(`a request to ${request.url()}`));
  const isEmpty = (await fetchSessions(stack)).length === 0;
  // The first call is made after the page was drawn, but before it listens for events. The page must show it, too.
  const first = anthropicMessages(stack.proxy, MODEL, true, true, `${scheme} one`);
  let calls = 1;
  await page.route('**/api/v1/events', async (route) => {
    assert.equal(await page.locator('#empty').isVisible(), isEmpty);
    await first.next();
    await route.continue();
  }, { times: 1 });
  // Without the token the page says how to open it, and shows nothing.
  await page.goto(stack.admin);
  await page.locator('#ask').waitFor({ timeout: TIMEOUT_MS });
  assert.match(await page.locator('#ask').textContent(), /Open the link that plimsoll serve printed/);
  assert.deepEqual(errors.splice(0).filter((error) => !/401/.test(error)), []);
  // The link opens it. The token is then removed from the address bar, and no request has it in its URL.
  await page.goto(stack.pageUrl);
  await page.locator('#state.live').waitFor({ timeout: TIMEOUT_MS });
  assert.equal(page.url(), `${stack.admin}/`);
  await waitForPage(page, stack, `${scheme}: a call before the page listens`);
  // Live updates: the page shows every call before the next one is made.
  for await (const _ of first) {
    calls += 1;
    await waitForPage(page, stack, `${scheme}: call ${calls} of the first session`);
  }
  const finished = (await fetchSessions(stack))[0];
  assert.deepEqual([calls, finished.turns], [4, 4]);
  const [second, third] = ['two', 'three'].map((name) => anthropicMessages(stack.proxy, MODEL, true, true, `${scheme} ${name}`));
  await second.next();
  await waitForPage(page, stack, `${scheme}: a second session`);
  await checkWorstLink(page, finished.session);
  // After a reload only the newest thread is open.
  await page.reload();
  await page.locator('#state.live').waitFor({ timeout: TIMEOUT_MS });
  await waitForPage(page, stack, `${scheme}: after a reload`);
  checkContrast(await checkKeyboard(page, stack, finished.session, third), scheme);
  assert.deepEqual(errors, []);
  await context.close();
}

// If nothing can be stored, the page says so at the top.
async function checkStorageFailure(browser, stack) {
  const page = await browser.newPage();
  await page.goto(stack.pageUrl);
  await page.locator('#state.live').waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await page.locator('#failure').isVisible(), false);
  await rm(path.join(stack.data, 'plimsoll.db'));
  await page.reload();
  await page.locator('#failure', { hasText: 'Nothing is stored for now' }).waitFor({ timeout: TIMEOUT_MS });
  assert.match(await page.locator('#failure').textContent(), /plimsoll\.db was deleted/);
  await page.close();
}

const stack = await TestStack.start({ model: false });
const browser = await chromium.launch({ executablePath: BROWSER, args: BROWSER_FLAGS });
try {
  for (const scheme of ['light', 'dark']) {
    await checkPage(browser, stack, scheme);
    console.log(`ok page, ${scheme}`);
  }
  await checkStorageFailure(browser, stack);
  console.log('ok page, storage failure');
} finally {
  await browser.close();
  await stack.close();
}
