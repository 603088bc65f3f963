"""Sessions whose history has content that the provider refuses, sent with each official SDK. Sent directly, they are
refused. Through Plimsoll every request is answered, and only the first one is reported as healed.
"""

import base64
import os

import anthropic
import openai
from google import genai
from google.genai import errors, types

from drivers import KEY

HEALED_HEADER = "x-plimsoll-healed"
# Plimsoll heals nothing if it cannot save the change in time. With these timeouts a slow disk does not fail the test.
SLOW_DISK_ENV = {"PLIMSOLL_LIMITS_STORE_MS": "10000"}
LARGE_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + os.urandom(96 * 1024)).decode()
LARGE_PNG_URL = f"data:image/png;base64,{LARGE_PNG}"
REFUSAL_ERRORS = (anthropic.BadRequestError, openai.BadRequestError, errors.ClientError)


class Anthropic:
    model = "claude-sonnet-4-6"

    def __init__(self, base, session):
        headers = {"x-plimsoll-session": session}
        self.client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0, timeout=60, default_headers=headers)

    def send(self, messages, limit):
        raw = self.client.messages.with_raw_response.create(model=self.model, max_tokens=limit, messages=messages)
        message = raw.parse()
        reply = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}
        return raw.headers.get(HEALED_HEADER), "".join(block.text for block in message.content), [reply]


class Chat:
    model = "gpt-4.1"

    def __init__(self, base, session):
        headers = {"x-plimsoll-session": session}
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=60, default_headers=headers)

    def send(self, messages, limit):
        raw = self.client.chat.completions.with_raw_response.create(model=self.model, max_completion_tokens=limit, messages=messages)
        message = raw.parse().choices[0].message
        return raw.headers.get(HEALED_HEADER), message.content, [{"role": "assistant", "content": message.content}]


class Responses(Chat):
    model = "gpt-5.5"

    def send(self, items, limit):
        raw = self.client.responses.with_raw_response.create(model=self.model, max_output_tokens=limit, store=False, input=items)
        response = raw.parse()
        reply = [item.model_dump(mode="json", exclude_none=True, exclude={"status", "parsed_arguments"}) for item in response.output]
        return raw.headers.get(HEALED_HEADER), response.output_text, reply


class Gemini:
    model = "gemini-2.5-flash"

    def __init__(self, base, session):
        options = types.HttpOptions(base_url=base, timeout=60_000, headers={"x-plimsoll-session": session})
        self.client = genai.Client(api_key=KEY, http_options=options)

    def send(self, contents, limit):
        config = types.GenerateContentConfig(max_output_tokens=limit)
        response = self.client.models.generate_content(model=self.model, contents=contents, config=config)
        return response.sdk_http_response.headers.get(HEALED_HEADER), response.text, [response.candidates[0].content]


def user(content):
    return {"role": "user", "content": content}


def gemini_user(text):
    return {"role": "user", "parts": [{"text": text}]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": LARGE_PNG}}
TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]}
THINKING = {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "Hm.", "signature": "bm90IG91cnM="}, {"type": "text", "text": "So."}]}
TOOL_CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
FUNCTION_CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
# SDK, what is refused, the history, the output limit, the cause that Plimsoll reports, and what makes a user message.
SESSIONS = [
    (Anthropic, "a large picture", [user([IMAGE, {"type": "text", "text": "What?"}])], 1000, "media", user),
    (Anthropic, "a call without its result", [user("Look."), TOOL_USE, user("Well?")], 1000, "tool_pairs", user),
    (Anthropic, "empty text", [user([{"type": "text", "text": ""}, {"type": "text", "text": "Hi."}])], 1000, "empty", user),
    (Anthropic, "a foreign signature", [user("Look."), THINKING, user("Well?")], 1000, "reasoning", user),
    (Anthropic, "a message of the model at the end", [user("Look."), {"role": "assistant", "content": "I was"}], 1000, "prefill", user),
    (Anthropic, "too much output", [user("Look.")], 64_000, "max_tokens", user),
    (Chat, "a large picture", [user([{"type": "image_url", "image_url": {"url": LARGE_PNG_URL}}, {"type": "text", "text": "What?"}])], 1000, "media", user),
    (Chat, "a call without its result", [user("Look."), TOOL_CALL, user("Well?")], 1000, "tool_pairs", user),
    (Chat, "too much output", [user("Look.")], 64_000, "max_tokens", user),
    (Responses, "a large picture", [user([{"type": "input_image", "image_url": LARGE_PNG_URL}, {"type": "input_text", "text": "What?"}])], 1000, "media", user),
    (Responses, "a call without its output", [user("Look."), FUNCTION_CALL, user("Well?")], 1000, "tool_pairs", user),
    (Responses, "too much output", [user("Look.")], 64_000, "max_tokens", user),
    (Gemini, "a large picture", [{"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": LARGE_PNG}}, {"text": "What?"}]}], 1000, "media", gemini_user),
    (Gemini, "a call without its response", [gemini_user("Look."), {"role": "model", "parts": [{"function_call": {"name": "look", "args": {}}}]}, gemini_user("Well?")], 1000, "tool_pairs", gemini_user),
    (Gemini, "too much output", [gemini_user("Look.")], 64_000, "max_tokens", gemini_user),
]


def make_test(number, sdk, history, limit, cause, user_message):
    def test(stack):
        try:
            sdk(stack.provider, "direct").send(history, limit)
        except REFUSAL_ERRORS:
            pass
        else:
            raise AssertionError("the provider did not refuse it")
        client = sdk(stack.proxy, f"healing-{number}")
        healed, text, reply = client.send(history, limit)
        assert (healed, bool(text)) == (cause, True), (healed, text)
        for _ in range(2):
            history.extend([*reply, user_message("And now?")])
            healed, text, reply = client.send(history, limit)
            assert (healed, bool(text)) == (None, True), (healed, text)

    return test


CASES = [
    (f"{sdk.__name__} {name} (healing)", make_test(number, sdk, list(history), limit, cause, user_message))
    for number, (sdk, name, history, limit, cause, user_message) in enumerate(SESSIONS)
]
