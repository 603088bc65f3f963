"""What rewriting costs and saves with real agents: each does a task of 36 steps in windows of several sizes, directly (the
proxy only observes), under the default policy, and with cuts alone. Prints the table of docs/rewriting.md.

`pays.py [AGENT|WINDOW|WAY…]` runs only these. The provider is scripted: in every step the model reads lines of a log; its
counts, caches and overflows are those of the strict provider. Costs are those of `plimsoll savings`. In the way `cliff`
CliffCompaction rewrites, and Plimsoll only observes what it sends; in the way `overflow-only` it only mends requests that
do not fit.

Each play is one conversation, so more sessions than one are splits. `twins` runs each agent twice at once, with the same
prompt and key, those of POOLED_TWINS also over one pool of connections: fewer sessions than two are merges.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "sdk/python"))

from agent_commands import ClaudeCode, Codex, Gemini, Opencode, Session, dummy_key  # noqa: E402
from exchange_events import ExchangeEvents  # noqa: E402
from other_agents import Adk, AdkTwins, Cline, Copilot, CrewAi, CrewAiTwins, DeepAgents, Droid, Hermes, Kimi, Pi, Qwen  # noqa: E402
from stack import STRICT_PROVIDER, TestStack  # noqa: E402
import workspace as workspaces  # noqa: E402

AGENTS = {
    "claude-code": ClaudeCode, "codex": Codex, "gemini-cli": Gemini, "opencode": Opencode, "copilot": Copilot, "pi": Pi,
    "kimi": Kimi, "qwen": Qwen, "cline": Cline, "droid": Droid, "hermes": Hermes, "deepagents": DeepAgents,
    "crewai": CrewAi, "adk": Adk,
}
# Two runs in one process, which share connections.
POOLED_TWINS = {"crewai": CrewAiTwins, "adk": AdkTwins}
# Not free software: `scripts/agents` installs them only on request.
OPTIONAL = {"claude-code": "claude", "copilot": "copilot", "droid": "droid"}
WINDOWS = ["60000", "80000", "200000", "1000000"]
STEPS = 36
TWIN_STEPS = 4
PROMPT = "Look at build.log in {} steps, 40 lines each time, and say in one sentence what went wrong. Change nothing."
OBSERVE = 'mode = "observe"\n'
CUTS_ONLY = '[compact]\nengine = "off"\n'
# Nothing is changed until the provider says that a request does not fit.
OVERFLOW_ONLY = f"{CUTS_ONLY}[prune]\ngate = []\n"
WAYS = {"direct": OBSERVE, "default": "", "cuts-only": CUTS_ONLY, "overflow-only": OVERFLOW_ONLY, "cliff": OBSERVE}
# Where nobody names a way.
MAIN_WAYS = ["direct", "default", "cuts-only"]
LINE = "[INFO] step {}/4000: " + "lexer, report and config were checked, all of it passed, on to the next; " * 4 + "{} ms\n"
# How long an agent may take for its task.
TIMEOUT_S = 400


class SmallWindow(TestStack):
    """A provider with a window of so many tokens, and Plimsoll with this configuration in front of it."""

    def __init__(self, window, config):
        super().__init__(slot_tokens=None, strict=True)
        self.window, self.config = window, config

    def start(self, command, ready, env=()):
        if command[0] == STRICT_PROVIDER:
            command = [*command, self.window]
        else:
            file = pathlib.Path(self.data.name) / "plimsoll.toml"
            file.write_text(self.config)
            command = [*command, "--config", file]
        return super().start(command, ready, env)


class Cliff:
    """CliffCompaction in front of `upstream`, with the threshold that its documents advise: half of the window."""

    def __init__(self, upstream, window):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        flags = ["--port", port, "--threshold", int(window) // 2, "--anthropic-upstream", upstream, "--openai-upstream", upstream]
        command = [workspaces.AGENTS / "cliff/bin/cliff", "serve", *flags]
        self.home = tempfile.TemporaryDirectory(prefix="cliff-")
        env = {"HOME": self.home.name, "PATH": os.environ["PATH"]}
        self.child = subprocess.Popen([str(word) for word in command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.child.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait()
        self.home.cleanup()


def new_workspace(base, folder):
    workspace = workspaces.Workspace(base, folder)
    (workspace.project / "build.log").write_text("".join(LINE.format(n, n * 37 % 1000) for n in range(4000)))
    return workspace


def ask(session, prompt):
    """Whether the agent ended, and how: it is killed after TIMEOUT_S."""
    try:
        done = session.ask(prompt)
    except subprocess.TimeoutExpired as late:
        return f"killed\n{late.stdout}"
    finally:
        end_processes(session.agent.workspace.home)
    return "" if done.returncode == 0 else f"{done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


def end_processes(home):
    """Ends what an agent left running, such as Cline's hub: the processes that have this home folder."""
    for environment in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={home}".encode() in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGTERM)
        except OSError:
            # It ended, or is another user's.
            pass


