// A spent cap with each official SDK, which repeats what it thinks is worth repeating: the refusal is sent once, and the
// error that the caller gets says why.

import assert from 'node:assert/strict';

import Anthropic from '@anthropic-ai/sdk';
import { GoogleGenAI } from '@google/genai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { generateText } from 'ai';
import OpenAI from 'openai';

const KEY = 'sk-dummy-0000000000000000';
// Every reply of the scripted provider has more tokens.
export const CONFIG = '[cap.tiny]\nof = "session"\nper = "session"\ntokens = 1\n';
const QUESTION = [{ role: 'user', content: 'Ahoy?' }];
const REFUSED = /^plimsoll_requests_total\{.*outcome="turned".*status="4xx".*\} (\d+)$/gm;

const SDKS = {
  anthropicMessages: (base, headers) => {
    const client = new Anthropic({ baseURL: base, apiKey: KEY, defaultHeaders: headers });
    return () => client.messages.create({ model: 'claude-sonnet-4-6', max_tokens: 100, messages: QUESTION });
  },
  openaiChat: (base, headers) => {
    const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, defaultHeaders: headers });
    return () => client.chat.completions.create({ model: 'gpt-4.1', messages: QUESTION });
  },
  openaiResponses: (base, headers) => {
    const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, defaultHeaders: headers });
    return () => client.responses.create({ model: 'gpt-5.5', input: 'Ahoy?' });
  },
  googleGenai: (base, headers) => {
    // It repeats nothing unless it is told to.
    const ai = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: base, headers, retryOptions: { attempts: 3 } } });
    return () => ai.models.generateContent({ model: 'gemini-2.5-flash', contents: 'Ahoy?' });
  },
  aiSdk: (base, headers) => {
    const model = createAnthropic({ baseURL: `${base}/v1`, apiKey: KEY, headers })('claude-sonnet-4-6');
    return () => generateText({ model, prompt: 'Ahoy?', maxOutputTokens: 100 });
  },
};

async function refusals(stack) {
  const metrics = await (await stack.fetch('/metrics')).text();
  return [...metrics.matchAll(REFUSED)].reduce((sum, [, count]) => sum + Number(count), 0);
}

export const cases = Object.entries(SDKS).map(([name, sdk]) => [
  `${name} (spent cap)`,
  async (stack) => {
    const send = sdk(stack.proxy, { 'x-plimsoll-session': `capped-${name}` });
    await send();
    const before = await refusals(stack);
    await assert.rejects(send(), (error) => {
      assert.match(error.message, /spending cap/);
      return (error.status ?? error.statusCode) === 402;
    });
    assert.equal(await refusals(stack), before + 1);
  },
]);
