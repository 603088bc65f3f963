"""A real server with a small window: llama.cpp with slots of 1,024 tokens. Plimsoll is not configured with that size.

A chat of 60 turns with the official SDK continues to the end through Plimsoll. The same chat, sent directly, is refused
with the server's overflow error. Plimsoll recognises that error at every endpoint, and forwards it unchanged.
"""

import sys
import time

import anthropic
import openai

from drivers import KEY
from exchange_events import ExchangeEvents
from stack import TestStack

SLOT_TOKENS = 1024
TURNS = 60
# The server is slow on a busy machine, and this test is not about time. A request waits for a summary for 45 s at most, so
# the summaries are short.
TIMEOUT_S = 600
PROXY_ENV = {"PLIMSOLL_COMPACT_WAIT_S": "45", "PLIMSOLL_COMPACT_TIMEOUT_S": str(TIMEOUT_S),
             "PLIMSOLL_COMPACT_COOL_DOWN_S": "1", "PLIMSOLL_COMPACT_PROMPT": "List the places of the conversation in one line."}
OVERFLOW_ERROR = "exceed_context_size_error"
PLACES = ["Bristol", "Lisbon", "Oslo", "Kyoto", "Quito", "Cairo", "Perth", "Tromsø", "Dakar", "Lima"]


def messages(base, stream, text):
    client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
    history = [{"role": "user", "content": text}]
    client.messages.create(model="smollm2", max_tokens=8, messages=history, stream=stream)


def chat(base, stream, text):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
    history = [{"role": "user", "content": text}]
    client.chat.completions.create(model="smollm2", max_tokens=8, messages=history, stream=stream)


def responses(base, stream, text):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
    client.responses.create(model="smollm2", max_output_tokens=8, input=text, stream=stream)


def refusal_of(send, *args):
    """The body of the error response to a request that must be refused."""
    try:
        send(*args)
    except (openai.BadRequestError, anthropic.BadRequestError) as error:
        return error.response.text
    raise AssertionError("the request was not refused")


def check_overflow_is_recognised(stack):
    """A single message that no cut can shorten: the client gets the server's own error, and Plimsoll records the
    overflow."""
    events = ExchangeEvents(stack)
    for send in (messages, chat, responses):
        for stream in (False, True):
            text = f"{send.__name__} {stream}: " + "Tell me of the sea. " * 700
            direct = refusal_of(send, stack.model, stream, text)
            assert OVERFLOW_ERROR in direct and f'"n_ctx":{SLOT_TOKENS}' in direct, direct
            assert refusal_of(send, f"{stack.proxy}/model", stream, text) == direct
            event = events.next()
            where = f"{send.__name__}, stream {stream}: {event}"
            overflow = event["done"]["overflow"]
            assert (overflow["sign"], overflow["window"]) == ("refused", SLOT_TOKENS), where
            assert f'request ({overflow["input"]} tokens)' in direct, where
    print("overflow errors of messages, chat and responses, streaming and not: recognised", flush=True)


class Chat:
    """A client that does not know the window: it sends the whole history each time."""

    def __init__(self, base):
        self.client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
        self.history = [{"role": "system", "content": "You answer in one short sentence."}]

    def add_question(self, turn):
        place = PLACES[turn % len(PLACES)]
        text = (f"Question {turn}: I have been reading about {place} since the morning, above all about its harbour, its "
                f"trams and the food on its markets. What should I see there on day {turn}?")
        self.history.append({"role": "user", "content": text})

    def send(self, stream):
        request = {"model": "smollm2", "messages": self.history, "max_tokens": 8}
        if not stream:
            return self.client.chat.completions.create(**request).choices[0].message.content
        chunks = self.client.chat.completions.create(**request, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def check_chat_through_plimsoll(stack):
    """Every turn is answered. Returns the history of each request that the client sent."""
    event_stream, client = ExchangeEvents(stack), Chat(f"{stack.proxy}/model")
    events, histories = [], []
    for turn in range(TURNS):
        client.add_question(turn)
        histories.append(list(client.history))
        answer = client.send(stream=turn % 2 == 0)
        client.history.append({"role": "assistant", "content": answer})
        events.append(event_stream.next())
        assert answer.strip() and events[-1]["status"] == 200, events[-1]
        assert events[-1]["usage"]["input"] <= SLOT_TOKENS, events[-1]
    # Plimsoll learns the window from the first overflow, and makes room in that request. Later there are hardly any.
    overflows = [event["done"]["overflow"] for event in events if "overflow" in event["done"]]
    assert overflows and all(overflow["sign"] == "refused" and overflow["saved"] for overflow in overflows), overflows
    compacted = [event for event in events if event["done"].get("new", {}).get("compacted")]
    assert len(compacted) >= 2, "it was not compacted again"
    assert len({event["thread"] for event in events}) == 1, "one conversation must be one thread"
    print(f"{TURNS} turns answered through Plimsoll: {len(compacted)} summaries used, {len(overflows)} overflows fixed, "
          f"{max(event['usage']['input'] for event in events)} tokens at most", flush=True)
    return histories


def check_chat_without_plimsoll(stack, histories):
    """The same requests, sent directly: the first that is too large is refused, and so is every later one."""
    counter = anthropic.Anthropic(base_url=stack.model, api_key=KEY, max_retries=0).messages
    client, refused = Chat(stack.model), []
    for turn, history in enumerate(histories):
        count = counter.count_tokens(model="smollm2", system=history[0]["content"], messages=history[1:])
        # A request that fits is not sent: it takes this server long, and shows nothing.
        if count.input_tokens <= SLOT_TOKENS:
            assert not refused, f"turn {turn} is smaller than turn {refused[-1]}"
            continue
        client.history = history
        assert OVERFLOW_ERROR in refusal_of(client.send, turn % 2 == 0)
        refused.append(turn)
    assert refused and refused[-1] == TURNS - 1, refused
    print(f"sent directly, every turn from {refused[0] + 1} to {TURNS} is refused", flush=True)


def main():
    start = time.monotonic()
    with TestStack(SLOT_TOKENS, PROXY_ENV) as stack:
        check_chat_without_plimsoll(stack, check_chat_through_plimsoll(stack))
        check_overflow_is_recognised(stack)
    print(f"a window of {SLOT_TOKENS} tokens: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