def play(agent, window, way):
    """The table's cells for one run."""
    config = f'{WAYS[way]}[model."{agent.model}"]\nwindow_tokens = {window}\n'
    with SmallWindow(window, config) as stack, tempfile.TemporaryDirectory(prefix="plimsoll-pays-", ignore_cleanup_errors=True) as folder:
        listener = ExchangeEvents(stack)
        if way == "cliff":
            with Cliff(stack.proxy, window) as cliff:
                error = ask(Session(agent(new_workspace(cliff.base, folder)), cliff.base), PROMPT.format(STEPS))
        else:
            error = ask(Session(agent(new_workspace(stack.proxy, folder)), stack.proxy), PROMPT.format(STEPS))
        # The last exchange may be recorded a little later.
        time.sleep(3)
        calls = [event for event in listener.events if event["purpose"] != "warm_up" and event.get("model")]
        turns = [event for event in calls if event["purpose"] == "turn" and event["outcome"] == "complete"]
        waits = [event for event in calls if event.get("compaction_wait_us")]
        sessions = {event["session"] for event in calls if event.get("session")}
        refused = [event for event in calls if event["outcome"] not in ("complete", "client_left")]
        total = json.load(stack.get("/api/v1/savings"))["total"]
    if error:
        print(f"{agent.__name__} {window} {way}: {error}", file=sys.stderr, flush=True)
    summaries, cost = total["summaries"], total["money"]["spent"] + total["summaries"]["dollars"]
    # Most agents exit with 0 after a refusal, too.
    # Hermes may go on after its answer, to note what it learned.
    has_answered = any(turn["stop"] == "end" for turn in turns[-2:])
    finished = "yes" if not error and calls[-1]["outcome"] == "complete" and has_answered else "no"
    cells = [finished, len(turns), len(calls), len(refused), summaries["written"], len(waits), len(sessions), f"${cost:.2f}", f"{total['net']:+.2f}"]
    return " | ".join(str(cell) for cell in cells)


def play_twins(agent, processes):
    """How many sessions an agent's two runs at once are."""
    with SmallWindow("1000000", "") as stack, tempfile.TemporaryDirectory(prefix="plimsoll-pays-", ignore_cleanup_errors=True) as folder:
        listener = ExchangeEvents(stack)
        key, runs = dummy_key(), []
        for number in range(processes):
            home = pathlib.Path(folder) / str(number)
            home.mkdir()
            session = Session(agent(new_workspace(stack.proxy, home)), stack.proxy)
            session.key = key
            runs.append(session)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            errors = list(pool.map(lambda session: ask(session, PROMPT.format(TWIN_STEPS)), runs))
        time.sleep(3)
        sessions = collections.Counter(event["session"] for event in listener.events if event["purpose"] == "turn")
    return f"{len(sessions)} sessions, turns {sorted(sessions.values())} {''.join(errors)}"


def main(words):
    def chosen(all_names, default):
        named = [name for name in all_names if name in words]
        return named or default

    agents = [name for name in chosen(AGENTS, AGENTS) if name not in OPTIONAL or (workspaces.NPM_BIN / OPTIONAL[name]).exists()]
    if "twins" in words:
        for name in agents:
            print(f"| {name} | {play_twins(AGENTS[name], 2)} |", flush=True)
            if name in POOLED_TWINS:
                print(f"| {name}, one process | {play_twins(POOLED_TWINS[name], 1)} |", flush=True)
        return
    print("| agent | window | | finished | turns | calls | refused | summaries | waits | sessions | cost | net |\n|---|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in agents:
        for window in chosen(WINDOWS, WINDOWS[:1]):
            for way in chosen(WAYS, MAIN_WAYS):
                print(f"| {name} | {window} | {way} | {play(AGENTS[name], window, way)} |", flush=True)


if __name__ == "__main__":
    workspaces.TIMEOUT_S = TIMEOUT_S
    main(sys.argv[1:])
