// The context page in a real browser: what it shows is what the API says, it follows what happens
// without a reload, and it can be used by keyboard alone, in light and in dark.
//
// Chromium by `playwright-core`, Plimsoll before the demo's scripted provider; loopback only.

import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import path from 'node:path';

import { chromium } from 'playwright-core';

import { anthropicMessages } from '../sdk/node/drivers.mjs';
import { House } from '../sdk/node/house.mjs';

const BROWSER = process.env.CHROMIUM ?? '/usr/bin/chromium';
const QUIET = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
// How soon an exchange has to be on the page. Without an event it draws itself anew every 30 s only.
const SOON_MS = 5_000;
const MODEL = 'claude-sonnet-4-6';
// What WCAG 2 asks of text of this size (1.4.3), and of what is no text (1.4.11).
const TEXT_CONTRAST = 4.5;
const MARK_CONTRAST = 3;

// The API's view of every session, newest first.
async function known(house) {
  const { sessions } = await house.asked('/api/v1/sessions?limit=20');
  return Promise.all(sessions.map(({ id }) => house.asked(`/api/v1/sessions/${id}`)));
}

// What the API says, as the page has to show it: every number, in the page's order.
function expected(sessions) {
  const sum = (of) => sessions.reduce((all, { totals }) => all + totals[of], 0);
  const far = sessions.flatMap(({ session, threads }) => threads.filter(({ measured }) => measured?.error != null)
    .filter(({ measured: { error, error_ratio } }) => Math.abs(error) > 50 && Math.abs(error_ratio) > 0.01)
    .map(({ measured }) => ({ session, off: measured.error_ratio })));
  return {
    worst: far.sort((a, b) => Math.abs(b.off) - Math.abs(a.off)).slice(0, 5).map(({ session }) => session),
    totals: [sum('input'), sum('output'), sum('cache_read')],
    sessions: sessions.map(({ session, turns, totals, threads }) => ({
      name: session,
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

// The same, from what stands on the page. `numbers` knows grouping and the minus sign, nothing else.
function shown() {
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
      numbers: numbers(card.querySelector('small').textContent),
      threads: threads(card),
    })),
  };
}

// Waits until page and API agree, and answers what they agree on.
async function agree(page, house, when) {
  for (const deadline = Date.now() + SOON_MS; ; await page.waitForTimeout(30)) {
    const want = expected(await known(house));
    const got = await page.evaluate(shown);
    try {
      assert.deepEqual(got, want, when);
      return want;
    } catch (differ) {
      if (Date.now() > deadline) throw differ;
    }
  }
}

// A thread that was estimated badly is named first, and whoever follows the link is at its context view. The scripted
// provider counts nearly as Plimsoll does: the error is put into the API's answer.
async function follow(page, session) {
  await page.route('**/api/v1/sessions/*', async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    if (json.session === session) json.threads[0].measured = { ...json.threads[0].measured, error: -900, error_ratio: -0.3 };
    await route.fulfill({ response, json });
  });
  await page.reload();
  const link = page.locator('#worst a');
  await link.first().waitFor({ timeout: SOON_MS });
  assert.equal((await link.allTextContents())[0], `${session}, ${MODEL} (−30.0%)`);
  await link.first().click();
  assert.deepEqual(await focus(page), { session, open: true });
  await page.unrouteAll({ behavior: 'wait' });
}

