// Sessions that something has struck which the provider refuses, as each official SDK holds them: direct they are
// dead, through Plimsoll they go on, and only the first request is changed anew.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';

import Anthropic from '@anthropic-ai/sdk';
import { GoogleGenAI } from '@google/genai';
import OpenAI from 'openai';

const KEY = 'sk-dummy-0000000000000000';
const HEALED = 'x-plimsoll-healed';
// What cannot be kept is not changed: a slow disk is waited for here.
export const PATIENT = { PLIMSOLL_LIMITS_SAVE_MS: '10000', PLIMSOLL_LIMITS_LOAD_MS: '10000' };
const LARGE = Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), randomBytes(96 * 1024)]).toString('base64');
const URL = `data:image/png;base64,${LARGE}`;

const anthropic = (base, of) => {
  const client = new Anthropic({ baseURL: base, apiKey: KEY, maxRetries: 0, timeout: 60_000, defaultHeaders: { 'x-plimsoll-session': of } });
  return async (messages, max_tokens) => {
    const { data, response } = await client.messages.create({ model: 'claude-sonnet-4-6', max_tokens, messages }).withResponse();
    const text = data.content.map((block) => block.text ?? '').join('');
    return { healed: response.headers.get(HEALED), text, back: [{ role: 'assistant', content: data.content }] };
  };
};

const openai = (base, of) => new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, maxRetries: 0, timeout: 60_000, defaultHeaders: { 'x-plimsoll-session': of } });

const chat = (base, of) => async (messages, max_completion_tokens) => {
  const { data, response } = await openai(base, of).chat.completions.create({ model: 'gpt-4.1', max_completion_tokens, messages }).withResponse();
  const { content } = data.choices[0].message;
  return { healed: response.headers.get(HEALED), text: content, back: [{ role: 'assistant', content }] };
};

const responses = (base, of) => async (input, max_output_tokens) => {
  const { data, response } = await openai(base, of).responses.create({ model: 'gpt-5.5', max_output_tokens, store: false, input }).withResponse();
  return { healed: response.headers.get(HEALED), text: data.output_text, back: data.output };
};

const gemini = (base, of) => {
  const ai = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: base, headers: { 'x-plimsoll-session': of } } });
  return async (contents, maxOutputTokens) => {
    const response = await ai.models.generateContent({ model: 'gemini-2.5-flash', contents, config: { maxOutputTokens } });
    const healed = response.sdkHttpResponse?.headers?.[HEALED] ?? null;
    return { healed, text: response.text, back: [response.candidates[0].content] };
  };
};

const user = (content) => ({ role: 'user', content });
const said = (text) => ({ role: 'user', parts: [{ text }] });
const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: LARGE } };
const use = { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'look', input: {} }] };
const thought = { role: 'assistant', content: [{ type: 'thinking', thinking: 'Hm.', signature: 'bm90IG91cnM=' }, { type: 'text', text: 'So.' }] };
const call = { role: 'assistant', content: null, tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'look', arguments: '{}' } }] };
const item = { type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{}' };
// SDK, what struck, the history, the most output that is asked for, the cause that is told, how the user goes on.
const SESSIONS = [
  [anthropic, 'a large picture', [user([image, { type: 'text', text: 'What?' }])], 1000, 'media', user],
  [anthropic, 'a call without its result', [user('Look.'), use, user('Well?')], 1000, 'tool_pairs', user],
  [anthropic, 'empty text', [user([{ type: 'text', text: '' }, { type: 'text', text: 'Hi.' }])], 1000, 'empty', user],
  [anthropic, 'a foreign signature', [user('Look.'), thought, user('Well?')], 1000, 'reasoning', user],
  [anthropic, 'half a character', [user('x \ud83d y')], 1000, 'unicode', user],
  [anthropic, 'too much output', [user('Look.')], 64_000, 'max_tokens', user],
  [chat, 'a large picture', [user([{ type: 'image_url', image_url: { url: URL } }, { type: 'text', text: 'What?' }])], 1000, 'media', user],
  [chat, 'a call without its result', [user('Look.'), call, user('Well?')], 1000, 'tool_pairs', user],
  [chat, 'too much output', [user('Look.')], 64_000, 'max_tokens', user],
  [responses, 'a large picture', [user([{ type: 'input_image', image_url: URL, detail: 'auto' }, { type: 'input_text', text: 'What?' }])], 1000, 'media', user],
  [responses, 'a call without its output', [user('Look.'), item, user('Well?')], 1000, 'tool_pairs', user],
  [responses, 'too much output', [user('Look.')], 64_000, 'max_tokens', user],
  [gemini, 'a large picture', [{ role: 'user', parts: [{ inlineData: { mimeType: 'image/png', data: LARGE } }, { text: 'What?' }] }], 1000, 'media', said],
  [gemini, 'a call without its response', [said('Look.'), { role: 'model', parts: [{ functionCall: { name: 'look', args: {} } }] }, said('Well?')], 1000, 'tool_pairs', said],
  [gemini, 'too much output', [said('Look.')], 64_000, 'max_tokens', said],
];

export const cases = SESSIONS.map(([sdk, name, history, limit, cause, goesOn], number) => [
  `${sdk.name} ${name} (poisoned)`,
  async (house) => {
    await assert.rejects(sdk(house.provider, 'direct')(history, limit), (error) => error.status >= 400 && error.status < 500);
    const asks = sdk(house.proxy, `poisoned-${number}`);
    let { healed, text, back } = await asks(history, limit);
    assert.deepEqual([healed, Boolean(text)], [cause, true]);
    for (let turn = 0; turn < 2; turn++) {
      history.push(...back, goesOn('And now?'));
      ({ healed, text, back } = await asks(history, limit));
      assert.deepEqual([healed, Boolean(text)], [null, true]);
    }
  },
]);
