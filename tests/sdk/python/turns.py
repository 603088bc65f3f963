"""How soon estimates are right for a real model that Plimsoll does not know: llama.cpp with SmolLM2.

200 turns in ten or more conversations through Plimsoll, on three endpoints, streaming and not, with prose, code, JSON,
log lines and other scripts. After the first 20 turns, the median error of the estimates that are based on an earlier
call must be at most 0.2 % of the input tokens that the server reports.
"""

import itertools
import json
import random
import statistics
import sys
import time

import anthropic
import openai

from drivers import KEY
from exchange_events import ExchangeEvents
from stack import TestStack

TURNS = 200
# A conversation ends after so many turns, or past so many tokens. The next one uses the next endpoint.
MAX_TURNS = 20
MAX_TOKENS = 6000
# Plimsoll learns in the first turns: their error has no limit.
LEARNING_TURNS = 20
MAX_MEDIAN_ERROR_PCT = 0.2
TIMEOUT_S = 600
WORDS = ("harbour tram market lighthouse ledger window kettle orchard signal engine valley printer compass garden river "
         "notebook bridge station pepper violin thunder basket corridor machine letter").split()
OTHER_LANGUAGES = ["Wie spät fährt die letzte Straßenbahn zurück über die Brücke? ", "Сколько стоит билет до гавани и обратно? ",
           "港の近くにある市場は何時に開きますか。", "¿Dónde está la estación más próxima al puerto? "]


def prose(rng):
    sentences = range(rng.randint(4, 14))
    return " ".join(" ".join(rng.choices(WORDS, k=9)).capitalize() + "." for _ in sentences)


def code(rng):
    names = rng.sample(WORDS, 6)
    lines = [f"def {a}_{b}({c}, limit={rng.randint(1, 9999)}):\n    return [{c}[i] * {d} for i in range(limit)]\n"
             for a, b, c, d in (rng.sample(names, 4) for _ in range(rng.randint(2, 7)))]
    return "Read this:\n```python\n" + "\n".join(lines) + "```"


def records(rng):
    rows = [{"id": rng.randint(1, 10**6), "name": rng.choice(WORDS), "share": round(rng.random(), 4), "open": rng.random() < 0.5}
            for _ in range(rng.randint(3, 9))]
    return json.dumps(rows, indent=rng.choice([None, 2]))


def log(rng):
    return "\n".join(f"2026-11-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:17:{rng.randint(0, 59):02}Z WARN "
                     f"{rng.choice(WORDS)}: 0x{rng.getrandbits(48):012x} took {rng.randint(1, 999)} ms"
                     for _ in range(rng.randint(3, 9)))


def other_languages(rng):
    return "".join(rng.choices(OTHER_LANGUAGES, k=rng.randint(2, 6)))


TEXT_KINDS = [prose, code, records, log, other_languages]


class Messages:
    def __init__(self, base):
        self.client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
        self.history = []

    def send(self, text, stream):
        self.history.append({"role": "user", "content": text})
        request = {"model": "smollm2", "max_tokens": 8, "system": "You answer in one short sentence.", "messages": self.history}
        if stream:
            # The SDK's own stream helper needs `message_start`. This server leaves it out if a reply starts in the
            # middle of a character.
            events = self.client.messages.create(**request, stream=True)
            reply = "".join(event.delta.text for event in events if event.type == "content_block_delta")
        else:
            reply = "".join(block.text for block in self.client.messages.create(**request).content)
        self.history.append({"role": "assistant", "content": reply or "Well."})


class Chat:
    def __init__(self, base):
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
        self.history = [{"role": "system", "content": "You answer in one short sentence."}]

    def send(self, text, stream):
        self.history.append({"role": "user", "content": text})
        request = {"model": "smollm2", "messages": self.history, "max_tokens": 8}
        if stream:
            chunks = self.client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
            reply = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            reply = self.client.chat.completions.create(**request).choices[0].message.content
        self.history.append({"role": "assistant", "content": reply})


