// Official Node SDKs through Plimsoll, each streaming and not, with tools.
//
// A test holds the same conversation directly and through the proxy, compares what the SDK says of
// both, and then asks the admin API what it knows of the second one.

import assert from 'node:assert/strict';

import * as drivers from './drivers.mjs';
import { House } from './house.mjs';
import { Told } from './known.mjs';
import { PATIENT, cases } from './poisoned.mjs';

// The AI SDK would remark on every odd request; the assertions speak here.
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
const REAL = [
  ['anthropicMessages', 'smollm2', {}],
  ['openaiChat', 'smollm2', {}],
  ['openaiResponses', 'smollm2', {}],
  ['aiSdk', 'smollm2', { provider: 'compatible' }],
];
// llama.cpp now and then closes the connection of a stream that it has just ended. Plimsoll tries the next
// request again on a new one, so its clients need not; who calls the server directly must.
const SHAKY = { retries: 2 };

async function converse(driver, base, model, stream, tools, extra) {
  const calls = [];
  const of = `${driver} ${extra.provider ?? ''} of ${model}, ${stream ? 'streamed' : 'whole'}`;
  for await (const call of drivers[driver](base, model, stream, tools, of, extra)) calls.push(call);
  return calls;
}

async function scripted(house, driver, model, stream, extra) {
  const direct = await converse(driver, house.provider, model, stream, true, extra);
  const told = await Told.from(house);
  const through = await converse(driver, house.proxy, model, stream, true, extra);
  assert.deepEqual(through.map((call) => call.tool), ['get_weather', undefined, 'get_weather', undefined]);
  assert.deepEqual(through, direct);
  await told.check(through, model);
}

async function real(house, driver, model, stream, extra) {
  const told = await Told.from(house);
  const through = await converse(driver, `${house.proxy}/model`, model, stream, false, extra);
  const direct = await converse(driver, house.model, model, stream, false, { ...extra, ...SHAKY });
  assert.equal(through.length, 2);
  assert(through.every((call) => call.text), JSON.stringify(through));
  assert.deepEqual(through, direct);
  await told.check(through, model);
}

let passed = 0;
let failed = 0;
const house = await House.open();
try {
  for (const [kind, cases] of [[scripted, SCRIPTED], [real, REAL]]) {
    for (const [driver, model, extra] of cases) {
      for (const stream of [false, true]) {
        const name = `node ${driver} ${extra.provider ?? ''} ${model} ${stream ? 'stream' : 'whole'} (${kind.name})`;
        try {
          await kind(house, driver, model, stream, extra);
          passed += 1;
          console.log(`ok ${name}`);
        } catch (error) {
          failed += 1;
          console.log(`FAILED ${name}\n${error.stack}`);
        }
      }
    }
  }
} finally {
  await house.close();
}
const strict = await House.open({ model: false, strict: true, settings: PATIENT });
try {
  for (const [name, plays] of cases) {
    try {
      await plays(strict);
      passed += 1;
      console.log(`ok node ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED node ${name}\n${error.stack}`);
    }
  }
} finally {
  await strict.close();
}
console.log(`node SDKs: ${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
