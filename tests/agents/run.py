"""Open-source coding agents, as they are installed from npm and PyPI, through the proxy: each does a
short task with tools against the scripted provider, then continues it. Dummy keys, loopback only.
Some also show it a picture that it refuses: the session goes on.

`run.py [NAME…]` runs the named ones. For each: the agent ends well, every exchange has an ending, the
task and its continuation are one thread, and its calls were estimated from the call before, and well.
"""

import collections
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/sdk/python"))

import poisoned  # noqa: E402
from house import House  # noqa: E402
from known import WITHIN, Told  # noqa: E402

AGENTS = ROOT / ".tools/agents"
NPM = AGENTS / "node_modules/.bin"
PYTHON = AGENTS / "py/bin"
KEY = "sk-dummy-0000000000000000"
FIRST = "Look at this project: list the files, read README.md, check build.log, and say in one sentence what it does. Change nothing."
THEN = "Look at README.md once more and say whether the last build passed."
# An agent that takes longer than this for one prompt has failed.
PATIENCE_S = 150

README = "# wordcount\n\nPrints the most frequent words of a file: `python3 app.py FILE`. The last build's output is in build.log.\n"
APP = "import collections, re, sys\n\nwords = re.findall(r\"[a-z']+\", open(sys.argv[1]).read().lower())\nfor word, n in collections.Counter(words).most_common(10):\n    print(f'{n:6d} {word}')\n"


