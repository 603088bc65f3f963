// One conversation, as each official SDK holds it: ask, call a tool, give its result, hear the
// answer, ask again. Nothing here knows what stands behind the base URL.
//
// Each driver yields a call after every exchange, with usage in one convention: `input` is the
// whole prompt, cached tokens included; `output` is everything generated, reasoning included.

import Anthropic from '@anthropic-ai/sdk';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { GoogleGenAI } from '@google/genai';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import OpenAI from 'openai';

const KEY = 'sk-dummy-0000000000000000';
// What is asked, one after the other; `of` makes each conversation one of its own.
const questions = (of) => [`This is for ${of}. What is the weather in Bristol? Use the tool.`, 'And what should I wear there?'];
const SYSTEM = 'You are a careful assistant. You answer in one sentence.';
const SCHEMA = { type: 'object', properties: { city: { type: 'string', description: 'Name of the city' } }, required: ['city'] };
const ABOUT = { name: 'get_weather', description: 'The weather, hour by hour' };
const MAX_CALLS = 8;

function weather({ city }) {
  const hour = (_, at) => `${String(at).padStart(2, '0')}:00 ${city}: ${9 + (at % 7)} °C, wind ${3 + at} km/h, light rain`;
  return Array.from({ length: 24 }, hour).join('\n');
}

export async function* anthropicMessages(base, model, stream, tools, of, { retries = 0, ...extra } = {}) {
  const client = new Anthropic({ baseURL: base, apiKey: KEY, maxRetries: retries, timeout: 60_000 });
  const request = { model, max_tokens: tools ? 2048 : 48, system: SYSTEM, ...extra };
  if (tools) request.tools = [{ ...ABOUT, input_schema: SCHEMA }];
  const asks = questions(of);
  const messages = [{ role: 'user', content: asks.shift() }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    const message = stream
      ? await client.messages.stream({ ...request, messages }).finalMessage()
      : await client.messages.create({ ...request, messages });
    const { usage, content } = message;
    const called = content.find((block) => block.type === 'tool_use');
    yield {
      text: content.filter((block) => block.type === 'text').map((block) => block.text).join(''),
      tool: called?.name,
      input: usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0),
      output: usage.output_tokens,
    };
    messages.push({ role: 'assistant', content });
    if (called) messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: called.id, content: weather(called.input) }] });
    else if (asks.length) messages.push({ role: 'user', content: asks.shift() });
    else return;
  }
}

export async function* openaiChat(base, model, stream, tools, of, { retries = 0, ...extra } = {}) {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, maxRetries: retries, timeout: 60_000 });
  const request = { model, max_completion_tokens: tools ? 2048 : 48, ...extra };
  if (tools) request.tools = [{ type: 'function', function: { ...ABOUT, parameters: SCHEMA } }];
  const asks = questions(of);
  const messages = [{ role: 'system', content: SYSTEM }, { role: 'user', content: asks.shift() }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    const completion = stream
      ? await client.chat.completions.stream({ ...request, messages, stream_options: { include_usage: true } }).finalChatCompletion()
      : await client.chat.completions.create({ ...request, messages });
    const { message } = completion.choices[0];
    const called = message.tool_calls?.[0];
    yield {
      text: message.content ?? '',
      tool: called?.function.name,
      input: completion.usage.prompt_tokens,
      output: completion.usage.completion_tokens,
    };
    messages.push(called ? { role: 'assistant', content: message.content, tool_calls: message.tool_calls } : { role: 'assistant', content: message.content });
    if (called) messages.push({ role: 'tool', tool_call_id: called.id, content: weather(JSON.parse(called.function.arguments)) });
    else if (asks.length) messages.push({ role: 'user', content: asks.shift() });
    else return;
  }
}

const textOf = ({ output }) => output.flatMap((item) => item.content ?? []).map((part) => part.text ?? '').join('');

