// The same conversation with each official SDK: a question, a tool call, its result, the answer, and a second
// question. A driver does not know whether the base URL is a provider or Plimsoll.
//
// Each driver yields a call after every exchange. Usage has the same meaning for all: `input` is the whole prompt
// with cached tokens, `output` is everything that was generated, with reasoning.

import Anthropic from '@anthropic-ai/sdk';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { GoogleGenAI } from '@google/genai';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import OpenAI from 'openai';

const KEY = 'sk-dummy-0000000000000000';
// The user's messages, in order. `label` makes each conversation different from the others.
const questions = (label) => [`This is for ${label}. What is the weather in Bristol? Use the tool.`, 'And what should I wear there?'];
const SYSTEM = 'You are a careful assistant. You answer in one sentence.';
const SCHEMA = { type: 'object', properties: { city: { type: 'string', description: 'Name of the city' } }, required: ['city'] };
const WEATHER_TOOL = { name: 'get_weather', description: 'The weather, hour by hour' };
const MAX_CALLS = 8;

function weather({ city }) {
  const line = (_, hour) => `${String(hour).padStart(2, '0')}:00 ${city}: ${9 + (hour % 7)} °C, wind ${3 + hour} km/h, light rain`;
  return Array.from({ length: 24 }, line).join('\n');
}

export async function* anthropicMessages(base, model, stream, tools, label, { retries = 0, ...extra } = {}) {
  const client = new Anthropic({ baseURL: base, apiKey: KEY, maxRetries: retries, timeout: 60_000 });
  const request = { model, max_tokens: tools ? 2048 : 48, system: SYSTEM, ...extra };
  if (tools) request.tools = [{ ...WEATHER_TOOL, input_schema: SCHEMA }];
  const prompts = questions(label);
  const messages = [{ role: 'user', content: prompts.shift() }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    const message = stream
      ? await client.messages.stream({ ...request, messages }).finalMessage()
      : await client.messages.create({ ...request, messages });
    const { usage, content } = message;
    const toolCall = content.find((block) => block.type === 'tool_use');
    yield {
      text: content.filter((block) => block.type === 'text').map((block) => block.text).join(''),
      tool: toolCall?.name,
      input: usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0),
      output: usage.output_tokens,
    };
    messages.push({ role: 'assistant', content });
    if (toolCall) messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: toolCall.id, content: weather(toolCall.input) }] });
    else if (prompts.length) messages.push({ role: 'user', content: prompts.shift() });
    else return;
  }
}

export async function* openaiChat(base, model, stream, tools, label, { retries = 0, ...extra } = {}) {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, maxRetries: retries, timeout: 60_000 });
  const request = { model, max_completion_tokens: tools ? 2048 : 48, ...extra };
  if (tools) request.tools = [{ type: 'function', function: { ...WEATHER_TOOL, parameters: SCHEMA } }];
  const prompts = questions(label);
  const messages = [{ role: 'system', content: SYSTEM }, { role: 'user', content: prompts.shift() }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    const completion = stream
      ? await client.chat.completions.stream({ ...request, messages, stream_options: { include_usage: true } }).finalChatCompletion()
      : await client.chat.completions.create({ ...request, messages });
    const { message } = completion.choices[0];
    const toolCall = message.tool_calls?.[0];
    yield {
      text: message.content ?? '',
      tool: toolCall?.function.name,
      input: completion.usage.prompt_tokens,
      output: completion.usage.completion_tokens,
    };
    messages.push(toolCall ? { role: 'assistant', content: message.content, tool_calls: message.tool_calls } : { role: 'assistant', content: message.content });
    if (toolCall) messages.push({ role: 'tool', tool_call_id: toolCall.id, content: weather(JSON.parse(toolCall.function.arguments)) });
    else if (prompts.length) messages.push({ role: 'user', content: prompts.shift() });
    else return;
  }
}

const textOf = ({ output }) => output.flatMap((item) => item.content ?? []).map((part) => part.text ?? '').join('');

