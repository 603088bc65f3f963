"""Coding agents, as they are installed from npm and PyPI, through the proxy: each does a short task with tools
against the scripted provider, then continues it. Dummy keys, loopback only. Then each is struck by what a strict
provider refuses (struck.py).

`run.py [NAME…]` runs the named ones, or all of an agent: `codex` is `codex-http`, `codex many` and so on. For each of
RUNS: the agent ends well, every exchange has an ending, the task and its continuation are one thread, and its calls
were estimated from the call before, and well.
"""

import collections
import pathlib
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "sdk/python"))

import healing  # noqa: E402
import struck  # noqa: E402
from prompts import ClaudeCode, Session  # noqa: E402
from stack import BINARY, TestStack  # noqa: E402
from exchange_events import MAX_ERROR, ExchangeEvents  # noqa: E402
from place import FIRST, KEY, NPM, PYTHON, THEN, Place  # noqa: E402


def codex(place, config, **env):
    place.write(".codex/config.toml", f'model = "gpt-5.5"\n{config}\n[projects."{place.project}"]\ntrust_level = "trusted"\n')
    flags = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
    place.run(NPM / "codex", "exec", *flags, FIRST, **env)
    place.run(NPM / "codex", "exec", *flags, "resume", "--last", THEN, **env)


def codex_http(place):
    provider = f'[model_providers.local]\nname = "local"\nbase_url = "{place.base}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"'
    codex(place, f'model_provider = "local"\n{provider}', LOCAL_KEY=KEY)


def codex_websocket(place):
    codex(place, f'openai_base_url = "{place.base}/v1"', CODEX_API_KEY=KEY, OPENAI_API_KEY=KEY)


def gemini_cli(place):
    place.write(".gemini/settings.json", '{"security":{"auth":{"selectedType":"gemini-api-key"},"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},"general":{"disableAutoUpdate":true}}')
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": place.base}
    place.run(NPM / "gemini", "--yolo", "-p", FIRST, **env)
    place.run(NPM / "gemini", "--yolo", "--resume", "latest", "-p", THEN, **env)


def opencode(place, provider, model, options):
    place.write(".config/opencode/opencode.json", '{"autoupdate":false,"share":"disabled","permission":{"bash":"allow","edit":"allow"},"provider":{"%s":{"models":{"%s":{"name":"Demo","reasoning":true,"tool_call":true,"limit":{"context":200000,"output":32000}}},"options":{"baseURL":"%s","apiKey":"%s"}}}}' % (provider, model, options, KEY))
    place.run(NPM / "opencode", "run", "-m", f"{provider}/{model}", FIRST)
    place.run(NPM / "opencode", "run", "-c", "-m", f"{provider}/{model}", THEN)


def opencode_anthropic(place):
    opencode(place, "anthropic", "claude-sonnet-4-6", f"{place.base}/v1")


def opencode_openai(place):
    opencode(place, "openai", "gpt-5.5", f"{place.base}/v1")


