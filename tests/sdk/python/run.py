"""Official Python SDKs through Plimsoll, each streaming and not, with tools.

A test has the same conversation directly and through the proxy, compares what the SDK received, and then compares
that with what the admin API reports.
"""

import sys
import traceback

import caps
import drivers
import healing
from exchange_events import ExchangeEvents
from stack import TestStack

# Members that differ between two responses to the same request, such as ids and times.
VOLATILE = {"id", "created", "created_at", "completed_at", "response_id", "call_id", "item_id", "signature",
            "encrypted_content", "thought_signature", "timings", "usage", "usage_metadata", "request_id"}

SCRIPTED = [
    ("anthropic_messages", "claude-sonnet-4-6", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("anthropic_messages", "claude-haiku-4-5", {}),
    ("openai_chat", "gpt-4.1", {}),
    ("openai_responses", "gpt-5.5", {"reasoning": {"effort": "low", "summary": "auto"}}),
    ("google_genai", "gemini-3-pro-preview", {"thinking_config": {"include_thoughts": True}}),
    ("google_genai", "gemini-2.5-flash", {}),
]
REAL_MODEL = [
    ("anthropic_messages", "smollm2", {}),
    ("openai_chat", "smollm2", {}),
    ("openai_responses", "smollm2", {}),
]
# llama.cpp sometimes closes the connection after a stream has ended. Plimsoll then sends the next request again on a
# new connection. A client that calls the server directly must retry itself.
DIRECT_OPTIONS = {"retries": 2}


def without_volatile(value):
    """A response without the members that differ every time."""
    if isinstance(value, dict):
        return {key: without_volatile(part) for key, part in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [without_volatile(part) for part in value]
    return value


def run_conversation(driver, base, model, stream, tools, extra):
    label = f"{driver} of {model}, {'streamed' if stream else 'whole'}"
    return list(getattr(drivers, driver)(base, model, stream, tools, label, **extra))


def scripted_provider(stack, driver, model, stream, extra):
    direct = run_conversation(driver, stack.provider, model, stream, True, extra)
    events = ExchangeEvents(stack)
    proxied = run_conversation(driver, stack.proxy, model, stream, True, extra)
    assert [call.tool for call in proxied] == ["get_weather", None, "get_weather", None], proxied
    assert [without_volatile(call.response) for call in proxied] == [without_volatile(call.response) for call in direct]
    assert [(call.input, call.output) for call in proxied] == [(call.input, call.output) for call in direct]
    events.check(proxied, model)


def real_model(stack, driver, model, stream, extra):
    events = ExchangeEvents(stack)
    proxied = run_conversation(driver, f"{stack.proxy}/model", model, stream, False, extra)
    direct = run_conversation(driver, stack.model, model, stream, False, extra | DIRECT_OPTIONS)
    assert len(proxied) == 2 and all(call.text for call in proxied), proxied
    assert [(call.text, call.input, call.output) for call in proxied] == [
        (call.text, call.input, call.output) for call in direct
    ]
    events.check(proxied, model)


def main():
    passed, failed = 0, 0

    def run(name, test, *args):
        nonlocal passed, failed
        try:
            test(*args)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        else:
            passed += 1
            print(f"ok {name}", flush=True)

    with TestStack() as stack:
        for test, cases, provider in (
            (scripted_provider, SCRIPTED, "scripted provider"),
            (real_model, REAL_MODEL, "real model"),
        ):
            for driver, model, extra in cases:
                for stream in (False, True):
                    name = f"python {driver} {model} {'streaming' if stream else 'not streaming'} ({provider})"
                    run(name, test, stack, driver, model, stream, extra)
    with TestStack(slot_tokens=None, env=healing.SLOW_DISK_ENV, strict=True) as stack:
        for name, test in healing.CASES:
            run(f"python {name}", test, stack)
    with TestStack(slot_tokens=None, config=caps.CONFIG) as stack:
        for name, test in caps.CASES:
            run(f"python {name}", test, stack)
    print(f"python SDKs: {passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


sys.exit(main())
