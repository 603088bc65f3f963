"""One conversation, as each official SDK holds it: ask, call a tool, give its result, hear the
answer, ask again. Nothing here knows what stands behind the base URL.

Each driver yields a `Call` after every exchange, with usage in one convention: `input` is the whole
prompt, cached tokens included; `output` is everything generated, reasoning included.
"""

import dataclasses
import json

import anthropic
import openai
from google import genai
from google.genai import types

KEY = "sk-dummy-0000000000000000"
def questions(of):
    """What is asked, one after the other; `of` makes each conversation one of its own."""
    return [f"This is for {of}. What is the weather in Bristol? Use the tool.", "And what should I wear there?"]


SYSTEM = "You are a careful assistant. You answer in one sentence."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
MAX_CALLS = 8
TERMINAL = ("response.completed", "response.incomplete")


@dataclasses.dataclass
class Call:
    text: str
    tool: str | None
    input: int
    output: int
    whole: dict


def weather(city: str) -> str:
    hours = (f"{hour:02d}:00 {city}: {9 + hour % 7} °C, wind {3 + hour} km/h, light rain" for hour in range(24))
    return "\n".join(hours)


def anthropic_messages(base, model, stream, tools, of, retries=0, **extra):
    client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=retries, timeout=60)
    offered = [{"name": "get_weather", "description": "The weather, hour by hour", "input_schema": SCHEMA}]
    request = {"model": model, "max_tokens": 2048 if tools else 48, "system": SYSTEM, **extra}
    if tools:
        request["tools"] = offered
    asks = questions(of)
    messages = [{"role": "user", "content": asks.pop(0)}]
    for _ in range(MAX_CALLS):
        if stream:
            with client.messages.stream(messages=messages, **request) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, **request)
        usage = message.usage
        called = next((block for block in message.content if block.type == "tool_use"), None)
        yield Call(
            text="".join(block.text for block in message.content if block.type == "text"),
            tool=called and called.name,
            input=usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0),
            output=usage.output_tokens,
            whole=message.model_dump(mode="json"),
        )
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]})
        if called:
            result = {"type": "tool_result", "tool_use_id": called.id, "content": weather(**called.input)}
            messages.append({"role": "user", "content": [result]})
        elif asks:
            messages.append({"role": "user", "content": asks.pop(0)})
        else:
            return


def openai_chat(base, model, stream, tools, of, retries=0, **extra):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=retries, timeout=60)
    function = {"name": "get_weather", "description": "The weather, hour by hour", "parameters": SCHEMA}
    request = {"model": model, "max_completion_tokens": 2048 if tools else 48, **extra}
    if tools:
        request["tools"] = [{"type": "function", "function": function}]
    asks = questions(of)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asks.pop(0)}]
    for _ in range(MAX_CALLS):
        if stream:
            with client.chat.completions.stream(
                messages=messages, stream_options={"include_usage": True}, **request
            ) as events:
                for _event in events:
                    pass
                completion = events.get_final_completion()
        else:
            completion = client.chat.completions.create(messages=messages, **request)
        message = completion.choices[0].message
        called = message.tool_calls[0] if message.tool_calls else None
        yield Call(
            text=message.content or "",
            tool=called and called.function.name,
            input=completion.usage.prompt_tokens,
            output=completion.usage.completion_tokens,
            whole=completion.model_dump(mode="json"),
        )
        back = message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        for call in back.get("tool_calls", []):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        messages.append(back)
        if called:
            result = weather(**json.loads(called.function.arguments))
            messages.append({"role": "tool", "tool_call_id": called.id, "content": result})
        elif asks:
            messages.append({"role": "user", "content": asks.pop(0)})
        else:
            return


def openai_responses(base, model, stream, tools, of, retries=0, **extra):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=retries, timeout=60)
    function = {"type": "function", "name": "get_weather", "description": "The weather, hour by hour", "parameters": SCHEMA}
    request = {"model": model, "instructions": SYSTEM, "max_output_tokens": 2048 if tools else 48, **extra}
    if tools:
        request |= {"tools": [function], "store": False, "include": ["reasoning.encrypted_content"]}
    asks = questions(of)
    items = [{"role": "user", "content": asks.pop(0)}]
    for _ in range(MAX_CALLS):
        if stream:
            # Not `responses.stream`: it trips over events without `content_index`, as llama.cpp sends them.
            with client.responses.create(input=items, stream=True, **request) as events:
                response = [event.response for event in events if event.type in TERMINAL][-1]
        else:
            response = client.responses.create(input=items, **request)
        called = next((item for item in response.output if item.type == "function_call"), None)
        yield Call(
            text=response.output_text,
            tool=called and called.name,
            input=response.usage.input_tokens,
            output=response.usage.output_tokens,
            whole=response.model_dump(mode="json"),
        )
        for item in response.output:
            back = item.model_dump(mode="json", exclude_none=True, exclude={"status", "parsed_arguments"})
            for part in back.get("content", []):
                part.pop("parsed", None)
            items.append(back)
        if called:
            result = weather(**json.loads(called.arguments))
            items.append({"type": "function_call_output", "call_id": called.call_id, "output": result})
        elif asks:
            items.append({"role": "user", "content": asks.pop(0)})
        else:
            return


def google_genai(base, model, stream, tools, of, **extra):
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=base, timeout=60_000))
    config = types.GenerateContentConfig(system_instruction=SYSTEM, max_output_tokens=2048, **extra)
    if tools:
        declared = types.FunctionDeclaration(
            name="get_weather", description="The weather, hour by hour", parameters_json_schema=SCHEMA
        )
        config.tools = [types.Tool(function_declarations=[declared])]
        config.automatic_function_calling = types.AutomaticFunctionCallingConfig(disable=True)
    asks = questions(of)
    contents = [types.Content(role="user", parts=[types.Part(text=asks.pop(0))])]
    for _ in range(MAX_CALLS):
        parts, usage, whole = [], None, []
        if stream:
            for chunk in client.models.generate_content_stream(model=model, contents=contents, config=config):
                parts += chunk.candidates[0].content.parts or []
                usage = chunk.usage_metadata
                whole.append(chunk.model_dump(mode="json", exclude={"sdk_http_response"}))
        else:
            response = client.models.generate_content(model=model, contents=contents, config=config)
            parts, usage = response.candidates[0].content.parts, response.usage_metadata
            whole.append(response.model_dump(mode="json", exclude={"sdk_http_response"}))
        called = next((part.function_call for part in parts if part.function_call), None)
        yield Call(
            text="".join(part.text for part in parts if part.text and not part.thought),
            tool=called and called.name,
            input=usage.prompt_token_count,
            output=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
            whole={"chunks": whole},
        )
        contents.append(types.Content(role="model", parts=parts))
        if called:
            response = {"output": weather(**called.args)}
            contents.append(
                types.Content(role="user", parts=[types.Part.from_function_response(name=called.name, response=response)])
            )
        elif asks:
            contents.append(types.Content(role="user", parts=[types.Part(text=asks.pop(0))]))
        else:
            return
