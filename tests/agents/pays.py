"""What rewriting costs and saves with real agents: each does a task of 36 steps in windows of several sizes, directly (the
proxy only observes), under the default policy, and with cuts alone. Prints the table of docs/rewriting.md.

`pays.py [AGENT|WINDOW…]` runs only these. The provider is scripted: in every step the model reads lines of a log; its
counts, caches and overflows are those of the strict provider. Costs are those of `plimsoll savings`.
"""

import json
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "sdk/python"))

from agent_commands import ClaudeCode, Codex, Gemini, Opencode, Session  # noqa: E402
from exchange_events import ExchangeEvents  # noqa: E402
from stack import TestStack  # noqa: E402
import workspace as workspaces  # noqa: E402

AGENTS = {"opencode": Opencode, "gemini-cli": Gemini, "codex": Codex, "claude-code": ClaudeCode}
WINDOWS = ["60000", "80000", "200000", "1000000"]
STEPS = 36
PROMPT = f"Look at build.log in {STEPS} steps, 40 lines each time, and say in one sentence what went wrong. Change nothing."
WAYS = {"direct": 'mode = "observe"\n', "default": "", "cuts only": '[compact]\nengine = "off"\n'}
LINE = "[INFO] step {}/4000: " + "lexer, report and config were checked, all of it passed, on to the next; " * 4 + "{} ms\n"
# How long an agent may take for its task.
TIMEOUT_S = 400


class SmallWindow(TestStack):
    """A provider with a window of so many tokens, and Plimsoll with this configuration in front of it."""

    def __init__(self, window, config):
        super().__init__(slot_tokens=None)
        self.window, self.config = window, config

    def start(self, command, ready, env=()):
        if "--provider" in command:
            command = [*command, "--window", self.window]
        else:
            file = pathlib.Path(self.data.name) / "plimsoll.toml"
            file.write_text(self.config)
            command = [*command, "--config", file]
        return super().start(command, ready, env)


def play(agent, window, way):
    """The table's cells for one run, and what it cost in dollars."""
    config = f'{WAYS[way]}[model."{agent.model}"]\nwindow_tokens = {window}\n'
    with SmallWindow(window, config) as stack, tempfile.TemporaryDirectory(prefix="plimsoll-pays-", ignore_cleanup_errors=True) as folder:
        listener = ExchangeEvents(stack)
        workspace = workspaces.Workspace(stack.proxy, folder)
        log = "".join(LINE.format(n, n * 37 % 1000) for n in range(4000))
        (workspace.project / "build.log").write_text(log)
        done = Session(agent(workspace), workspace.base).ask(PROMPT)
        # The last exchange may be recorded a little later.
        time.sleep(3)
        turns = [event for event in listener.events if event["purpose"] == "turn" and event["outcome"] == "complete"]
        waits = [event for event in listener.events if event.get("compaction_wait_us")]
        total = json.load(stack.get("/api/v1/savings"))["total"]
    summaries, cost = total["summaries"], total["money"]["spent"] + total["summaries"]["dollars"]
    finished = "yes" if done.returncode == 0 and len(turns) >= STEPS else "no"
    return f"{finished} | {len(turns)} | {len(listener.events)} | {summaries['written']} | {len(waits)} | ${cost:.2f} | {total['net']:+.2f}"


def main(words):
    print("| agent | window | | finished | turns | calls | summaries | waits | cost | net |\n|---|--:|---|---|--:|--:|--:|--:|--:|--:|", flush=True)
    for name, agent in AGENTS.items():
        is_wanted = not set(words) & set(AGENTS) or name in words
        if not is_wanted or name == "claude-code" and not (workspaces.NPM_BIN / "claude").exists():
            continue
        for window in [window for window in WINDOWS if not set(words) & set(WINDOWS) or window in words]:
            for way in WAYS:
                print(f"| {name} | {window} | {way} | {play(agent, window, way)} |", flush=True)


if __name__ == "__main__":
    workspaces.TIMEOUT_S = TIMEOUT_S
    main(sys.argv[1:])
