"""A real window, and it is small: llama.cpp with slots of 2,048 tokens, whose size nobody tells Plimsoll.

A chat of 60 turns lives through Plimsoll on the official SDK; the same chat, sent directly, dies of the
server's overflow error. That error is recognised at every endpoint, and reaches the client as it is.
"""

import sys
import time

import anthropic
import openai

from drivers import KEY
from house import House
from known import Told

SLOT = 2048
TURNS = 60
# The server is slow where the machine does other things beside: what is tried here is the window.
PATIENCE_S = 600
SETTINGS = {"PLIMSOLL_COMPACT_WAIT_S": str(PATIENCE_S), "PLIMSOLL_COMPACT_TIMEOUT_S": str(PATIENCE_S),
            "PLIMSOLL_COMPACT_COOL_DOWN_S": "1"}
REFUSAL = "exceed_context_size_error"
PLACES = ["Bristol", "Lisbon", "Oslo", "Kyoto", "Quito", "Cairo", "Perth", "Tromsø", "Dakar", "Lima"]


def messages(base, stream, words):
    client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0, timeout=PATIENCE_S)
    history = [{"role": "user", "content": words}]
    client.messages.create(model="smollm2", max_tokens=8, messages=history, stream=stream)


def chat(base, stream, words):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE_S)
    history = [{"role": "user", "content": words}]
    client.chat.completions.create(model="smollm2", max_tokens=8, messages=history, stream=stream)


def responses(base, stream, words):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE_S)
    client.responses.create(model="smollm2", max_output_tokens=8, input=words, stream=stream)


def refused(ask, *asked):
    """The body of the refusal that this is answered with."""
    try:
        ask(*asked)
    except (openai.BadRequestError, anthropic.BadRequestError) as error:
        return error.response.text
    raise AssertionError("it was not refused")


def recognised(house):
    """One message that no cut can shorten: the refusal is the server's own, and it is known for what it is."""
    told = Told(house)
    for ask in (messages, chat, responses):
        for stream in (False, True):
            words = f"{ask.__name__} {stream}: " + "Tell me of the sea. " * 700
            direct = refused(ask, house.model, stream, words)
            assert REFUSAL in direct and f'"n_ctx":{SLOT}' in direct, direct
            assert refused(ask, f"{house.proxy}/model", stream, words) == direct
            event = told.next()
            where = f"{ask.__name__}, stream {stream}: {event}"
            overflow = event["done"]["overflow"]
            assert (overflow["sign"], overflow["window"]) == ("refused", SLOT), where
            assert f'request ({overflow["input"]} tokens)' in direct, where
    print("overflow errors of messages, chat and responses, streamed and whole: recognised", flush=True)


class Chat:
    """A person who asks and asks, and a client that knows nothing of windows: it sends all of it."""

    def __init__(self, base):
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE_S)
        self.history = [{"role": "system", "content": "You answer in one short sentence."}]

    def says(self, turn):
        place = PLACES[turn % len(PLACES)]
        words = (f"Question {turn}: I have been reading about {place} since the morning, above all about its harbour, its "
                 f"trams and the food on its markets. What should I see there on day {turn}?")
        self.history.append({"role": "user", "content": words})

    def asks(self, stream):
        request = {"model": "smollm2", "messages": self.history, "max_tokens": 8}
        if not stream:
            return self.client.chat.completions.create(**request).choices[0].message.content
        chunks = self.client.chat.completions.create(**request, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def lives(house):
    """Through Plimsoll; answers the requests that the client sent."""
    told, person = Told(house), Chat(f"{house.proxy}/model")
    events, sent = [], []
    for turn in range(TURNS):
        person.says(turn)
        sent.append(list(person.history))
        answer = person.asks(stream=turn % 2 == 0)
        person.history.append({"role": "assistant", "content": answer})
        events.append(told.next())
        assert answer.strip() and events[-1]["status"] == 200, events[-1]
        assert events[-1]["usage"]["input"] <= SLOT, events[-1]
    # What nobody knew was told by the first refusal, which was mended; after it, hardly any came.
    overflows = [event["done"]["overflow"] for event in events if "overflow" in event["done"]]
    assert overflows and all(seen["sign"] == "refused" and seen["saved"] for seen in overflows), overflows
    used = [event for event in events if event["done"].get("new", {}).get("compacted")]
    assert len(used) >= 2, "it was never compacted again"
    assert len({event["thread"] for event in events}) == 1, "one conversation, one thread"
    print(f"{TURNS} turns lived: {len(used)} summaries used, {len(overflows)} overflows mended, "
          f"{max(event['usage']['input'] for event in events)} tokens at most", flush=True)
    return sent


def dies(house, sent):
    """The same requests, directly: the first that is too large is refused, and so is every later one."""
    counts = anthropic.Anthropic(base_url=house.model, api_key=KEY, max_retries=0).messages
    person, dead = Chat(house.model), []
    for turn, history in enumerate(sent):
        count = counts.count_tokens(model="smollm2", system=history[0]["content"], messages=history[1:])
        # What just fits is not sent: reading it takes this server a while, and tells nothing.
        if count.input_tokens <= SLOT:
            assert not dead, f"turn {turn} is smaller than turn {dead[-1]}"
            continue
        person.history = history
        assert REFUSAL in refused(person.asks, turn % 2 == 0)
        dead.append(turn)
    assert dead and dead[-1] == TURNS - 1, dead
    print(f"directly it dies at turn {dead[0] + 1} of {TURNS}", flush=True)


def main():
    began = time.monotonic()
    with House(SLOT, SETTINGS) as house:
        dies(house, lives(house))
        recognised(house)
    print(f"a window of {SLOT} tokens: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
