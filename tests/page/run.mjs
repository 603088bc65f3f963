// The page in a real browser: it shows what the API says, follows traffic without a reload, asks little of the server, and can
// be used by keyboard, in light and in dark mode, below a path, and on a phone.
//
// Chromium is controlled by `playwright-core`. Plimsoll forwards to the demo's scripted provider, on loopback only.
// PLIMSOLL_PICTURES=1 also makes the pictures in docs/figures.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, readdir, rm } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { chromium } from 'playwright-core';

import { anthropicMessages } from '../sdk/node/drivers.mjs';
import { BINARY, TestStack } from '../sdk/node/stack.mjs';
import { TIMEOUT_MS, checkAxe, closePage, goTo, isLive, openPage, waitForSame } from './browser.mjs';
import { checkBundle, checkMarks } from './bundle.mjs';
import { checkWords } from './words.mjs';

const BROWSER = process.env.CHROMIUM ?? '/usr/bin/chromium';
const BROWSER_FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const HERE = fileURLToPath(new URL('.', import.meta.url));
const FIGURES = path.join(HERE, '../../docs/figures');
const MODEL = 'claude-sonnet-4-6';
const VIEWS = ['overview', 'sessions', 'live', 'models'];
const DAY_MS = 86_400_000;

// Without a token the page says how to open it, and shows nothing. The link opens it, and leaves the address bar.
async function checkToken(browser, stack) {
  const response = await fetch(stack.admin);
  const policy = response.headers.get('content-security-policy');
  assert.match(policy, /^default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; /);
  assert.doesNotMatch(await response.text(), /<style|<script>|style=|onclick=/);
  const page = await openPage(browser, stack, { url: stack.admin });
  await page.locator('#ask').waitFor({ timeout: TIMEOUT_MS });
  assert.match(await page.locator('#ask').textContent(), /Open the link that plimsoll serve printed/);
  await checkAxe(page, 'the form for the token');
  assert.equal(await page.locator('#failure').isVisible(), false, 'nobody gave a wrong token');
  await page.locator('#token').fill('not-the-token-of-this');
  await page.keyboard.press('Enter');
  await page.getByText('This token is wrong.').waitFor({ timeout: TIMEOUT_MS });
  await checkAxe(page, 'the form after a wrong token');
  assert.deepEqual(page.errors.splice(0).filter((error) => !/401/.test(error)), []);
  await page.locator('#token').fill(stack.token);
  await page.keyboard.press('Enter');
  await isLive(page);
  assert.equal(await page.locator('#failure').isVisible(), false);
  // Of a session that is not there the page says so, and draws nothing.
  await goTo(page, '#/session/nothing');
  await page.getByText('Nothing is known of session "nothing"').waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await page.locator('.figures').isVisible(), false);
  await goTo(page, '#/overview');
  await page.locator('.stat').first().waitFor({ timeout: TIMEOUT_MS });
  assert.deepEqual(page.errors.splice(0).filter((error) => !/40[14]/.test(error)), []);
  await page.goto(stack.pageUrl);
  await isLive(page);
  assert.equal(page.url(), `${stack.admin}/`);
  await closePage(page);
}

const shownSessions = () => [...document.querySelectorAll('tbody tr')].map((row) => row.querySelector('a.name').getAttribute('href').slice('#/session/'.length));
const listed = (stack, query = '') => async () => (await stack.getJson(`/api/v1/sessions?limit=50${query}`)).sessions.map(({ id }) => encodeURIComponent(id));

