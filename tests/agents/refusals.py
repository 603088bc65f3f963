"""Sessions of real agents with content that the provider refuses: each kind that one of these agents can send.

Sent directly to the provider, most sessions are dead then: every later prompt is refused, too. Some agents recover from a few
kinds themselves, which costs a refused request, for some kinds with every prompt. Through Plimsoll every prompt is
answered. docs/healing.md says what these agents do not send.
"""

import collections
import tempfile

from agent_commands import ClaudeCode, Codex, Gemini, Opencode, OpencodeResponses, OpencodeThinking, Session, dummy_key
from recording_proxy import RecordingProxy
from workspace import FIRST_PROMPT, Workspace

PROMPT_WITH_FILES = "Say in 0 steps what you see here."
PROMPT_AFTER_REFUSAL = "Say in 1 steps whether the last build passed."
LAST_PROMPT = "Say in 1 steps what README.md is about."


def large_picture(session, workspace):
    workspace.write_picture("shot.png")
    session.ask(PROMPT_WITH_FILES, "shot.png")


def wide_picture(session, workspace):
    workspace.write_picture("wide.png", 8_200, 1)
    session.ask(PROMPT_WITH_FILES, "wide.png")


def many_pictures(session, workspace):
    for prompt in range(2):
        files = [workspace.write_picture(f"{prompt}-{n}.png", 8, 8) for n in range(12)]
        session.ask(PROMPT_WITH_FILES, *files)


def large_request(session, workspace):
    for prompt in range(2):
        files = [workspace.write_picture(f"{prompt}-{n}.png", 140, 110) for n in range(9)]
        session.ask(PROMPT_WITH_FILES, *files)


def invalid_pdf(session, workspace):
    (workspace.project / "paper.pdf").write_text("<html><body>Not found</body></html>\n")
    session.ask(PROMPT_WITH_FILES, "paper.pdf")


def half_character(session, workspace):
    text = "\N{GRINNING FACE}" * 60_000
    (workspace.project / "README.md").write_text(text)
    (workspace.project / "build.log").write_text("x" + text)
    session.ask(FIRST_PROMPT)


def killed_in_tool_call(session, workspace):
    session.ask_and_kill(FIRST_PROMPT)


def other_account(session, workspace):
    session.ask(FIRST_PROMPT)
    session.key = dummy_key()


def other_provider(session, workspace):
    base, session.base = session.base, workspace.other_provider
    session.ask(FIRST_PROMPT)
    session.base = base


def too_much_output(session, workspace):
    session.agent.max_output = 64_000
    session.agent.env = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": 64_000, "OPENCODE_EXPERIMENTAL_OUTPUT_TOKEN_MAX": 64_000}
    session.ask(FIRST_PROMPT)


def resumed(session, workspace):
    session.ask(FIRST_PROMPT)


