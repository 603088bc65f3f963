"""Coding agents, as installed from npm and PyPI, through the proxy: each does a short task with tools against the
scripted provider, then continues it. Dummy keys, loopback only. Then each sends what a strict provider refuses
(refusals.py).

`run.py [NAME…]` runs the named tests, or all of an agent: `codex` is `codex-http`, `codex many_pictures` and so on.
Each of TASKS checks that the agent exits with 0, that every exchange is complete, that the task and its continuation
are one thread, and that the estimate of each call is based on the call before and is accurate. TWINS run twice at once and
must be two sessions. The last line counts conversations that were split or merged wrongly.
"""

import collections
import concurrent.futures
import pathlib
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "sdk/python"))

import healing  # noqa: E402
import refusals  # noqa: E402
from agent_commands import ClaudeCode, Session  # noqa: E402
from exchange_events import MAX_ERROR, ExchangeEvents  # noqa: E402
from stack import STRICT_PROVIDER, TestStack  # noqa: E402
from workspace import FIRST_PROMPT, KEY, NPM_BIN, PYTHON_BIN, SECOND_PROMPT, Workspace  # noqa: E402


def codex(workspace, config, **env):
    workspace.write(".codex/config.toml", f'model = "gpt-5.5"\n{config}\n[projects."{workspace.project}"]\ntrust_level = "trusted"\n')
    flags = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
    workspace.run(NPM_BIN / "codex", "exec", *flags, FIRST_PROMPT, **env)
    workspace.run(NPM_BIN / "codex", "exec", *flags, "resume", "--last", SECOND_PROMPT, **env)


def codex_http(workspace):
    provider = f'[model_providers.local]\nname = "local"\nbase_url = "{workspace.base}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"'
    codex(workspace, f'model_provider = "local"\n{provider}', LOCAL_KEY=KEY)


def codex_websocket(workspace):
    codex(workspace, f'openai_base_url = "{workspace.base}/v1"', CODEX_API_KEY=KEY, OPENAI_API_KEY=KEY)


def gemini_cli(workspace):
    workspace.write(".gemini/settings.json", '{"security":{"auth":{"selectedType":"gemini-api-key"},"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},"general":{"disableAutoUpdate":true}}')
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": workspace.base}
    workspace.run(NPM_BIN / "gemini", "--yolo", "-p", FIRST_PROMPT, **env)
    workspace.run(NPM_BIN / "gemini", "--yolo", "--resume", "latest", "-p", SECOND_PROMPT, **env)


def opencode(workspace, provider, model, base_url):
    workspace.write(".config/opencode/opencode.json", '{"autoupdate":false,"share":"disabled","permission":{"bash":"allow","edit":"allow"},"provider":{"%s":{"models":{"%s":{"name":"Demo","reasoning":true,"tool_call":true,"limit":{"context":200000,"output":32000}}},"options":{"baseURL":"%s","apiKey":"%s"}}}}' % (provider, model, base_url, KEY))
    workspace.run(NPM_BIN / "opencode", "run", "-m", f"{provider}/{model}", FIRST_PROMPT)
    workspace.run(NPM_BIN / "opencode", "run", "-c", "-m", f"{provider}/{model}", SECOND_PROMPT)


def opencode_anthropic(workspace):
    opencode(workspace, "anthropic", "claude-sonnet-4-6", f"{workspace.base}/v1")


def opencode_openai(workspace):
    opencode(workspace, "openai", "gpt-5.5", f"{workspace.base}/v1")