// Overview and sessions follow traffic; a selection, the place in the page and the focus stay.
async function checkTraffic(browser, stack, scheme) {
  const page = await openPage(browser, stack, { colorScheme: scheme });
  await isLive(page);
  const calls = anthropicMessages(stack.proxy, MODEL, true, true, `${scheme} one`);
  await calls.next();
  const stats = () => ['Calls', 'Sessions'].map((name) => [...document.querySelectorAll('.stat')].find((stat) => stat.querySelector('h2').textContent === name)?.querySelector('.value').textContent);
  const history = async () => { const { total } = await stack.getJson('/api/v1/history?range=24h'); return [total.calls, total.sessions].map((number) => number.toLocaleString('en-US')); };
  await waitForSame(page, stats, history, `${scheme}: the overview`);
  assert.equal(await page.locator('.uplot canvas').count(), 10, 'eight small charts and two large ones');
  for await (const _ of calls);
  await waitForSame(page, stats, history, `${scheme}: the overview after more calls`);
  await goTo(page, '#/sessions');
  await waitForSame(page, shownSessions, listed(stack), `${scheme}: sessions`);
  await page.evaluate(() => {
    const name = document.querySelector('tbody tr:last-child a.name');
    getSelection().selectAllChildren(name);
    name.focus({ preventScroll: true });
  });
  const kept = await page.evaluate(() => [getSelection().toString(), document.activeElement.getAttribute('href')]);
  for await (const _ of anthropicMessages(stack.proxy, MODEL, true, true, `${scheme} two`));
  await waitForSame(page, shownSessions, listed(stack), `${scheme}: a new session is first`);
  assert.deepEqual(await page.evaluate(() => [getSelection().toString(), document.activeElement.getAttribute('href')]), kept);
  await page.getByRole('button', { name: 'Turns' }).click();
  // The order may be the same: the head shows when the answer is there.
  await page.locator('th[aria-sort="descending"]', { hasText: 'Turns' }).waitFor({ timeout: TIMEOUT_MS });
  await waitForSame(page, shownSessions, listed(stack, '&sort=turns'), `${scheme}: by turns`);
  await page.getByRole('searchbox').fill('nothing is called this');
  await page.getByText('No session matches.').waitFor({ timeout: TIMEOUT_MS });
  await page.getByRole('searchbox').fill('');
  await waitForSame(page, shownSessions, listed(stack, '&sort=turns'), `${scheme}: all again`);
  await closePage(page);
}

// A session: its charts are drawn, its table has the API's numbers, and a turn is explained by keyboard alone.
async function checkSession(browser, stack, scheme) {
  const page = await openPage(browser, stack, { colorScheme: scheme, permissions: ['clipboard-read', 'clipboard-write'] });
  await isLive(page);
  await goTo(page, '#/sessions');
  const [session] = (await stack.getJson('/api/v1/sessions')).sessions;
  const link = page.locator(`a.name[href="#/session/${encodeURIComponent(session.id)}"]`);
  await link.waitFor({ timeout: TIMEOUT_MS });
  await link.focus();
  await page.keyboard.press('Enter');
  const { turns, main_thread: main } = await stack.getJson(`/api/v1/sessions/${session.id}/turns`);
  const own = turns.filter(({ thread }) => thread === main);
  const rows = () => [...document.querySelectorAll('tbody tr')].map((row) => [row.children[0].textContent, row.children[3].textContent]);
  await waitForSame(page, rows, () => own.map(({ usage }, at) => [String(at + 1), usage.input < 1000 ? String(usage.input) : `${(usage.input / 1000).toFixed(1).replace(/\.0$/, '')}k`]).reverse(), `${scheme}: turns`);
  const painted = () => [...document.querySelectorAll('.uplot canvas')].map((canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte !== 0));
  assert.deepEqual(await page.evaluate(painted), [true, true, true, true], `${scheme}: charts are drawn`);
  // The first press chooses the newest turn.
  for (const chosen of [own.at(-1), own.at(-2)]) {
    await page.keyboard.press('ArrowLeft');
    const why = async () => (await stack.fetch(`/api/v1/requests/${chosen.request}/explain?format=text`)).text();
    await waitForSame(page, () => document.querySelector('[aria-label="Explanation"]')?.textContent, why, `${scheme}: why`);
  }
  await page.getByRole('button', { name: 'Copy session id' }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), session.session);
  await checkAxe(page, `${scheme}: session`);
  await closePage(page);
}

