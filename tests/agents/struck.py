"""Sessions of real agents that something strikes which the provider refuses: each kind that an agent can bring on.

Straight to the provider most are dead then: every later prompt is refused, too. Some agents mend a few kinds by
themselves, for the price of a refused request, and more of one each time. Through Plimsoll every prompt is answered.
What no agent of these brings on, docs/healing.md lists.
"""

import collections
import tempfile

from prompts import ClaudeCode, Codex, Gemini, Opencode, OpencodeResponses, OpencodeThinking, Session, dummy_key
from place import FIRST, Place
from witness import Witness

SHOWN = "Say in 0 steps what you see here."
AGAIN = "Say in 1 steps whether the last build passed."
ONCE_MORE = "Say in 1 steps what README.md is about."


def large(session, place):
    place.picture("shot.png")
    session.ask(SHOWN, "shot.png")


def wide(session, place):
    place.picture("wide.png", 8_200, 1)
    session.ask(SHOWN, "wide.png")


def many(session, place):
    for at in range(2):
        files = [place.picture(f"{at}-{n}.png", 8, 8) for n in range(12)]
        session.ask(SHOWN, *files)


def heavy(session, place):
    for at in range(2):
        files = [place.picture(f"{at}-{n}.png", 140, 110) for n in range(9)]
        session.ask(SHOWN, *files)


def no_document(session, place):
    (place.project / "paper.pdf").write_text("<html><body>Not found</body></html>\n")
    session.ask(SHOWN, "paper.pdf")


def half_character(session, place):
    text = "\N{GRINNING FACE}" * 60_000
    (place.project / "README.md").write_text(text)
    (place.project / "build.log").write_text("x" + text)
    session.ask(FIRST)


def killed(session, place):
    session.ask_and_kill(FIRST)


def other_account(session, place):
    session.ask(FIRST)
    session.key = dummy_key()


def other_provider(session, place):
    base, session.base = session.base, place.other
    session.ask(FIRST)
    session.base = base


def much_output(session, place):
    session.driver.output = 64_000
    session.driver.env = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": 64_000, "OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX": 64_000}
    session.ask(FIRST)


def resumed(session, place):
    session.ask(FIRST)


# What becomes of the session without Plimsoll: it is dead, or the agent mends it.
DEAD, MENDED = "dead", "mended"
# Agent, what strikes, what becomes of it, and how often each cause is healed.
STRUCK = [
    ("codex", Codex, large, DEAD, {"media": 1}),
    ("codex", Codex, many, DEAD, {"media": 1}),
    ("codex", Codex, heavy, DEAD, {"media": 1}),
    ("codex", Codex, other_account, DEAD, {"reasoning": 1}),
    ("codex", Codex, other_provider, DEAD, {"reasoning": 1}),
    ("opencode", Opencode, large, DEAD, {"media": 1}),
    ("opencode", Opencode, many, DEAD, {"media": 1}),
    ("opencode", Opencode, no_document, DEAD, {"media": 1}),
    ("opencode", Opencode, much_output, DEAD, {"max_tokens": 1}),
    ("opencode", Opencode, heavy, MENDED, {"media": 1}),
    ("opencode-thinking", OpencodeThinking, other_provider, DEAD, {"reasoning": 1}),
    ("opencode-openai", OpencodeResponses, large, DEAD, {"media": 1}),
    ("opencode-openai", OpencodeResponses, other_account, DEAD, {"reasoning": 1}),
    # It repeats each tool result when it resumes: that is refused in every session with tools.
    ("gemini-cli", Gemini, resumed, DEAD, {"tool_pairs": 1}),
    ("gemini-cli", Gemini, killed, DEAD, {"tool_pairs": 1}),
    ("gemini-cli", Gemini, large, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, wide, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, many, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, heavy, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, no_document, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, half_character, DEAD, {"unicode": 1, "tool_pairs": 1}),
    ("claude-code", ClaudeCode, many, DEAD, {"media": 1}),
    ("claude-code", ClaudeCode, large, MENDED, {"media": 1}),
    ("claude-code", ClaudeCode, heavy, MENDED, {"media": 1}),
    ("claude-code", ClaudeCode, no_document, MENDED, {"media": 1}),
    ("claude-code", ClaudeCode, much_output, MENDED, {"max_tokens": 1}),
    ("claude-code", ClaudeCode, other_provider, MENDED, {"reasoning": 1}),
]


def direct(house, driver, strikes, becomes, folder):
    """Strikes a session that no proxy stands before."""
    with Witness(house.provider) as witness:
        place = Place(witness.url, folder)
        place.other = house.other
        session = Session(driver(place), witness.url)
        strikes(session, place)
        refusals = [status for status in witness.take() if status >= 400]
        ends = []
        for prompt in (AGAIN, ONCE_MORE):
            session.ask(prompt)
            statuses = witness.take()
            refusals += [status for status in statuses if status >= 400]
            ends.append(statuses[-1])
    # An agent may drop the first prompt that was refused; the next one holds what strikes again.
    is_dead = ends[-1] in (400, 413, 422)
    assert refusals and is_dead == (becomes == DEAD), f"{strikes.__name__} is not {becomes}: {ends}, refused {refusals}"


def healed(house, driver, strikes, folder):
    """Strikes a session that Plimsoll stands before: each later prompt is answered."""
    place = Place(house.proxy, folder)
    place.other = house.other
    session = Session(driver(place), house.proxy)
    strikes(session, place)
    for prompt in (AGAIN, ONCE_MORE):
        done = session.ask(prompt)
        assert done.returncode == 0, f"{prompt} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def judge(name, events, causes):
    """All turns were answered, and what struck was healed as often as expected, each time once for all."""
    turns = [event for event in events if event["purpose"] == "turn"]
    counted = collections.Counter(cause for event in turns if event.get("refusal") for cause in event["refusal"]["causes"])
    print(f"   {name}: {len(turns)} calls, healed {dict(counted)}", flush=True)
    # Who is killed leaves while a reply comes.
    ended = [event["outcome"] for event in turns if event["outcome"] not in ("complete", "client_left")]
    assert turns and not ended, ended
    assert dict(counted) == causes, f"healed {dict(counted)}, not {causes}"


def session(house, driver, strikes, becomes):
    """Plays one kind, first without Plimsoll."""

    def play(folder):
        with tempfile.TemporaryDirectory(prefix="plimsoll-direct-", ignore_cleanup_errors=True) as alone:
            direct(house, driver, strikes, becomes, alone)
        healed(house, driver, strikes, folder)

    return play
