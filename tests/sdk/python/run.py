"""Official Python SDKs through Plimsoll, each streaming and not, with tools.

A test holds the same conversation directly and through the proxy, compares what the SDK says of
both, and then asks the admin API what it knows of the second one.
"""

import sys
import traceback

import drivers
import poisoned
from house import House
from known import Told

# What differs between two answers to the same question: names and times.
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
REAL = [
    ("anthropic_messages", "smollm2", {}),
    ("openai_chat", "smollm2", {}),
    ("openai_responses", "smollm2", {}),
]
# llama.cpp now and then closes the connection of a stream that it has just ended. Plimsoll tries the next
# request again on a new one, so its clients need not; who calls the server directly must.
SHAKY = {"retries": 2}


def steady(value):
    """An answer without what is different every time."""
    if isinstance(value, dict):
        return {key: steady(part) for key, part in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [steady(part) for part in value]
    return value


def converse(driver, base, model, stream, tools, extra):
    of = f"{driver} of {model}, {'streamed' if stream else 'whole'}"
    return list(getattr(drivers, driver)(base, model, stream, tools, of, **extra))


def scripted(house, driver, model, stream, extra):
    direct = converse(driver, house.provider, model, stream, True, extra)
    told = Told(house)
    through = converse(driver, house.proxy, model, stream, True, extra)
    assert [call.tool for call in through] == ["get_weather", None, "get_weather", None], through
    assert [steady(call.whole) for call in through] == [steady(call.whole) for call in direct]
    assert [(call.input, call.output) for call in through] == [(call.input, call.output) for call in direct]
    told.check(through, model)


def real(house, driver, model, stream, extra):
    told = Told(house)
    through = converse(driver, f"{house.proxy}/model", model, stream, False, extra)
    direct = converse(driver, house.model, model, stream, False, extra | SHAKY)
    assert len(through) == 2 and all(call.text for call in through), through
    assert [(call.text, call.input, call.output) for call in through] == [
        (call.text, call.input, call.output) for call in direct
    ]
    told.check(through, model)


def main():
    passed, failed = 0, 0
    with House() as house:
        for kind, cases in ((scripted, SCRIPTED), (real, REAL)):
            for driver, model, extra in cases:
                for stream in (False, True):
                    name = f"python {driver} {model} {'stream' if stream else 'whole'} ({kind.__name__})"
                    try:
                        kind(house, driver, model, stream, extra)
                    except Exception:
                        failed += 1
                        print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
                    else:
                        passed += 1
                        print(f"ok {name}", flush=True)
    with House(slot=None, settings=poisoned.PATIENT, strict=True) as house:
        for name, case in poisoned.CASES:
            try:
                case(house)
            except Exception:
                failed += 1
                print(f"FAILED python {name}\n{traceback.format_exc()}", flush=True)
            else:
                passed += 1
                print(f"ok python {name}", flush=True)
    print(f"python SDKs: {passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


sys.exit(main())