def aider(place):
    flags = ("--yes-always", "--no-auto-commits", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--no-analytics", "--no-gitignore", "--no-git")
    env = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": f"{place.base}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    place.run(PYTHON / "aider", "--model", "openai/gpt-4.1", *flags, "--message", FIRST, "README.md", "app.py", **env)
    place.run(PYTHON / "aider", "--restore-chat-history", "--model", "openai/gpt-4.1", *flags, "--message", THEN, "README.md", "app.py", **env)


def mini_swe_agent(place):
    env = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1", "ANTHROPIC_API_KEY": KEY,
           "ANTHROPIC_API_BASE": place.base, "ANTHROPIC_BASE_URL": place.base, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    place.run(PYTHON / "mini", "-y", "--exit-immediately", "-m", "anthropic/claude-sonnet-4-6", "-t", FIRST, "-o", place.home / "trajectory.json", **env)


def claude_code(place):
    session = Session(ClaudeCode(place), place.base)
    for prompt in (FIRST, THEN):
        done = session.ask(prompt)
        assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


# Name, how it runs, how many calls its task and the continuation take, and what it sends beside them, by purpose.
# What is true of every one of them, Gemini CLI included, which repeats each tool result when it resumes, and
# Codex over WebSocket, which tells its history again on another connection after a warm-up: one person, one
# conversation, one thread. The first call of a thread has nothing to grow from; of a WebSocket it has the warm-up.
# mini-swe-agent has nothing to continue: its one task is a loop of four.
RUNS = [
    ("codex-http", codex_http, 8, {}),
    ("codex-websocket", codex_websocket, 8, {"warm_up": 2, "tunnel": 2}),
    ("gemini-cli", gemini_cli, 8, {"side": 2}),
    ("opencode-anthropic", opencode_anthropic, 8, {"side": 1}),
    ("opencode-openai", opencode_openai, 8, {"side": 1}),
    ("aider", aider, 2, {}),
    ("mini-swe-agent", mini_swe_agent, 4, {}),
    ("claude-code", claude_code, 8, {}),
]
# It is not free software: `scripts/agents` installs it only where it is asked to.
OPTIONAL = {"claude-code": NPM / "claude"}


def settled(told):
    """The exchanges told of, once no more come."""
    seen = -1
    while len(told.events) != seen:
        seen = len(told.events)
        time.sleep(1)
    return told.events


def grew(event):
    """Whether an estimate was made from an earlier call: one that was not counts all its tokens as new."""
    estimate = event["estimate"]
    return estimate["method"] in ("anchored", "held") and estimate["new"] < estimate["tokens"]


def check(name, events, calls, beside):
    task = [event for event in events if event["purpose"] == "turn" and event["thread"]]
    others = collections.Counter(event["purpose"] if event["thread"] else "tunnel" for event in events if event not in task)
    threads = collections.Counter((event["session"], event["thread"]) for event in task)
    told = [f"{event['error']:+} ({event['estimate']['counting']})" if grew(event) else "from nothing" for event in task]
    print(f"   {name}: {len(task)} calls on {len(threads)} threads, beside them {dict(others)}; estimates {', '.join(told)}", flush=True)
    endings = collections.Counter(event["outcome"] for event in events)
    assert set(endings) == {"complete"}, f"endings: {dict(endings)}"
    assert (len(task), others) == (calls, beside), f"{len(task)} calls, {dict(others)} beside them"
    assert len(threads) == 1, f"one conversation on {dict(threads)}"
    assert all(event["usage"].get("input") for event in task), "usage is unknown somewhere"
    assert [grew(event) for event in task] == ["warm_up" in beside] + [True] * (calls - 1), told
    for event in filter(grew, task):
        within = max(40, event["actual"] * MAX_ERROR[event["estimate"]["counting"]])
        assert abs(event["error"]) <= within, f"{event['estimate']} of {event['actual']}"


def played(house, name, play, judge):
    """Runs an agent, and judges what was told of it; says whether it passed."""
    told = ExchangeEvents(house)
    try:
        with tempfile.TemporaryDirectory(prefix=f"plimsoll-{name.replace(' ', '-')}-", ignore_cleanup_errors=True) as folder:
            play(folder)
        judge(settled(told))
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    return True


def main(names):
    def wanted(agent, name):
        is_here = agent not in OPTIONAL or OPTIONAL[agent].exists()
        return is_here and (not names or any(name == one or name.startswith((f"{one}-", f"{one} ")) for one in names))

    results = []
    with TestStack(slot_tokens=None) as house:
        for name, agent, calls, beside in (run for run in RUNS if wanted(run[0], run[0])):
            results.append(played(house, name, lambda folder: agent(Place(house.proxy, folder)), lambda events: check(name, events, calls, beside)))
    with TestStack(slot_tokens=None, env=healing.SLOW_DISK_ENV, strict=True) as house:
        house.other = house.start([BINARY, "demo", "--provider", "127.0.0.1:0", "--strict"], r"(http://\S+)")[0]
        for agent, driver, strikes, becomes, causes in struck.STRUCK:
            name = f"{agent} {strikes.__name__}"
            if wanted(agent, name):
                play = struck.session(house, driver, strikes, becomes)
                results.append(played(house, name, play, lambda events: struck.judge(name, events, causes)))
    print(f"agents: {sum(results)} passed, {len(results) - sum(results)} failed", flush=True)
    return 0 if results and all(results) else 1


sys.exit(main(sys.argv[1:]))