// Every view is clean for screen readers, and its texts can be read; on a phone nothing is wider than the screen.
async function checkViews(browser, stack, scheme) {
  for (const phone of [false, true]) {
    const page = await openPage(browser, stack, { colorScheme: scheme, ...(phone ? { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true } : {}) });
    await isLive(page);
    const [{ id }] = (await stack.getJson('/api/v1/sessions')).sessions;
    for (const view of [...VIEWS, `session/${encodeURIComponent(id)}`]) {
      await goTo(page, `#/${view}`);
      await page.locator(view === 'live' ? '.empty' : 'tbody tr').first().waitFor({ timeout: TIMEOUT_MS });
      await checkAxe(page, `${scheme}, ${phone ? 'phone' : 'desk'}: ${view}`);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, `${view} is too wide`);
    }
    await closePage(page);
  }
}

// Models show the calibration of each model and upstream, as the API has it.
async function checkModels(browser, stack) {
  const page = await openPage(browser, stack);
  await isLive(page);
  await goTo(page, '#/models');
  const percent = (share) => (share !== 0 && share < 0.001 ? '<0.1%' : `${(share * 100).toFixed(share < 0.0995 ? 1 : 0).replace(/\.0$/, '')}%`);
  const rows = () => [...document.querySelector('tbody').rows].map(({ children }) => [0, 2, 5, 7].map((at) => (at === 0 ? [...children[0].children].map(({ textContent }) => textContent).join(' ') : children[at].textContent)));
  const calibrations = async () => (await stack.getJson('/api/v1/history?range=24h')).models.map(({ model, upstream, estimates }) => {
    const share = (count, all) => (all ? percent(count / all) : '–');
    return [`${model} ${upstream}`, estimates.median === null ? '–' : percent(estimates.median), share(estimates.in_band, estimates.banded), share(estimates.corrected, estimates.compared)];
  });
  await page.getByRole('button', { name: '24h' }).click();
  const shown = await waitForSame(page, rows, calibrations, 'calibrations');
  assert(shown.some(([name]) => name === `${MODEL} anthropic`), `${shown}`);
  await closePage(page);
}

// What is not known is not shown as something else: a price, the end of an interrupted call, calls that are still being read. A
// call of another day has its date. The API's answers are changed on their way.
async function checkUnknown(browser, stack) {
  const page = await openPage(browser, stack);
  await isLive(page);
  const change = (path, edit) => page.route(path, async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    edit(json);
    await route.fulfill({ response, json });
  });
  let asked = 0;
  await change(/api\/v1\/history\?/, (history) => {
    asked += 1;
    Object.assign(history, { reading: asked === 1, complete_since: asked === 1 ? Date.now() : 0, today: 1.25 });
    history.total.unpriced = 2;
  });
  await change(/api\/v1\/sessions\?/, ({ sessions }) => Object.assign(sessions[0], { dollars: 0.5, unpriced: 1 }));
  await change(/\/turns\?/, ({ turns }) => {
    for (const turn of turns) Object.assign(turn, { outcome: 'interrupted', dollars: null, at: turn.at - 2 * DAY_MS });
  });
  const { today } = await stack.getJson('/api/v1/history');
  assert(today > 0, `${today}`);
  await goTo(page, '#/models');
  await goTo(page, '#/overview');
  await page.getByText('$1.25 today, UTC · 2 calls without a known price').waitFor({ timeout: TIMEOUT_MS });
  // While calls are being read, the page asks again by itself.
  await page.waitForFunction(() => document.querySelector('.notice').hidden, null, { timeout: TIMEOUT_MS });
  assert(asked > 1, `${asked}`);
  await goTo(page, '#/sessions');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Sessions', 'a new view has the focus');
  assert.equal(await page.title(), 'Sessions · Plimsoll');
  await page.getByText('$0.50 + ?').click();
  const row = page.locator('tbody tr').first();
  await row.getByText('interrupted').waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await page.locator('.tag.bad, rect.failed').count(), 0, 'an interrupted call is no error');
  assert.match(await row.locator('td').nth(1).textContent(), /^[A-Z][a-z]+ \d/);
  await page.unrouteAll({ behavior: 'wait' });
  await closePage(page);
}