export async function* openaiResponses(base, model, stream, tools, of, { retries = 0, ...extra } = {}) {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, maxRetries: retries, timeout: 60_000 });
  const request = { model, instructions: SYSTEM, max_output_tokens: tools ? 2048 : 48, ...extra };
  if (tools) {
    request.tools = [{ type: 'function', ...ABOUT, parameters: SCHEMA, strict: false }];
    Object.assign(request, { store: false, include: ['reasoning.encrypted_content'] });
  }
  const asks = questions(of);
  const input = [{ role: 'user', content: asks.shift() }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    let response;
    if (stream) {
      // Not `responses.stream`: it trips over events without `content_index`, as llama.cpp sends them.
      for await (const event of await client.responses.create({ ...request, input, stream })) response = event.response ?? response;
      response.output_text = textOf(response);
    } else response = await client.responses.create({ ...request, input });
    const called = response.output.find((item) => item.type === 'function_call');
    yield { text: response.output_text, tool: called?.name, input: response.usage.input_tokens, output: response.usage.output_tokens };
    input.push(...response.output.map(({ parsed_arguments, status, ...item }) => item));
    if (called) input.push({ type: 'function_call_output', call_id: called.call_id, output: weather(JSON.parse(called.arguments)) });
    else if (asks.length) input.push({ role: 'user', content: asks.shift() });
    else return;
  }
}

export async function* googleGenai(base, model, stream, tools, of, extra = {}) {
  const client = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: base, timeout: 60_000 } });
  const config = { systemInstruction: SYSTEM, maxOutputTokens: 2048, ...extra };
  if (tools) config.tools = [{ functionDeclarations: [{ ...ABOUT, parametersJsonSchema: SCHEMA }] }];
  const asks = questions(of);
  const contents = [{ role: 'user', parts: [{ text: asks.shift() }] }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    const parts = [];
    let usage;
    const take = (response) => {
      parts.push(...(response.candidates[0].content.parts ?? []));
      usage = response.usageMetadata;
    };
    if (stream) for await (const chunk of await client.models.generateContentStream({ model, contents, config })) take(chunk);
    else take(await client.models.generateContent({ model, contents, config }));
    const called = parts.find((part) => part.functionCall)?.functionCall;
    yield {
      text: parts.filter((part) => part.text && !part.thought).map((part) => part.text).join(''),
      tool: called?.name,
      input: usage.promptTokenCount,
      output: (usage.candidatesTokenCount ?? 0) + (usage.thoughtsTokenCount ?? 0),
    };
    contents.push({ role: 'model', parts });
    if (called) contents.push({ role: 'user', parts: [{ functionResponse: { name: called.name, response: { output: weather(called.args) } } }] });
    else if (asks.length) contents.push({ role: 'user', parts: [{ text: asks.shift() }] });
    else return;
  }
}

// The AI SDK runs the tool itself and calls again; its steps are the exchanges.
export async function* aiSdk(base, model, stream, tools, of, extra = {}) {
  const key = { apiKey: KEY };
  const makers = {
    anthropic: () => createAnthropic({ ...key, baseURL: `${base}/v1` })(model),
    chat: () => createOpenAI({ ...key, baseURL: `${base}/v1` }).chat(model),
    responses: () => createOpenAI({ ...key, baseURL: `${base}/v1` }).responses(model),
    compatible: () => createOpenAICompatible({ ...key, name: 'local', baseURL: `${base}/v1`, includeUsage: true }).chatModel(model),
    google: () => createGoogleGenerativeAI({ ...key, baseURL: `${base}/v1beta` })(model),
  };
  const { provider, retries = 0, ...options } = extra;
  const request = { model: makers[provider](), system: SYSTEM, maxRetries: retries, stopWhen: stepCountIs(4), maxOutputTokens: tools ? 2048 : 48, ...options };
  if (tools) request.tools = { get_weather: tool({ description: ABOUT.description, inputSchema: jsonSchema(SCHEMA), execute: weather }) };
  let messages = [];
  for (const ask of questions(of)) {
    messages = [...messages, { role: 'user', content: ask }];
    const result = stream ? streamText({ ...request, messages, onError: () => {} }) : await generateText({ ...request, messages });
    for (const step of await result.steps) {
      yield { text: step.text, tool: step.toolCalls[0]?.toolName, input: step.usage.inputTokens, output: step.usage.outputTokens };
    }
    messages.push(...(await result.response).messages);
  }
}