class Place:
    """A home and a project for one agent, and what it is told of the proxy."""

    def __init__(self, house, folder):
        self.house = house
        self.home = pathlib.Path(folder)
        self.project = self.home / "project"
        self.project.mkdir()
        (self.project / "README.md").write_text(README)
        (self.project / "app.py").write_text(APP)
        log = (f"[INFO] build.{'lexer report config'.split()[n % 3]}: step {n}/400 done in {n * 37 % 1000} ms\n" for n in range(400))
        (self.project / "build.log").write_text("".join(log))
        self.run("git", "init", "-q", "-b", "main", ".")

    def write(self, path, text):
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, *command, **env):
        """Runs a command in the project; fails where it does."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        env = kept | {"HOME": str(self.home), "CI": "1", "NO_COLOR": "1"} | {name: str(value) for name, value in env.items()}
        done = subprocess.run(
            [str(word) for word in command], cwd=self.project, env=env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{command[:3]} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr


def codex(place, config, **env):
    place.write(".codex/config.toml", f'model = "gpt-5.5"\n{config}\n[projects."{place.project}"]\ntrust_level = "trusted"\n')
    flags = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
    place.run(NPM / "codex", "exec", *flags, FIRST, **env)
    place.run(NPM / "codex", "exec", *flags, "resume", "--last", THEN, **env)


def picture(place):
    """One of noise: too large for a strict provider."""
    width, height = 300, 200
    rows = b"".join(b"\0" + os.urandom(width * 3) for _ in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (place.project / "shot.png").write_bytes(file)


def codex_picture(place):
    picture(place)
    provider = f'[model_providers.local]\nname = "local"\nbase_url = "{place.house.proxy}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"'
    place.write(".codex/config.toml", f'model = "gpt-5.5"\nmodel_provider = "local"\n{provider}\n[projects."{place.project}"]\ntrust_level = "trusted"\n')
    flags = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
    place.run(NPM / "codex", "exec", *flags, "-i", "shot.png", "--", FIRST, LOCAL_KEY=KEY)
    place.run(NPM / "codex", "exec", *flags, "resume", "--last", THEN, LOCAL_KEY=KEY)


def opencode_picture(place):
    picture(place)
    model = "claude-sonnet-4-6"
    place.write(".config/opencode/opencode.json", '{"autoupdate":false,"share":"disabled","permission":{"bash":"allow","edit":"allow"},"provider":{"anthropic":{"models":{"%s":{"name":"Demo","attachment":true,"tool_call":true,"modalities":{"input":["text","image"],"output":["text"]},"limit":{"context":200000,"output":32000}}},"options":{"baseURL":"%s/v1","apiKey":"%s"}}}}' % (model, place.house.proxy, KEY))
    place.run(NPM / "opencode", "run", "-m", f"anthropic/{model}", FIRST, "-f", "shot.png")
    place.run(NPM / "opencode", "run", "-c", "-m", f"anthropic/{model}", THEN)


def gemini_picture(place):
    picture(place)
    place.write(".gemini/settings.json", '{"security":{"auth":{"selectedType":"gemini-api-key"},"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},"general":{"disableAutoUpdate":true}}')
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": place.house.proxy}
    place.run(NPM / "gemini", "--yolo", "-p", f"{FIRST} Look at @shot.png too.", **env)
    place.run(NPM / "gemini", "--yolo", "--resume", "latest", "-p", THEN, **env)


def codex_http(place):
    provider = f'[model_providers.local]\nname = "local"\nbase_url = "{place.house.proxy}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"'
    codex(place, f'model_provider = "local"\n{provider}', LOCAL_KEY=KEY)


def codex_websocket(place):
    codex(place, f'openai_base_url = "{place.house.proxy}/v1"', CODEX_API_KEY=KEY, OPENAI_API_KEY=KEY)


def gemini_cli(place):
    place.write(".gemini/settings.json", '{"security":{"auth":{"selectedType":"gemini-api-key"},"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},"general":{"disableAutoUpdate":true}}')
    env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": place.house.proxy}
    place.run(NPM / "gemini", "--yolo", "-p", FIRST, **env)
    place.run(NPM / "gemini", "--yolo", "--resume", "latest", "-p", THEN, **env)


def opencode(place, provider, model, options):
    place.write(".config/opencode/opencode.json", '{"autoupdate":false,"share":"disabled","permission":{"bash":"allow","edit":"allow"},"provider":{"%s":{"models":{"%s":{"name":"Demo","reasoning":true,"tool_call":true,"limit":{"context":200000,"output":32000}}},"options":{"baseURL":"%s","apiKey":"%s"}}}}' % (provider, model, options, KEY))
    place.run(NPM / "opencode", "run", "-m", f"{provider}/{model}", FIRST)
    place.run(NPM / "opencode", "run", "-c", "-m", f"{provider}/{model}", THEN)


def opencode_anthropic(place):
    opencode(place, "anthropic", "claude-sonnet-4-6", f"{place.house.proxy}/v1")


def opencode_openai(place):
    opencode(place, "openai", "gpt-5.5", f"{place.house.proxy}/v1")


def aider(place):
    flags = ("--yes-always", "--no-auto-commits", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--no-analytics", "--no-gitignore", "--no-git")
    env = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": f"{place.house.proxy}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    place.run(PYTHON / "aider", "--model", "openai/gpt-4.1", *flags, "--message", FIRST, "README.md", "app.py", **env)
    place.run(PYTHON / "aider", "--restore-chat-history", "--model", "openai/gpt-4.1", *flags, "--message", THEN, "README.md", "app.py", **env)


def mini_swe_agent(place):
    env = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1", "ANTHROPIC_API_KEY": KEY,
           "ANTHROPIC_API_BASE": place.house.proxy, "ANTHROPIC_BASE_URL": place.house.proxy, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    place.run(PYTHON / "mini", "-y", "--exit-immediately", "-m", "anthropic/claude-sonnet-4-6", "-t", FIRST, "-o", place.home / "trajectory.json", **env)


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
]


# A strict provider refuses the picture that each is shown. Direct, every later prompt of the session is refused, too.
STRUCK = [("codex-picture", codex_picture), ("opencode-picture", opencode_picture), ("gemini-picture", gemini_picture)]


def lives(name, events):
    """All turns were answered, and the picture was refused once."""
    task = [event for event in events if event["purpose"] == "turn"]
    healed = [event["refusal"]["causes"] for event in task if event.get("refusal")]
    print(f"   {name}: {len(task)} calls, healed {healed}", flush=True)
    assert task and all(event["outcome"] == "complete" for event in task), task
    assert sum("media" in causes for causes in healed) == 1, healed


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
        within = max(40, event["actual"] * WITHIN[event["estimate"]["counting"]])
        assert abs(event["error"]) <= within, f"{event['estimate']} of {event['actual']}"


def played(house, name, agent, judge):
    """Runs an agent, and judges what was told of it; says whether it passed."""
    told = Told(house)
    try:
        with tempfile.TemporaryDirectory(prefix=f"plimsoll-{name}-", ignore_cleanup_errors=True) as folder:
            agent(Place(house, folder))
        judge(settled(told))
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    return True


def main(names):
    def wanted(name):
        return not names or name in names

    results = []
    with House(slot=None) as house:
        for name, agent, calls, beside in filter(lambda run: wanted(run[0]), RUNS):
            results.append(played(house, name, agent, lambda events: check(name, events, calls, beside)))
    with House(slot=None, settings=poisoned.PATIENT, strict=True) as house:
        for name, agent in filter(lambda run: wanted(run[0]), STRUCK):
            results.append(played(house, name, agent, lambda events: lives(name, events)))
    print(f"agents: {sum(results)} passed, {len(results) - sum(results)} failed", flush=True)
    return 0 if all(results) else 1


sys.exit(main(sys.argv[1:]))