// Under load the page asks for no more than two answers a second, and shows the exchanges as they pass.
async function checkLoad(browser, stack) {
  for (const view of ['overview', 'sessions', 'live']) {
    const page = await openPage(browser, stack);
    await isLive(page);
    await goTo(page, `#/${view}`);
    await page.waitForTimeout(1_000);
    const before = (await stack.getJson('/api/v1/history')).total.calls;
    page.requests.length = 0;
    const began = Date.now();
    const conversations = Array.from({ length: 6 }, async (_, number) => {
      while (Date.now() < began + 8_000) for await (const _ of anthropicMessages(stack.proxy, MODEL, false, false, `load ${view} ${number} ${Date.now()}`));
    });
    await Promise.all(conversations);
    const seconds = (Date.now() - began) / 1000;
    const calls = (await stack.getJson('/api/v1/history')).total.calls - before;
    assert(page.requests.length <= 2 * seconds, `${view}: ${page.requests.length} requests in ${seconds} s`);
    assert(calls > 20, `${calls} calls`);
    console.log(`   ${view}: ${page.requests.length} requests in ${seconds.toFixed(1)} s, with ${calls} calls`);
    if (view === 'live') {
      await waitForSame(page, () => document.querySelectorAll('tbody tr').length > 20, () => true, 'live rows');
      await page.getByRole('button', { name: 'Pause' }).click();
      const first = await page.locator('tbody tr').first().textContent();
      for await (const _ of anthropicMessages(stack.proxy, MODEL, false, false, 'while paused'));
      await page.waitForTimeout(1_500);
      assert.equal(await page.locator('tbody tr').first().textContent(), first, 'a paused list stays');
    }
    await closePage(page);
  }
}

// A list of 10,000 sessions: the page has a part of them, and pages through them. The API's answers are made up here.
async function checkManySessions(browser, stack) {
  const page = await openPage(browser, stack);
  await isLive(page);
  const [line] = (await stack.getJson('/api/v1/sessions?details=true')).sessions;
  const COUNT = 10_000;
  await page.route(/api\/v1\/sessions\?/, (route) => {
    const query = new URL(route.request().url()).searchParams;
    const skip = Number(query.get('skip') ?? 0);
    const size = Math.min(Number(query.get('limit')), COUNT - skip);
    const sessions = Array.from({ length: size }, (_, at) => ({ ...line, id: `${line.tenant}.s${skip + at}`, session: `s${skip + at}`, title: `Session ${skip + at}` }));
    return route.fulfill({ json: { sessions, next: skip + size < COUNT ? skip + size : null, next_after: null, found: COUNT, indexed: 20, incomplete: true } });
  });
  await goTo(page, '#/sessions');
  await page.getByText('1–50 of 10,000').waitFor({ timeout: TIMEOUT_MS });
  await page.getByText('searched and sorted: the newest 20; older ones are left out').waitFor({ timeout: TIMEOUT_MS });
  await page.getByRole('button', { name: 'Next' }).click();
  await page.getByText('51–100 of 10,000').waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await page.locator('tbody tr').count(), 50);
  assert.equal(await page.locator('tbody a.name').first().textContent(), 'Session 50');
  await page.unrouteAll({ behavior: 'wait' });
  await closePage(page);
}

