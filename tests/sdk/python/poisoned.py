"""Sessions that something has struck which the provider refuses, as each official SDK holds them: direct they are
dead, through Plimsoll they go on, and only the first request is changed anew.
"""

import base64
import os

import anthropic
import openai
from google import genai
from google.genai import errors, types

from drivers import KEY

HEALED = "x-plimsoll-healed"
# What cannot be kept is not changed: a slow disk is waited for here.
PATIENT = {"PLIMSOLL_LIMITS_SAVE_MS": "10000", "PLIMSOLL_LIMITS_LOAD_MS": "10000"}
LARGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + os.urandom(96 * 1024)).decode()
URL = f"data:image/png;base64,{LARGE}"
REFUSED = (anthropic.BadRequestError, openai.BadRequestError, errors.ClientError)


class Anthropic:
    model = "claude-sonnet-4-6"

    def __init__(self, base, of):
        headers = {"x-plimsoll-session": of}
        self.client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0, timeout=60, default_headers=headers)

    def asks(self, messages, limit):
        raw = self.client.messages.with_raw_response.create(model=self.model, max_tokens=limit, messages=messages)
        message = raw.parse()
        back = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}
        return raw.headers.get(HEALED), "".join(block.text for block in message.content), [back]


class Chat:
    model = "gpt-4.1"

    def __init__(self, base, of):
        headers = {"x-plimsoll-session": of}
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=60, default_headers=headers)

    def asks(self, messages, limit):
        raw = self.client.chat.completions.with_raw_response.create(model=self.model, max_completion_tokens=limit, messages=messages)
        message = raw.parse().choices[0].message
        return raw.headers.get(HEALED), message.content, [{"role": "assistant", "content": message.content}]


class Responses(Chat):
    model = "gpt-5.5"

    def asks(self, items, limit):
        raw = self.client.responses.with_raw_response.create(model=self.model, max_output_tokens=limit, store=False, input=items)
        response = raw.parse()
        back = [item.model_dump(mode="json", exclude_none=True, exclude={"status", "parsed_arguments"}) for item in response.output]
        return raw.headers.get(HEALED), response.output_text, back


class Gemini:
    model = "gemini-2.5-flash"

    def __init__(self, base, of):
        options = types.HttpOptions(base_url=base, timeout=60_000, headers={"x-plimsoll-session": of})
        self.client = genai.Client(api_key=KEY, http_options=options)

    def asks(self, contents, limit):
        config = types.GenerateContentConfig(max_output_tokens=limit)
        response = self.client.models.generate_content(model=self.model, contents=contents, config=config)
        return response.sdk_http_response.headers.get(HEALED), response.text, [response.candidates[0].content]


def user(words):
    return {"role": "user", "content": words}


def said(words):
    return {"role": "user", "parts": [{"text": words}]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": LARGE}}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]}
THOUGHT = {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "Hm.", "signature": "bm90IG91cnM="}, {"type": "text", "text": "So."}]}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
ITEM = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
# SDK, what struck, the history, the most output that is asked for, the cause that is told, how the user goes on.
SESSIONS = [
    (Anthropic, "a large picture", [user([IMAGE, {"type": "text", "text": "What?"}])], 1000, "media", user),
    (Anthropic, "a call without its result", [user("Look."), USE, user("Well?")], 1000, "tool_pairs", user),
    (Anthropic, "empty text", [user([{"type": "text", "text": ""}, {"type": "text", "text": "Hi."}])], 1000, "empty", user),
    (Anthropic, "a foreign signature", [user("Look."), THOUGHT, user("Well?")], 1000, "reasoning", user),
    (Anthropic, "the model's words at the end", [user("Look."), {"role": "assistant", "content": "I was"}], 1000, "prefill", user),
    (Anthropic, "too much output", [user("Look.")], 64_000, "max_tokens", user),
    (Chat, "a large picture", [user([{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "What?"}])], 1000, "media", user),
    (Chat, "a call without its result", [user("Look."), CALL, user("Well?")], 1000, "tool_pairs", user),
    (Chat, "too much output", [user("Look.")], 64_000, "max_tokens", user),
    (Responses, "a large picture", [user([{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "What?"}])], 1000, "media", user),
    (Responses, "a call without its output", [user("Look."), ITEM, user("Well?")], 1000, "tool_pairs", user),
    (Responses, "too much output", [user("Look.")], 64_000, "max_tokens", user),
    (Gemini, "a large picture", [{"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": LARGE}}, {"text": "What?"}]}], 1000, "media", said),
    (Gemini, "a call without its response", [said("Look."), {"role": "model", "parts": [{"function_call": {"name": "look", "args": {}}}]}, said("Well?")], 1000, "tool_pairs", said),
    (Gemini, "too much output", [said("Look.")], 64_000, "max_tokens", said),
]


def session(number, sdk, history, limit, cause, goes_on):
    def case(house):
        try:
            sdk(house.provider, "direct").asks(history, limit)
        except REFUSED:
            pass
        else:
            raise AssertionError("the provider takes it")
        client = sdk(house.proxy, f"poisoned-{number}")
        healed, text, back = client.asks(history, limit)
        assert (healed, bool(text)) == (cause, True), (healed, text)
        for _ in range(2):
            history.extend([*back, goes_on("And now?")])
            healed, text, back = client.asks(history, limit)
            assert (healed, bool(text)) == (None, True), (healed, text)

    return case


CASES = [
    (f"{sdk.__name__} {name} (poisoned)", session(number, sdk, list(history), limit, cause, goes_on))
    for number, (sdk, name, history, limit, cause, goes_on) in enumerate(SESSIONS)
]