class Responses:
    def __init__(self, base):
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
        self.history = []

    def send(self, text, stream):
        self.history.append({"role": "user", "content": text})
        request = {"model": "smollm2", "max_output_tokens": 8, "instructions": "You answer in one short sentence.", "input": self.history}
        if stream:
            # The SDK's own stream helper needs members that this server leaves out.
            events = list(self.client.responses.create(**request, stream=True))
            reply = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        else:
            reply = self.client.responses.create(**request).output_text
        content = [{"type": "output_text", "text": reply, "annotations": []}]
        self.history.append({"type": "message", "role": "assistant", "status": "completed", "content": content})


def run_turns(stack):
    """Each turn's endpoint and exchange event."""
    event_stream, rng, events = ExchangeEvents(stack), random.Random(7), []
    endpoints = itertools.cycle([Messages, Chat, Responses])
    endpoint, turns, tokens = None, 0, 0
    for turn in range(TURNS):
        if endpoint is None or turns == MAX_TURNS or tokens > MAX_TOKENS:
            endpoint, turns = next(endpoints), 0
            client = endpoint(f"{stack.proxy}/model")
        turns += 1
        text = f"{turn}. " + rng.choice(TEXT_KINDS)(rng)
        client.send(text, stream=turn % 2 == 0)
        event = event_stream.next()
        while event["upstream"] is None:
            event = event_stream.next()
        assert event["status"] == 200, event
        events.append((endpoint.__name__.lower(), event))
        # If a reply starts in the middle of a character, this server does not report the input tokens.
        tokens = event["usage"].get("input", tokens)
        print(f"\r{turn + 1} turns", end="", file=sys.stderr, flush=True)
    return events


def error_percent(event):
    return abs(event["error"]) * 100 / event["usage"]["input"]


def print_row(name, events):
    """Prints the errors of these events, and returns the median in percent."""
    errors = sorted(error_percent(event) for event in events)
    tokens = [abs(event["error"]) for event in events]
    bands = [event["estimate"]["guess"] for event in events]
    in_band = [band["low"] <= event["usage"]["input"] <= band["high"] for band, event in zip(bands, events)]
    p90 = errors[int((len(errors) - 1) * 0.9)]
    print(f"{name:<28}{len(events):>6}{statistics.median(e['usage']['input'] for e in events):>9.0f}{statistics.median(errors):>9.3f}"
          f"{p90:>8.2f}{statistics.median(tokens):>8.0f}{sum(t == 0 for t in tokens) * 100 / len(tokens):>8.0f}"
          f"{sum(in_band) * 100 / len(in_band):>8.0f}", flush=True)
    return statistics.median(errors)


def anchored(events):
    """The events whose estimate is based on an earlier call."""
    return [event for _, event in events if event["estimate"]["method"] == "anchored" and event["error"] is not None]


def main():
    start = time.monotonic()
    with TestStack() as stack:
        events = run_turns(stack)
    print(file=sys.stderr)
    print(f"{'':<28}{'calls':>6}{'context':>9}{'median %':>9}{'p90 %':>8}{'tokens':>8}{'exact %':>8}{'band %':>8}")
    print_row(f"the first {LEARNING_TURNS} turns", anchored(events[:LEARNING_TURNS]))
    later = events[LEARNING_TURNS:]
    for endpoint in ("messages", "chat", "responses"):
        print_row(f"after them, {endpoint}", anchored([turn for turn in later if turn[0] == endpoint]))
    median = print_row("after them, all", anchored(later))
    print(f"{TURNS} turns: {time.monotonic() - start:.0f} s", flush=True)
    assert len(anchored(later)) > (TURNS - LEARNING_TURNS) * 0.9, "too few estimates are based on an earlier call"
    assert median <= MAX_MEDIAN_ERROR_PCT, f"median error {median:.3f} %"


if __name__ == "__main__":
    sys.exit(main())