// A list keeps its order and its search over a reload, and a session opens in a new tab.
async function checkAddress(browser, stack) {
  const page = await openPage(browser, stack);
  await isLive(page);
  await goTo(page, '#/sessions');
  await page.getByRole('button', { name: 'Turns' }).click();
  await page.getByRole('searchbox').fill('claude');
  await page.waitForFunction(() => location.hash === '#/sessions?search=claude&sort=turns', null, { timeout: TIMEOUT_MS });
  await page.reload();
  await page.locator('th[aria-sort="descending"]', { hasText: 'Turns' }).waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await page.getByRole('searchbox').inputValue(), 'claude');
  await page.getByRole('searchbox').fill('');
  const [other] = await Promise.all([page.context().waitForEvent('page'), page.locator('tbody a.name').first().click({ modifiers: ['ControlOrMeta'] })]);
  await isLive(other);
  assert.match(other.url(), /#\/session\//);
  await closePage(page);
}

// A browser opens six connections to a server. Tabs that nobody sees must leave them to the one that is looked at.
async function checkTabs(browser, stack) {
  const page = await openPage(browser, stack);
  await isLive(page);
  const hide = (isHidden) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => isHidden });
    document.dispatchEvent(new Event('visibilitychange'));
  };
  const others = [];
  for (let number = 0; number < 7; number += 1) {
    const other = await page.context().newPage();
    await other.goto(stack.pageUrl);
    await isLive(other);
    await other.evaluate(hide, true);
    others.push(other);
  }
  await goTo(page, '#/sessions');
  await page.locator('tbody tr').first().waitFor({ timeout: TIMEOUT_MS });
  // Who comes back sees what happened meanwhile.
  await others[0].evaluate(hide, false);
  for await (const _ of anthropicMessages(stack.proxy, MODEL, false, false, 'after hidden'));
  await goTo(others[0], '#/sessions');
  await waitForSame(others[0], shownSessions, listed(stack), 'a tab that was hidden');
  await closePage(page);
}

// A refused call is an error in the overview; it is in no session, so Live does not lead to one.
async function checkRefused(browser, stack) {
  const page = await openPage(browser, stack);
  await isLive(page);
  await goTo(page, '#/live');
  const before = (await stack.getJson('/api/v1/history')).total.failed;
  const refused = await fetch(`${stack.proxy}/nowhere/v1/messages`, { method: 'POST', headers: { 'x-api-key': 'sk-test' }, body: JSON.stringify({ model: MODEL, max_tokens: 9, messages: [{ role: 'user', content: 'refuse' }] }) });
  assert(refused.status >= 400, `${refused.status}`);
  const row = page.locator('tbody tr').first();
  await row.waitFor({ timeout: TIMEOUT_MS });
  assert.equal(await row.locator('a').count(), 0);
  assert.equal((await stack.getJson('/api/v1/history')).total.failed, before + 1);
  await closePage(page);
}