export async function* openaiResponses(base, model, stream, tools, label, { retries = 0, ...extra } = {}) {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: KEY, maxRetries: retries, timeout: 60_000 });
  const request = { model, instructions: SYSTEM, max_output_tokens: tools ? 2048 : 48, ...extra };
  if (tools) {
    request.tools = [{ type: 'function', ...WEATHER_TOOL, parameters: SCHEMA, strict: false }];
    Object.assign(request, { store: false, include: ['reasoning.encrypted_content'] });
  }
  const prompts = questions(label);
  const input = [{ role: 'user', content: prompts.shift() }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    let response;
    if (stream) {
      // Not `responses.stream`: it fails on events without `content_index`, which llama.cpp sends.
      for await (const event of await client.responses.create({ ...request, input, stream })) response = event.response ?? response;
      response.output_text = textOf(response);
    } else response = await client.responses.create({ ...request, input });
    const toolCall = response.output.find((item) => item.type === 'function_call');
    yield { text: response.output_text, tool: toolCall?.name, input: response.usage.input_tokens, output: response.usage.output_tokens };
    input.push(...response.output.map(({ parsed_arguments, status, ...item }) => item));
    if (toolCall) input.push({ type: 'function_call_output', call_id: toolCall.call_id, output: weather(JSON.parse(toolCall.arguments)) });
    else if (prompts.length) input.push({ role: 'user', content: prompts.shift() });
    else return;
  }
}

export async function* googleGenai(base, model, stream, tools, label, extra = {}) {
  const client = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: base, timeout: 60_000 } });
  const config = { systemInstruction: SYSTEM, maxOutputTokens: 2048, ...extra };
  if (tools) config.tools = [{ functionDeclarations: [{ ...WEATHER_TOOL, parametersJsonSchema: SCHEMA }] }];
  const prompts = questions(label);
  const contents = [{ role: 'user', parts: [{ text: prompts.shift() }] }];
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    const parts = [];
    let usage;
    const add = (response) => {
      parts.push(...(response.candidates[0].content.parts ?? []));
      usage = response.usageMetadata;
    };
    if (stream) for await (const chunk of await client.models.generateContentStream({ model, contents, config })) add(chunk);
    else add(await client.models.generateContent({ model, contents, config }));
    const toolCall = parts.find((part) => part.functionCall)?.functionCall;
    yield {
      text: parts.filter((part) => part.text && !part.thought).map((part) => part.text).join(''),
      tool: toolCall?.name,
      input: usage.promptTokenCount,
      output: (usage.candidatesTokenCount ?? 0) + (usage.thoughtsTokenCount ?? 0),
    };
    contents.push({ role: 'model', parts });
    if (toolCall) contents.push({ role: 'user', parts: [{ functionResponse: { name: toolCall.name, response: { output: weather(toolCall.args) } } }] });
    else if (prompts.length) contents.push({ role: 'user', parts: [{ text: prompts.shift() }] });
    else return;
  }
}

// The AI SDK runs the tool itself and sends the next request. Each of its steps is one exchange.
export async function* aiSdk(base, model, stream, tools, label, extra = {}) {
  const models = {
    anthropic: () => createAnthropic({ apiKey: KEY, baseURL: `${base}/v1` })(model),
    chat: () => createOpenAI({ apiKey: KEY, baseURL: `${base}/v1` }).chat(model),
    responses: () => createOpenAI({ apiKey: KEY, baseURL: `${base}/v1` }).responses(model),
    compatible: () => createOpenAICompatible({ apiKey: KEY, name: 'local', baseURL: `${base}/v1`, includeUsage: true }).chatModel(model),
    google: () => createGoogleGenerativeAI({ apiKey: KEY, baseURL: `${base}/v1beta` })(model),
  };
  const { provider, retries = 0, ...options } = extra;
  const request = { model: models[provider](), system: SYSTEM, maxRetries: retries, stopWhen: stepCountIs(4), maxOutputTokens: tools ? 2048 : 48, ...options };
  if (tools) request.tools = { get_weather: tool({ description: WEATHER_TOOL.description, inputSchema: jsonSchema(SCHEMA), execute: weather }) };
  let messages = [];
  for (const prompt of questions(label)) {
    messages = [...messages, { role: 'user', content: prompt }];
    const result = stream ? streamText({ ...request, messages, onError: () => {} }) : await generateText({ ...request, messages });
    for (const step of await result.steps) {
      yield { text: step.text, tool: step.toolCalls[0]?.toolName, input: step.usage.inputTokens, output: step.usage.outputTokens };
    }
    messages.push(...(await result.response).messages);
  }
}
