// Official Node SDKs through Plimsoll, each streaming and not, with tools.
//
// A test has the same conversation directly and through the proxy, compares what the SDK received, and then compares
// that with what the admin API reports.

import assert from 'node:assert/strict';

import { CONFIG as CAPS, cases as capCases } from './caps.mjs';
import * as drivers from './drivers.mjs';
import { ExchangeEvents } from './exchange_events.mjs';
import { SLOW_DISK_ENV, cases as healingCases } from './healing.mjs';
import { TestStack } from './stack.mjs';

// The AI SDK prints a warning for every unusual request. The assertions check what matters.
globalThis.AI_SDK_LOG_WARNINGS = false;

const SCRIPTED = [
  ['anthropicMessages', 'claude-sonnet-4-6', { thinking: { type: 'enabled', budget_tokens: 1024 } }],
  ['openaiChat', 'gpt-4.1', {}],
  ['openaiResponses', 'gpt-5.5', { reasoning: { effort: 'low' } }],
  ['googleGenai', 'gemini-3-pro-preview', { thinkingConfig: { includeThoughts: true } }],
  ['aiSdk', 'claude-sonnet-4-6', { provider: 'anthropic' }],
  ['aiSdk', 'gpt-4.1', { provider: 'chat' }],
  ['aiSdk', 'gpt-5.5', { provider: 'responses' }],
  ['aiSdk', 'deepseek-v4', { provider: 'compatible' }],
  ['aiSdk', 'gemini-3-pro-preview', { provider: 'google' }],
];
const REAL_MODEL = [
  ['anthropicMessages', 'smollm2', {}],
  ['openaiChat', 'smollm2', {}],
  ['openaiResponses', 'smollm2', {}],
  ['aiSdk', 'smollm2', { provider: 'compatible' }],
];
// llama.cpp sometimes closes the connection after a stream has ended. Plimsoll then sends the next request again on a
// new connection. A client that calls the server directly must retry itself.
const DIRECT_OPTIONS = { retries: 2 };

async function runConversation(driver, base, model, stream, tools, extra) {
  const calls = [];
  const label = `${driver} ${extra.provider ?? ''} of ${model}, ${stream ? 'streamed' : 'whole'}`;
  for await (const call of drivers[driver](base, model, stream, tools, label, extra)) calls.push(call);
  return calls;
}

async function scriptedProvider(stack, driver, model, stream, extra) {
  const direct = await runConversation(driver, stack.provider, model, stream, true, extra);
  const events = await ExchangeEvents.listen(stack);
  const proxied = await runConversation(driver, stack.proxy, model, stream, true, extra);
  assert.deepEqual(proxied.map((call) => call.tool), ['get_weather', undefined, 'get_weather', undefined]);
  assert.deepEqual(proxied, direct);
  await events.check(proxied, model);
}

async function realModel(stack, driver, model, stream, extra) {
  const events = await ExchangeEvents.listen(stack);
  const proxied = await runConversation(driver, `${stack.proxy}/model`, model, stream, false, extra);
  const direct = await runConversation(driver, stack.model, model, stream, false, { ...extra, ...DIRECT_OPTIONS });
  assert.equal(proxied.length, 2);
  assert(proxied.every((call) => call.text), JSON.stringify(proxied));
  assert.deepEqual(proxied, direct);
  await events.check(proxied, model);
}

let passed = 0;
let failed = 0;

async function run(name, test) {
  try {
    await test();
    passed += 1;
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack}`);
  }
}

const stack = await TestStack.start();
try {
  for (const [test, cases, provider] of [[scriptedProvider, SCRIPTED, 'scripted provider'], [realModel, REAL_MODEL, 'real model']]) {
    for (const [driver, model, extra] of cases) {
      for (const stream of [false, true]) {
        const name = `node ${driver} ${extra.provider ?? ''} ${model} ${stream ? 'streaming' : 'not streaming'} (${provider})`;
        await run(name, () => test(stack, driver, model, stream, extra));
      }
    }
  }
} finally {
  await stack.close();
}
const strictStack = await TestStack.start({ model: false, strict: true, env: SLOW_DISK_ENV });
try {
  for (const [name, test] of healingCases) await run(`node ${name}`, () => test(strictStack));
} finally {
  await strictStack.close();
}
const cappedStack = await TestStack.start({ model: false, config: CAPS });
try {
  for (const [name, test] of capCases) await run(`node ${name}`, () => test(cappedStack));
} finally {
  await cappedStack.close();
}
console.log(`node SDKs: ${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