// Below a path of a reverse proxy, which says that the request is for this machine.
async function checkPrefix(browser, stack) {
  const PREFIX = '/tools/plimsoll';
  const target = new URL(stack.admin);
  const proxy = http.createServer((request, response) => {
    if (!request.url.startsWith(`${PREFIX}/`)) return response.writeHead(404).end();
    const headers = { ...request.headers, host: target.host };
    const forwarded = http.request({ host: target.hostname, port: target.port, path: request.url.slice(PREFIX.length), method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    response.on('close', () => forwarded.destroy());
    forwarded.on('error', () => response.destroy());
    request.pipe(forwarded);
  });
  await new Promise((done) => proxy.listen(0, '127.0.0.1', done));
  const origin = `http://127.0.0.1:${proxy.address().port}`;
  const page = await openPage(browser, stack, { url: `${origin}${PREFIX}/#token=${stack.token}`, origin });
  await isLive(page);
  for (const view of VIEWS) {
    await goTo(page, `#/${view}`);
    if (view !== 'live') await page.locator('tbody tr').first().waitFor({ timeout: TIMEOUT_MS });
  }
  assert.deepEqual(page.requests.filter((url) => !url.startsWith(origin + PREFIX)), []);
  await closePage(page);
  proxy.closeAllConnections();
  await new Promise((done) => proxy.close(done));
}

// Without JavaScript the page says where the same numbers are.
async function checkText(browser, stack) {
  const page = await openPage(browser, stack, { javaScriptEnabled: false });
  await page.getByText('plimsoll context', { exact: true }).waitFor({ timeout: TIMEOUT_MS });
  await closePage(page);
}

// If nothing can be stored, the page says so at the top.
async function checkStorageFailure(browser, stack) {
  await rm(path.join(stack.data, 'plimsoll.db'));
  const page = await openPage(browser, stack);
  await page.locator('#failure', { hasText: 'Nothing is stored for now' }).waitFor({ timeout: TIMEOUT_MS });
  assert.match(await page.locator('#failure').textContent(), /plimsoll\.db was deleted/);
  await page.context().close();
}

// The pictures of README and docs, from the demo's sessions.
async function takePictures(browser) {
  const temporary = await mkdtemp(path.join(tmpdir(), 'plimsoll-pictures-'));
  const demo = spawn(BINARY, ['demo', '--full', '--keep'], { stdio: ['pipe', 'pipe', 'inherit'], env: { ...process.env, TMPDIR: temporary } });
  try {
    let admin;
    for await (const line of createInterface({ input: demo.stdout })) {
      admin = /Sessions: (http\S+)/.exec(line)?.[1] ?? admin;
      if (line.startsWith('Still serving')) break;
    }
    const [data] = await readdir(temporary);
    const token = (await readFile(path.join(temporary, data, 'admin.token'), 'utf8')).trim();
    for (const scheme of ['light', 'dark']) {
      const page = await (await browser.newContext({ colorScheme: scheme, viewport: { width: 1200, height: 860 } })).newPage();
      await page.goto(`${admin}/#token=${token}`);
      await isLive(page);
      await page.getByRole('button', { name: '15m' }).click();
      await page.locator('.uplot canvas').first().waitFor({ timeout: TIMEOUT_MS });
      await page.waitForTimeout(1_000);
      await page.screenshot({ path: path.join(FIGURES, `page-overview-${scheme}.png`) });
      await page.getByRole('link', { name: 'demo-pruned' }).click();
      await page.locator('.readout b').first().waitFor({ timeout: TIMEOUT_MS });
      await page.waitForTimeout(1_000);
      await page.screenshot({ path: path.join(FIGURES, scheme === 'light' ? 'page.png' : 'page-dark.png') });
      await page.context().close();
    }
  } finally {
    demo.kill();
    await once(demo, 'exit');
    await rm(temporary, { recursive: true });
  }
}

const bytes = await checkBundle();
await checkMarks();
console.log(`ok bundle: ${Math.ceil(bytes / 1024)} KiB compressed`);
const stack = await TestStack.start({ model: false });
const browser = await chromium.launch({ executablePath: BROWSER, args: BROWSER_FLAGS });
try {
  await checkToken(browser, stack);
  console.log('ok page, token');
  for (const scheme of ['light', 'dark']) {
    await checkTraffic(browser, stack, scheme);
    await checkSession(browser, stack, scheme);
    await checkViews(browser, stack, scheme);
    console.log(`ok page, ${scheme}`);
  }
  await checkWords(browser, stack);
  console.log('ok page, words');
  await checkModels(browser, stack);
  await checkUnknown(browser, stack);
  await checkLoad(browser, stack);
  console.log('ok page, load');
  await checkAddress(browser, stack);
  await checkTabs(browser, stack);
  await checkRefused(browser, stack);
  console.log('ok page, address, tabs, refused calls');
  await checkManySessions(browser, stack);
  await checkPrefix(browser, stack);
  await checkText(browser, stack);
  console.log('ok page, many sessions, prefix, without JavaScript');
  if (process.env.PLIMSOLL_PICTURES) await takePictures(browser);
  await checkStorageFailure(browser, stack);
  console.log('ok page, storage failure');
} finally {
  await browser.close();
  await stack.close();
}