# What happens to the session without Plimsoll: it is dead, or the agent recovers.
DEAD, RECOVERED = "dead", "recovered"
# Agent, its class, what makes the provider refuse, what happens without Plimsoll, and how often each cause is healed.
SCENARIOS = [
    ("codex", Codex, large_picture, DEAD, {"media": 1}),
    ("codex", Codex, many_pictures, DEAD, {"media": 1}),
    ("codex", Codex, large_request, DEAD, {"media": 1}),
    ("codex", Codex, other_account, DEAD, {"reasoning": 1}),
    ("codex", Codex, other_provider, DEAD, {"reasoning": 1}),
    ("opencode", Opencode, large_picture, DEAD, {"media": 1}),
    ("opencode", Opencode, many_pictures, DEAD, {"media": 1}),
    ("opencode", Opencode, invalid_pdf, DEAD, {"media": 1}),
    ("opencode", Opencode, too_much_output, DEAD, {"max_tokens": 1}),
    ("opencode", Opencode, large_request, RECOVERED, {"media": 1}),
    ("opencode-thinking", OpencodeThinking, other_provider, DEAD, {"reasoning": 1}),
    ("opencode-openai", OpencodeResponses, large_picture, DEAD, {"media": 1}),
    ("opencode-openai", OpencodeResponses, other_account, DEAD, {"reasoning": 1}),
    # Gemini CLI repeats each tool result when it resumes, so every resumed session with tool calls is refused.
    ("gemini-cli", Gemini, resumed, DEAD, {"tool_pairs": 1}),
    ("gemini-cli", Gemini, killed_in_tool_call, DEAD, {"tool_pairs": 1}),
    ("gemini-cli", Gemini, large_picture, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, wide_picture, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, many_pictures, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, large_request, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, invalid_pdf, DEAD, {"media": 1, "tool_pairs": 1}),
    ("gemini-cli", Gemini, half_character, DEAD, {"unicode": 1, "tool_pairs": 1}),
    ("claude-code", ClaudeCode, many_pictures, DEAD, {"media": 1}),
    ("claude-code", ClaudeCode, large_picture, RECOVERED, {"media": 1}),
    ("claude-code", ClaudeCode, large_request, RECOVERED, {"media": 1}),
    ("claude-code", ClaudeCode, invalid_pdf, RECOVERED, {"media": 1}),
    ("claude-code", ClaudeCode, too_much_output, RECOVERED, {"max_tokens": 1}),
    ("claude-code", ClaudeCode, other_provider, RECOVERED, {"reasoning": 1}),
]


def run_directly(stack, agent, scenario, outcome, folder):
    """Runs a scenario without Plimsoll, and checks what happens to the session."""
    with RecordingProxy(stack.provider) as proxy:
        workspace = Workspace(proxy.url, folder)
        workspace.other_provider = stack.other_provider
        session = Session(agent(workspace), proxy.url)
        scenario(session, workspace)
        refusals = [status for status in proxy.take_statuses() if status >= 400]
        last_statuses = []
        for prompt in (PROMPT_AFTER_REFUSAL, LAST_PROMPT):
            session.ask(prompt)
            statuses = proxy.take_statuses()
            refusals += [status for status in statuses if status >= 400]
            last_statuses.append(statuses[-1])
    # An agent may drop the first prompt that was refused, but the next one has the refused content again.
    is_dead = last_statuses[-1] in (400, 413, 422)
    assert refusals and is_dead == (outcome == DEAD), f"{scenario.__name__} is not {outcome}: {last_statuses}, refused {refusals}"


def run_through_plimsoll(stack, agent, scenario, folder):
    """Runs a scenario through Plimsoll: each later prompt must be answered."""
    workspace = Workspace(stack.proxy, folder)
    workspace.other_provider = stack.other_provider
    session = Session(agent(workspace), stack.proxy)
    scenario(session, workspace)
    for prompt in (PROMPT_AFTER_REFUSAL, LAST_PROMPT):
        done = session.ask(prompt)
        assert done.returncode == 0, f"{prompt} exited with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def check_events(name, events, causes):
    """All turns were answered, and each cause was healed as often as expected: once for the whole session."""
    turns = [event for event in events if event["purpose"] == "turn"]
    healed = collections.Counter(cause for event in turns if event.get("refusal") for cause in event["refusal"]["causes"])
    print(f"   {name}: {len(turns)} calls, healed {dict(healed)}", flush=True)
    # An agent that is killed leaves while a reply is sent.
    failed = [event["outcome"] for event in turns if event["outcome"] not in ("complete", "client_left")]
    assert turns and not failed, failed
    assert dict(healed) == causes, f"healed {dict(healed)}, not {causes}"


def make_test(stack, agent, scenario, outcome):
    """A test that runs a scenario twice: first without Plimsoll, then through it."""

    def test(folder):
        with tempfile.TemporaryDirectory(prefix="plimsoll-direct-", ignore_cleanup_errors=True) as direct_folder:
            run_directly(stack, agent, scenario, outcome, direct_folder)
        run_through_plimsoll(stack, agent, scenario, folder)

    return test