// Contrast of two elements' colours (WCAG 2), from the opaque ground behind each.
function contrasts() {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [red, green, blue, alpha = 1] = channels(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return [red, green, blue];
    }
    return [255, 255, 255];
  };
  const light = (colour) => {
    const [red, green, blue] = colour.map((channel) => channel / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const leaf = (element) => [...element.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  const texts = [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility() && leaf(element));
  const focused = document.activeElement;
  const outline = getComputedStyle(focused);
  return {
    ground: light(ground(document.body)),
    texts: texts.map((element) => ({ what: `${element.localName} "${element.textContent.slice(0, 30)}"`, ratio: ratio(channels(getComputedStyle(element).color), ground(element)) })),
    focus: { style: outline.outlineStyle, width: parseFloat(outline.outlineWidth), ratio: ratio(channels(outline.outlineColor).slice(0, 3), ground(focused)) },
  };
}

// The summary that has the focus: which session's, and whether it is unfolded.
const focus = (page) => page.evaluate(() => {
  const line = document.activeElement.closest('details > summary');
  return line && { session: line.closest('section').querySelector('h2').textContent, open: line.parentElement.open };
});

// Walks with Tab to a session's first thread.
async function tabTo(page, session) {
  for (let presses = 0; presses < 20; presses++) {
    await page.keyboard.press('Tab');
    if ((await focus(page))?.session === session) return;
  }
  throw new Error(`Tab never came to ${session}`);
}

async function byKeyboard(page, house, session, another) {
  await tabTo(page, session);
  assert.equal((await focus(page)).open, false, 'only the newest is unfolded at first');
  await page.keyboard.press('Enter');
  const card = page.locator('section').filter({ has: page.getByRole('heading', { name: session, exact: true }) });
  const { id, threads } = (await known(house)).find((it) => it.session === session);
  const text = () => Promise.all([`sessions/${id}/threads/${threads[0].id}/context`, `requests/${threads[0].request}/explain`]
    .map(async (path) => (await house.fetch(`/api/v1/${path}?format=text`)).text()));
  // (The view says how long ago something was.)
  await card.locator('pre').filter({ hasText: 'tokens' }).waitFor({ timeout: SOON_MS });
  const timeless = (words) => words.replace(/\d+ (s|min) ago/g, 'some time ago');
  assert.equal(timeless(await card.locator('pre').first().textContent()), timeless((await text()).join('\n')));
  // Another session begins meanwhile, above: focus and fold stay with this one.
  const before = (await known(house)).length;
  await another.next();
  const { sessions } = await agree(page, house, 'after a call beside');
  assert.equal(sessions.length, before + 1);
  assert.deepEqual(await focus(page), { session, open: true });
  const looks = await page.evaluate(contrasts);
  await page.keyboard.press('Enter');
  assert.equal((await focus(page)).open, false, 'folded again');
  return looks;
}

async function looksRight({ ground, texts, focus }, scheme) {
  assert.equal(ground > 0.5 ? 'light' : 'dark', scheme);
  assert.deepEqual(texts.filter(({ ratio }) => ratio < TEXT_CONTRAST), [], 'text that is hard to read');
  assert(texts.length > 15, `${texts.length} texts`);
  assert(focus.style === 'solid' && focus.width >= 2 && focus.ratio >= MARK_CONTRAST, JSON.stringify(focus));
}

async function tried(browser, house, scheme) {
  const context = await browser.newContext({ colorScheme: scheme, viewport: { width: 1200, height: 900 } });
  const page = await context.newPage();
  const faults = [];
  page.on('pageerror', (error) => faults.push(error.stack));
  page.on('console', (message) => message.type() === 'error' && faults.push(message.text()));
  page.on('request', (request) => request.url().includes(house.token) && !request.isNavigationRequest() && faults.push(`the token stands in ${request.url()}`));
  page.on('request', (request) => new URL(request.url()).origin === house.admin || request.url().startsWith('data:') || faults.push(`asks ${request.url()}`));
  const empty = (await known(house)).length === 0;
  // The first call of all comes when the page has drawn itself, and does not listen yet: not even that one is missed.
  const first = anthropicMessages(house.proxy, MODEL, true, true, `${scheme} one`);
  let calls = 1;
  await page.route('**/api/v1/events', async (route) => {
    assert.equal(await page.locator('#empty').isVisible(), empty);
    await first.next();
    await route.continue();
  }, { times: 1 });
  // Without the token the page says how to open it, and shows nothing.
  await page.goto(house.admin);
  await page.locator('#ask').waitFor({ timeout: SOON_MS });
  assert.match(await page.locator('#ask').textContent(), /Open the link that plimsoll serve printed/);
  assert.deepEqual(faults.splice(0).filter((fault) => !/401/.test(fault)), []);
  // One click opens it: the link's token leaves the address bar, and no request carries it in its URL.
  await page.goto(house.link);
  await page.locator('#state.live').waitFor({ timeout: SOON_MS });
  assert.equal(page.url(), `${house.admin}/`);
  await agree(page, house, `${scheme}: a call before the page listens`);
  // Live: every call is on the page before the next one is made.
  for await (const _ of first) {
    calls += 1;
    await agree(page, house, `${scheme}: call ${calls} of the first session`);
  }
  const quiet = (await known(house))[0];
  assert.deepEqual([calls, quiet.turns], [4, 4]);
  const [second, third] = ['two', 'three'].map((name) => anthropicMessages(house.proxy, MODEL, true, true, `${scheme} ${name}`));
  await second.next();
  await agree(page, house, `${scheme}: a second session`);
  await follow(page, quiet.session);
  // A reload unfolds the newest thread alone.
  await page.reload();
  await page.locator('#state.live').waitFor({ timeout: SOON_MS });
  await agree(page, house, `${scheme}: after a reload`);
  await looksRight(await byKeyboard(page, house, quiet.session, third), scheme);
  assert.deepEqual(faults, []);
  await context.close();
}

// What cannot be kept is said on top of the page, by itself.
async function failed(browser, house) {
  const page = await browser.newPage();
  await page.goto(house.link);
  await page.locator('#state.live').waitFor({ timeout: SOON_MS });
  assert.equal(await page.locator('#failure').isVisible(), false);
  await rm(path.join(house.data, 'plimsoll.db'));
  await page.reload();
  await page.locator('#failure', { hasText: 'Nothing is stored for now' }).waitFor({ timeout: SOON_MS });
  assert.match(await page.locator('#failure').textContent(), /plimsoll\.db was deleted/);
  await page.close();
}

const house = await House.open({ model: false });
const browser = await chromium.launch({ executablePath: BROWSER, args: QUIET });
try {
  for (const scheme of ['light', 'dark']) {
    await tried(browser, house, scheme);
    console.log(`ok page, ${scheme}`);
  }
  await failed(browser, house);
  console.log('ok page, nothing is kept');
} finally {
  await browser.close();
  await house.close();
}
