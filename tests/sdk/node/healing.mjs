// Sessions whose history has content that the provider refuses, sent with each official SDK. Sent directly, they are
// refused. Through Plimsoll every request is answered, and only the first one is reported as healed.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';

import Anthropic from '@anthropic-ai/sdk';
import { GoogleGenAI } from '@google/genai';
import OpenAI from 'openai';

const KEY = 'sk-dummy-0000000000000000';
const HEALED_HEADER = 'x-plimsoll-healed';
// Plimsoll heals nothing if it cannot save the change in time. With these timeouts a slow disk does not fail the test.
export const SLOW_DISK_ENV = { PLIMSOLL_LIMITS_STORE_MS: '10000' };
const LARGE_PNG = Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), randomBytes(96 * 1024)]).toString('base64');
const LARGE_PNG_URL = `data:image/png;base64,${LARGE_PNG}`;

const anthropic = (base, session) => {
  const client = new Anthropic({ baseURL: base, apiKey: KEY, maxRetries: 0, timeout: 60_000, defaultHeaders: { 'x-plimsoll-session': session } });
  return async (messages, max_tokens) => {
    const { data, response } = await client.messages.create({ model: 'claude-sonnet-4-6', max_tokens, messages }).withResponse();
    const text = data.content.map((block) => block.text ?? '').join('');
    return { healed: response.headers.get(HEALED_HEADER), text, reply: [{ role: 'assistant', content: data.content }] };
  };
};

const openai = (base, session) => new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, maxRetries: 0, timeout: 60_000, defaultHeaders: { 'x-plimsoll-session': session } });

const chat = (base, session) => async (messages, max_completion_tokens) => {
  const { data, response } = await openai(base, session).chat.completions.create({ model: 'gpt-4.1', max_completion_tokens, messages }).withResponse();
  const { content } = data.choices[0].message;
  return { healed: response.headers.get(HEALED_HEADER), text: content, reply: [{ role: 'assistant', content }] };
};

const responses = (base, session) => async (input, max_output_tokens) => {
  const { data, response } = await openai(base, session).responses.create({ model: 'gpt-5.5', max_output_tokens, store: false, input }).withResponse();
  return { healed: response.headers.get(HEALED_HEADER), text: data.output_text, reply: data.output };
};

const gemini = (base, session) => {
  const ai = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: base, headers: { 'x-plimsoll-session': session } } });
  return async (contents, maxOutputTokens) => {
    const response = await ai.models.generateContent({ model: 'gemini-2.5-flash', contents, config: { maxOutputTokens } });
    const healed = response.sdkHttpResponse?.headers?.[HEALED_HEADER] ?? null;
    return { healed, text: response.text, reply: [response.candidates[0].content] };
  };
};

const user = (content) => ({ role: 'user', content });
const geminiUser = (text) => ({ role: 'user', parts: [{ text }] });
const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: LARGE_PNG } };
const toolUse = { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'look', input: {} }] };
const thinking = { role: 'assistant', content: [{ type: 'thinking', thinking: 'Hm.', signature: 'bm90IG91cnM=' }, { type: 'text', text: 'So.' }] };
const toolCall = { role: 'assistant', content: null, tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'look', arguments: '{}' } }] };
const functionCall = { type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{}' };
// SDK, what is refused, the history, the output limit, the cause that Plimsoll reports, and what makes a user message.
const SESSIONS = [
  [anthropic, 'a large picture', [user([image, { type: 'text', text: 'What?' }])], 1000, 'media', user],
  [anthropic, 'a call without its result', [user('Look.'), toolUse, user('Well?')], 1000, 'tool_pairs', user],
  [anthropic, 'empty text', [user([{ type: 'text', text: '' }, { type: 'text', text: 'Hi.' }])], 1000, 'empty', user],
  [anthropic, 'a foreign signature', [user('Look.'), thinking, user('Well?')], 1000, 'reasoning', user],
  [anthropic, 'half a character', [user('x \ud83d y')], 1000, 'unicode', user],
  [anthropic, 'too much output', [user('Look.')], 64_000, 'max_tokens', user],
  [chat, 'a large picture', [user([{ type: 'image_url', image_url: { url: LARGE_PNG_URL } }, { type: 'text', text: 'What?' }])], 1000, 'media', user],
  [chat, 'a call without its result', [user('Look.'), toolCall, user('Well?')], 1000, 'tool_pairs', user],
  [chat, 'too much output', [user('Look.')], 64_000, 'max_tokens', user],
  [responses, 'a large picture', [user([{ type: 'input_image', image_url: LARGE_PNG_URL, detail: 'auto' }, { type: 'input_text', text: 'What?' }])], 1000, 'media', user],
  [responses, 'a call without its output', [user('Look.'), functionCall, user('Well?')], 1000, 'tool_pairs', user],
  [responses, 'too much output', [user('Look.')], 64_000, 'max_tokens', user],
  [gemini, 'a large picture', [{ role: 'user', parts: [{ inlineData: { mimeType: 'image/png', data: LARGE_PNG } }, { text: 'What?' }] }], 1000, 'media', geminiUser],
  [gemini, 'a call without its response', [geminiUser('Look.'), { role: 'model', parts: [{ functionCall: { name: 'look', args: {} } }] }, geminiUser('Well?')], 1000, 'tool_pairs', geminiUser],
  [gemini, 'too much output', [geminiUser('Look.')], 64_000, 'max_tokens', geminiUser],
];

export const cases = SESSIONS.map(([sdk, name, history, limit, cause, userMessage], number) => [
  `${sdk.name} ${name} (healing)`,
  async (stack) => {
    await assert.rejects(sdk(stack.provider, 'direct')(history, limit), (error) => error.status >= 400 && error.status < 500);
    const send = sdk(stack.proxy, `healing-${number}`);
    let { healed, text, reply } = await send(history, limit);
    assert.deepEqual([healed, Boolean(text)], [cause, true]);
    for (let turn = 0; turn < 2; turn++) {
      history.push(...reply, userMessage('And now?'));
      ({ healed, text, reply } = await send(history, limit));
      assert.deepEqual([healed, Boolean(text)], [null, true]);
    }
  },
]);
