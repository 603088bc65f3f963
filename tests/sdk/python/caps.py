"""A spent cap with each official SDK, which repeats what it thinks is worth repeating: the refusal is sent once, and the
exception that the caller gets says why.
"""

import re

import anthropic
import openai
from google import genai
from google.genai import errors, types

from drivers import KEY

# Every reply of the scripted provider has more tokens.
CONFIG = '[cap.tiny]\nof = "session"\nper = "session"\ntokens = 1\n'
QUESTION = [{"role": "user", "content": "Ahoy?"}]
REFUSED = re.compile(r'^plimsoll_requests_total\{.*outcome="turned".*status="4xx".*\} (\d+)$', re.MULTILINE)
# Google's SDK repeats nothing unless it is told to.
GEMINI_RETRIES = types.HttpRetryOptions(attempts=3, initial_delay=0.01, max_delay=0.02)


def anthropic_messages(base, session):
    client = anthropic.Anthropic(base_url=base, api_key=KEY, default_headers={"x-plimsoll-session": session})
    return lambda: client.messages.create(model="claude-sonnet-4-6", max_tokens=100, messages=QUESTION)


def anthropic_stream(base, session):
    client = anthropic.Anthropic(base_url=base, api_key=KEY, default_headers={"x-plimsoll-session": session})

    def send():
        with client.messages.stream(model="claude-sonnet-4-6", max_tokens=100, messages=QUESTION) as events:
            return events.get_final_message()

    return send


def openai_chat(base, session):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, default_headers={"x-plimsoll-session": session})
    return lambda: client.chat.completions.create(model="gpt-4.1", messages=QUESTION)


def openai_responses(base, session):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=KEY, default_headers={"x-plimsoll-session": session})
    return lambda: client.responses.create(model="gpt-5.5", input="Ahoy?")


def google_genai(base, session):
    headers = {"x-plimsoll-session": session}
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=base, headers=headers, retry_options=GEMINI_RETRIES))
    return lambda: client.models.generate_content(model="gemini-2.5-flash", contents="Ahoy?")


SDKS = [
    (anthropic_messages, anthropic.APIStatusError),
    (anthropic_stream, anthropic.APIStatusError),
    (openai_chat, openai.APIStatusError),
    (openai_responses, openai.APIStatusError),
    (google_genai, errors.ClientError),
]


def refusals(stack):
    with stack.get("/metrics") as response:
        return sum(int(count) for count in REFUSED.findall(response.read().decode()))


def make_test(sdk, error_class):
    def test(stack):
        send = sdk(stack.proxy, f"capped-{sdk.__name__}")
        send()
        before = refusals(stack)
        try:
            send()
        except error_class as error:
            status = error.code if error_class is errors.ClientError else error.status_code
            assert status == 402, error
            assert "spending cap" in str(error), error
        else:
            raise AssertionError("the cap did not refuse it")
        assert refusals(stack) == before + 1, (before, refusals(stack))

    return test


CASES = [(f"{sdk.__name__} (spent cap)", make_test(sdk, error_class)) for sdk, error_class in SDKS]