def aider(workspace):
    flags = ("--yes-always", "--no-auto-commits", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--no-analytics", "--no-gitignore", "--no-git")
    env = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": f"{workspace.base}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    workspace.run(PYTHON_BIN / "aider", "--model", "openai/gpt-4.1", *flags, "--message", FIRST_PROMPT, "README.md", "app.py", **env)
    workspace.run(PYTHON_BIN / "aider", "--restore-chat-history", "--model", "openai/gpt-4.1", *flags, "--message", SECOND_PROMPT, "README.md", "app.py", **env)


def mini_swe_agent(workspace):
    env = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1", "ANTHROPIC_API_KEY": KEY,
           "ANTHROPIC_API_BASE": workspace.base, "ANTHROPIC_BASE_URL": workspace.base, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    workspace.run(PYTHON_BIN / "mini", "-y", "--exit-immediately", "-m", "anthropic/claude-sonnet-4-6", "-t", FIRST_PROMPT, "-o", workspace.home / "trajectory.json", **env)


def claude_code(workspace):
    session = Session(ClaudeCode(workspace), workspace.base)
    for prompt in (FIRST_PROMPT, SECOND_PROMPT):
        done = session.ask(prompt)
        assert done.returncode == 0, f"exited with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


# Name, how it runs, the number of calls of the task and its continuation, and the number of other exchanges by purpose.
# Each conversation is one thread, also of Gemini CLI, which repeats each tool result when it resumes, and of Codex over
# WebSocket, which sends its history again on another connection after a warm-up. The first call of a thread has no
# earlier call to base its estimate on; with a WebSocket it has the warm-up.
# mini-swe-agent cannot continue a session: its task is a loop of four calls.
TASKS = [
    ("codex-http", codex_http, 8, {}),
    ("codex-websocket", codex_websocket, 8, {"warm_up": 2, "tunnel": 2}),
    ("gemini-cli", gemini_cli, 8, {"side": 2}),
    ("opencode-anthropic", opencode_anthropic, 8, {"side": 1}),
    ("opencode-openai", opencode_openai, 8, {"side": 1}),
    ("aider", aider, 2, {}),
    ("mini-swe-agent", mini_swe_agent, 4, {}),
    ("claude-code", claude_code, 8, {}),
]
# Agents that name no session, each run twice at once with the same prompts, and the number of calls of each run.
TWINS = [("aider", aider, 2), ("mini-swe-agent", mini_swe_agent, 4)]
# How often a conversation was taken for several sessions, and several for one.
IDENTITY_ERRORS = collections.Counter(split=0, merged=0)
# Not free software: `scripts/agents` installs it only on request.
OPTIONAL = {"claude-code": NPM_BIN / "claude"}


def all_events(listener):
    """The exchange events, once no more arrive."""
    count = -1
    while len(listener.events) != count:
        count = len(listener.events)
        time.sleep(1)
    return listener.events


def is_incremental(event):
    """Whether the estimate is based on an earlier call. If it is not, all its tokens count as new."""
    estimate = event["estimate"]
    return estimate["method"] in ("anchored", "held") and estimate["new"] < estimate["tokens"]


def check_task(name, events, calls, other_purposes):
    task = [event for event in events if event["purpose"] == "turn" and event["thread"]]
    others = collections.Counter(event["purpose"] if event["thread"] else "tunnel" for event in events if event not in task)
    threads = collections.Counter((event["session"], event["thread"]) for event in task)
    IDENTITY_ERRORS["split"] += len({event["session"] for event in task}) - 1
    errors = [f"{event['error']:+} ({event['estimate']['counting']})" if is_incremental(event) else "no earlier call" for event in task]
    print(f"   {name}: {len(task)} calls on {len(threads)} threads, other exchanges {dict(others)}; errors of estimates {', '.join(errors)}", flush=True)
    outcomes = collections.Counter(event["outcome"] for event in events)
    assert set(outcomes) == {"complete"}, f"outcomes: {dict(outcomes)}"
    assert (len(task), others) == (calls, other_purposes), f"{len(task)} calls, other exchanges {dict(others)}"
    assert len(threads) == 1, f"one conversation must be one thread: {dict(threads)}"
    assert all(event["usage"].get("input") for event in task), "an exchange has no usage"
    assert [is_incremental(event) for event in task] == ["warm_up" in other_purposes] + [True] * (calls - 1), errors
    for event in filter(is_incremental, task):
        max_error = max(40, event["actual"] * MAX_ERROR[event["estimate"]["counting"]])
        assert abs(event["error"]) <= max_error, f"{event['estimate']} of {event['actual']}"


def run_twins(run_agent, proxy, folder):
    """Runs an agent twice at once, each in a folder of its own."""
    folders = [pathlib.Path(folder) / name for name in ("one", "other")]
    for one in folders:
        one.mkdir()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for run in [pool.submit(run_agent, Workspace(proxy, one)) for one in folders]:
            run.result()


def check_twins(name, events, calls):
    """Equal runs at once are two sessions, whatever their requests have in common."""
    turns = collections.Counter(event["session"] for event in events if event["purpose"] == "turn")
    witnesses = collections.Counter(event["found_by"] for event in events if "found_by" in event)
    print(f"   {name}: turns of each session {sorted(turns.values())}, found by {dict(witnesses)}", flush=True)
    IDENTITY_ERRORS["split"] += max(0, len(turns) - 2)
    IDENTITY_ERRORS["merged"] += max(0, 2 - len(turns))
    assert sorted(turns.values()) == [calls, calls], dict(turns)


def run_test(stack, name, test, check):
    """Runs an agent, and checks the events of its exchanges. Returns whether the test passed."""
    listener = ExchangeEvents(stack)
    try:
        with tempfile.TemporaryDirectory(prefix=f"plimsoll-{name.replace(' ', '-')}-", ignore_cleanup_errors=True) as folder:
            test(folder)
        check(all_events(listener))
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    return True


def main(names):
    def is_wanted(agent, name):
        is_installed = agent not in OPTIONAL or OPTIONAL[agent].exists()
        return is_installed and (not names or any(name == one or name.startswith((f"{one}-", f"{one} ")) for one in names))

    results = []
    with TestStack(slot_tokens=None) as stack:
        for name, run_agent, calls, other_purposes in (task for task in TASKS if is_wanted(task[0], task[0])):
            test = lambda folder: run_agent(Workspace(stack.proxy, folder))
            results.append(run_test(stack, name, test, lambda events: check_task(name, events, calls, other_purposes)))
        for agent, run_agent, calls in TWINS:
            name = f"{agent} twice at once"
            if is_wanted(agent, name):
                test = lambda folder: run_twins(run_agent, stack.proxy, folder)
                results.append(run_test(stack, name, test, lambda events: check_twins(name, events, calls)))
    with TestStack(slot_tokens=None, env=healing.SLOW_DISK_ENV, strict=True) as stack:
        stack.other_provider = stack.start([STRICT_PROVIDER, "127.0.0.1:0"], r"(http://\S+)")[0]
        for agent_name, agent, scenario, outcome, causes in refusals.SCENARIOS:
            name = f"{agent_name} {scenario.__name__}"
            if is_wanted(agent_name, name):
                test = refusals.make_test(stack, agent, scenario, outcome)
                results.append(run_test(stack, name, test, lambda events: refusals.check_events(name, events, causes)))
    errors = "{split} conversations split, {merged} merged".format(**IDENTITY_ERRORS)
    print(f"agents: {sum(results)} passed, {len(results) - sum(results)} failed; {errors}", flush=True)
    return 0 if results and all(results) else 1


sys.exit(main(sys.argv[1:]))
