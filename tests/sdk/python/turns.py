"""How soon the estimate is right for a model that nobody told Plimsoll of: llama.cpp with SmolLM2, live.

Two hundred turns of ten and more conversations through Plimsoll, on three endpoints, streamed and whole, of prose,
code, JSON, log lines and other scripts. After the first twenty turns, half of the estimates of calls that
grew from another must be within 0.2 % of what the server says it read.
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
from house import House
from known import Told

TURNS = 200
# A conversation ends after so many, or past so many tokens, and another begins at the next endpoint.
OF_ONE = 20
LONGEST = 6000
LEARNING = 20
WITHIN_PCT = 0.2
PATIENCE_S = 600
WORDS = ("harbour tram market lighthouse ledger window kettle orchard signal engine valley printer compass garden river "
         "notebook bridge station pepper violin thunder basket corridor machine letter").split()
FOREIGN = ["Wie spät fährt die letzte Straßenbahn zurück über die Brücke? ", "Сколько стоит билет до гавани и обратно? ",
           "港の近くにある市場は何時に開きますか。", "¿Dónde está la estación más próxima al puerto? "]


def prose(chance):
    sentences = range(chance.randint(4, 14))
    return " ".join(" ".join(chance.choices(WORDS, k=9)).capitalize() + "." for _ in sentences)


def code(chance):
    names = chance.sample(WORDS, 6)
    lines = [f"def {a}_{b}({c}, limit={chance.randint(1, 9999)}):\n    return [{c}[i] * {d} for i in range(limit)]\n"
             for a, b, c, d in (chance.sample(names, 4) for _ in range(chance.randint(2, 7)))]
    return "Read this:\n```python\n" + "\n".join(lines) + "```"


def records(chance):
    rows = [{"id": chance.randint(1, 10**6), "name": chance.choice(WORDS), "share": round(chance.random(), 4), "open": chance.random() < 0.5}
            for _ in range(chance.randint(3, 9))]
    return json.dumps(rows, indent=chance.choice([None, 2]))


def log(chance):
    return "\n".join(f"2026-11-{chance.randint(1, 28):02}T{chance.randint(0, 23):02}:17:{chance.randint(0, 59):02}Z WARN "
                     f"{chance.choice(WORDS)}: 0x{chance.getrandbits(48):012x} took {chance.randint(1, 999)} ms"
                     for _ in range(chance.randint(3, 9)))


def foreign(chance):
    return "".join(chance.choices(FOREIGN, k=chance.randint(2, 6)))


KINDS = [prose, code, records, log, foreign]


class Messages:
    def __init__(self, base):
        self.client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0, timeout=PATIENCE_S)
        self.history = []

    def asks(self, words, stream):
        self.history.append({"role": "user", "content": words})
        request = {"model": "smollm2", "max_tokens": 8, "system": "You answer in one short sentence.", "messages": self.history}
        if stream:
            # The SDK's own collecting wants `message_start`, which this server leaves out where a reply begins within a character.
            events = self.client.messages.create(**request, stream=True)
            said = "".join(event.delta.text for event in events if event.type == "content_block_delta")
        else:
            said = "".join(block.text for block in self.client.messages.create(**request).content)
        self.history.append({"role": "assistant", "content": said or "Well."})


class Chat:
    def __init__(self, base):
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE_S)
        self.history = [{"role": "system", "content": "You answer in one short sentence."}]

    def asks(self, words, stream):
        self.history.append({"role": "user", "content": words})
        request = {"model": "smollm2", "messages": self.history, "max_tokens": 8}
        if stream:
            chunks = self.client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            said = self.client.chat.completions.create(**request).choices[0].message.content
        self.history.append({"role": "assistant", "content": said})


class Responses:
    def __init__(self, base):
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE_S)
        self.history = []

    def asks(self, words, stream):
        self.history.append({"role": "user", "content": words})
        request = {"model": "smollm2", "max_output_tokens": 8, "instructions": "You answer in one short sentence.", "input": self.history}
        if stream:
            # The SDK's own collecting wants fields that this server leaves out.
            events = list(self.client.responses.create(**request, stream=True))
            said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        else:
            said = self.client.responses.create(**request).output_text
        content = [{"type": "output_text", "text": said, "annotations": []}]
        self.history.append({"type": "message", "role": "assistant", "status": "completed", "content": content})


def lives(house):
    """Every exchange, as it was told of, with its endpoint."""
    told, chance, events = Told(house), random.Random(7), []
    clients = itertools.cycle([Messages, Chat, Responses])
    kind, turns, longest = None, 0, 0
    for turn in range(TURNS):
        if kind is None or turns == OF_ONE or longest > LONGEST:
            kind, turns = next(clients), 0
            client = kind(f"{house.proxy}/model")
        turns += 1
        words = f"{turn}. " + chance.choice(KINDS)(chance)
        client.asks(words, stream=turn % 2 == 0)
        event = told.next()
        while event["upstream"] is None:
            event = told.next()
        assert event["status"] == 200, event
        events.append((kind.__name__.lower(), event))
        # Where a reply begins within a character, this server leaves out the event that tells the input.
        longest = event["usage"].get("input", longest)
        print(f"\r{turn + 1} turns", end="", file=sys.stderr, flush=True)
    return events


def percent(event):
    return abs(event["error"]) * 100 / event["usage"]["input"]


def row(name, events):
    errors = sorted(percent(event) for event in events)
    tokens = [abs(event["error"]) for event in events]
    guesses = [event["estimate"]["guess"] for event in events]
    holds = [guess["low"] <= event["usage"]["input"] <= guess["high"] for guess, event in zip(guesses, events)]
    nine = errors[int((len(errors) - 1) * 0.9)]
    print(f"{name:<28}{len(events):>6}{statistics.median(e['usage']['input'] for e in events):>9.0f}{statistics.median(errors):>9.3f}"
          f"{nine:>8.2f}{statistics.median(tokens):>8.0f}{sum(t == 0 for t in tokens) * 100 / len(tokens):>8.0f}"
          f"{sum(holds) * 100 / len(holds):>8.0f}", flush=True)
    return statistics.median(errors)


def main():
    began = time.monotonic()
    with House() as house:
        events = lives(house)
    print(file=sys.stderr)
    grew = lambda events: [it for _, it in events if it["estimate"]["method"] == "anchored" and it["error"] is not None]
    print(f"{'':<28}{'calls':>6}{'context':>9}{'median %':>9}{'p90 %':>8}{'tokens':>8}{'exact %':>8}{'band %':>8}")
    row(f"the first {LEARNING} turns", grew(events[:LEARNING]))
    later = events[LEARNING:]
    for kind in ("messages", "chat", "responses"):
        row(f"after them, {kind}", grew([it for it in later if it[0] == kind]))
    median = row("after them, all", grew(later))
    print(f"{TURNS} turns: {time.monotonic() - began:.0f} s", flush=True)
    assert len(grew(later)) > (TURNS - LEARNING) * 0.9, "most calls grow from another"
    assert median <= WITHIN_PCT, f"median error {median:.3f} %"


if __name__ == "__main__":
    sys.exit(main())
