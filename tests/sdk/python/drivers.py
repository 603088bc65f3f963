"""The same conversation with each official SDK: a question, a tool call, its result, the answer, and a second
question. A driver does not know whether the base URL is a provider or Plimsoll.

Each driver yields a `Call` after every exchange. Usage has the same meaning for all: `input` is the whole prompt with
cached tokens, `output` is everything that was generated, with reasoning.
"""

import dataclasses
import json

import anthropic
import openai
from google import genai
from google.genai import types

KEY = "sk-dummy-0000000000000000"
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
    response: dict


def questions(label):
    """The user's messages, in order. `label` makes each conversation different from the others."""
    return [f"This is for {label}. What is the weather in Bristol? Use the tool.", "And what should I wear there?"]


def weather(city: str) -> str:
    hours = (f"{hour:02d}:00 {city}: {9 + hour % 7} °C, wind {3 + hour} km/h, light rain" for hour in range(24))
    return "\n".join(hours)


def anthropic_messages(base, model, stream, tools, label, retries=0, **extra):
    client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=retries, timeout=60)
    weather_tools = [{"name": "get_weather", "description": "The weather, hour by hour", "input_schema": SCHEMA}]
    request = {"model": model, "max_tokens": 2048 if tools else 48, "system": SYSTEM, **extra}
    if tools:
        request["tools"] = weather_tools
    prompts = questions(label)
    messages = [{"role": "user", "content": prompts.pop(0)}]
    for _ in range(MAX_CALLS):
        if stream:
            with client.messages.stream(messages=messages, **request) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, **request)
        usage = message.usage
        tool_call = next((block for block in message.content if block.type == "tool_use"), None)
        yield Call(
            text="".join(block.text for block in message.content if block.type == "text"),
            tool=tool_call and tool_call.name,
            input=usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0),
            output=usage.output_tokens,
            response=message.model_dump(mode="json"),
        )
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]})
        if tool_call:
            result = {"type": "tool_result", "tool_use_id": tool_call.id, "content": weather(**tool_call.input)}
            messages.append({"role": "user", "content": [result]})
        elif prompts:
            messages.append({"role": "user", "content": prompts.pop(0)})
        else:
            return


def openai_chat(base, model, stream, tools, label, retries=0, **extra):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=retries, timeout=60)
    function = {"name": "get_weather", "description": "The weather, hour by hour", "parameters": SCHEMA}
    request = {"model": model, "max_completion_tokens": 2048 if tools else 48, **extra}
    if tools:
        request["tools"] = [{"type": "function", "function": function}]
    prompts = questions(label)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompts.pop(0)}]
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
        tool_call = message.tool_calls[0] if message.tool_calls else None
        yield Call(
            text=message.content or "",
            tool=tool_call and tool_call.function.name,
            input=completion.usage.prompt_tokens,
            output=completion.usage.completion_tokens,
            response=completion.model_dump(mode="json"),
        )
        reply = message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        for call in reply.get("tool_calls", []):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        messages.append(reply)
        if tool_call:
            result = weather(**json.loads(tool_call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": result})
        elif prompts:
            messages.append({"role": "user", "content": prompts.pop(0)})
        else:
            return


def openai_responses(base, model, stream, tools, label, retries=0, **extra):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=retries, timeout=60)
    function = {"type": "function", "name": "get_weather", "description": "The weather, hour by hour", "parameters": SCHEMA}
    request = {"model": model, "instructions": SYSTEM, "max_output_tokens": 2048 if tools else 48, **extra}
    if tools:
        request |= {"tools": [function], "store": False, "include": ["reasoning.encrypted_content"]}
    prompts = questions(label)
    items = [{"role": "user", "content": prompts.pop(0)}]
    for _ in range(MAX_CALLS):
        if stream:
            # Not `responses.stream`: it fails on events without `content_index`, which llama.cpp sends.
            with client.responses.create(input=items, stream=True, **request) as events:
                response = [event.response for event in events if event.type in TERMINAL][-1]
        else:
            response = client.responses.create(input=items, **request)
        tool_call = next((item for item in response.output if item.type == "function_call"), None)
        yield Call(
            text=response.output_text,
            tool=tool_call and tool_call.name,
            input=response.usage.input_tokens,
            output=response.usage.output_tokens,
            response=response.model_dump(mode="json"),
        )
        for item in response.output:
            reply = item.model_dump(mode="json", exclude_none=True, exclude={"status", "parsed_arguments"})
            for part in reply.get("content", []):
                part.pop("parsed", None)
            items.append(reply)
        if tool_call:
            result = weather(**json.loads(tool_call.arguments))
            items.append({"type": "function_call_output", "call_id": tool_call.call_id, "output": result})
        elif prompts:
            items.append({"role": "user", "content": prompts.pop(0)})
        else:
            return


def google_genai(base, model, stream, tools, label, **extra):
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=base, timeout=60_000))
    config = types.GenerateContentConfig(system_instruction=SYSTEM, max_output_tokens=2048, **extra)
    if tools:
        declaration = types.FunctionDeclaration(
            name="get_weather", description="The weather, hour by hour", parameters_json_schema=SCHEMA
        )
        config.tools = [types.Tool(function_declarations=[declaration])]
        config.automatic_function_calling = types.AutomaticFunctionCallingConfig(disable=True)
    prompts = questions(label)
    contents = [types.Content(role="user", parts=[types.Part(text=prompts.pop(0))])]
    for _ in range(MAX_CALLS):
        parts, usage, chunks = [], None, []
        if stream:
            for chunk in client.models.generate_content_stream(model=model, contents=contents, config=config):
                parts += chunk.candidates[0].content.parts or []
                usage = chunk.usage_metadata
                chunks.append(chunk.model_dump(mode="json", exclude={"sdk_http_response"}))
        else:
            response = client.models.generate_content(model=model, contents=contents, config=config)
            parts, usage = response.candidates[0].content.parts, response.usage_metadata
            chunks.append(response.model_dump(mode="json", exclude={"sdk_http_response"}))
        tool_call = next((part.function_call for part in parts if part.function_call), None)
        yield Call(
            text="".join(part.text for part in parts if part.text and not part.thought),
            tool=tool_call and tool_call.name,
            input=usage.prompt_token_count,
            output=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
            response={"chunks": chunks},
        )
        contents.append(types.Content(role="model", parts=parts))
        if tool_call:
            response = {"output": weather(**tool_call.args)}
            contents.append(
                types.Content(role="user", parts=[types.Part.from_function_response(name=tool_call.name, response=response)])
            )
        elif prompts:
            contents.append(types.Content(role="user", parts=[types.Part(text=prompts.pop(0))]))
        else:
            return
