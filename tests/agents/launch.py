"""Agents under `plimsoll run`, with the keys of a user and nothing else that points them: each does a task against the scripted
provider, and the summary says that its calls came through. Files of the user's stay as they were.

`launch.py [AGENT…]` runs the named ones. Those that are not installed are left out.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "sdk/python"))

from stack import BINARY  # noqa: E402
from workspace import FIRST_PROMPT, KEY, NPM_BIN, PYTHON_BIN, Workspace  # noqa: E402

KEYS = {name: KEY for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY")}
CLAUDE = "claude-sonnet-4-6"
CLINE_PROVIDER = {"settings": {"provider": "anthropic", "apiKey": KEY, "model": CLAUDE}, "updatedAt": "2026-11-27T00:00:00.000Z", "tokenSource": "manual"}
GEMINI = {"security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}, "privacy": {"usageStatisticsEnabled": False}}
KIMI = f'default_model = "local"\n[providers.local]\ntype = "anthropic"\napi_key = "{KEY}"\n[models.local]\nprovider = "local"\nmodel = "{CLAUDE}"\nmax_context_size = 200000\n'
AIDER = ("--yes-always", "--no-auto-commits", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--no-analytics", "--no-gitignore", "--no-git")

# Name, command, and the user's own files.
AGENTS = [
    ("codex", [NPM_BIN / "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "gpt-5.5", FIRST_PROMPT], {}),
    ("gemini-cli", [NPM_BIN / "gemini", "--yolo", "-m", "gemini-2.5-pro", "-p", FIRST_PROMPT], {".gemini/settings.json": json.dumps(GEMINI)}),
    ("opencode-anthropic", [NPM_BIN / "opencode", "run", "-m", f"anthropic/{CLAUDE}", FIRST_PROMPT], {}),
    ("opencode-google", [NPM_BIN / "opencode", "run", "-m", "google/gemini-2.5-pro", FIRST_PROMPT], {}),
    ("qwen-code", [NPM_BIN / "qwen", "--yolo", "--auth-type", "openai", "-m", "gpt-4.1", "-p", FIRST_PROMPT], {}),
    ("pi-anthropic", [NPM_BIN / "pi", "--offline", "--provider", "anthropic", "--model", CLAUDE, "-p", FIRST_PROMPT], {".pi/agent/models.json": '{ "providers": {} }'}),
    ("pi-openai", [NPM_BIN / "pi", "--offline", "--provider", "openai", "--model", "gpt-5.5", "-p", FIRST_PROMPT], {}),
    ("pi-google", [NPM_BIN / "pi", "--offline", "--provider", "google", "--model", "gemini-2.5-pro", "-p", FIRST_PROMPT], {}),
    ("cline", [NPM_BIN / "cline", "-P", "anthropic", "-m", CLAUDE, "--json", FIRST_PROMPT], {".cline/data/settings/providers.json": json.dumps({"version": 1, "lastUsedProvider": "anthropic", "modes": {}, "providers": {"anthropic": CLINE_PROVIDER}})}),
    ("kimi-code", [NPM_BIN / "kimi", "-p", FIRST_PROMPT], {".kimi-code/config.toml": KIMI}),
    ("aider", [PYTHON_BIN / "aider", "--model", "openai/gpt-4.1", *AIDER, "--message", FIRST_PROMPT, "README.md"], {}),
    ("mini-swe-agent", [PYTHON_BIN / "mini", "-y", "--exit-immediately", "-m", f"anthropic/{CLAUDE}", "-t", FIRST_PROMPT, "-o", "/dev/null"], {}),
]
ENV = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}


def launch(provider, command, files):
    """Runs an agent. Returns what the summary says."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-launch-", ignore_cleanup_errors=True) as folder:
        workspace = Workspace("", folder)
        for path, text in files.items():
            workspace.write(path, text)
        upstreams = [word for name in ("anthropic", "openai", "gemini") for word in ("--upstream", f"{name}={provider}")]
        options = ["--data", workspace.home / "data", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json"]
        done = workspace.run_unchecked(BINARY, "run", *options, *upstreams, "--", *command, **KEYS, **ENV)
        assert done.returncode == 0, f"exited with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        changed = [path for path, text in files.items() if said((workspace.home / path).read_text()) != said(text)]
        assert not changed, f"changed: {changed}"
        return json.loads(done.stderr.splitlines()[-1])


def said(text):
    """What a file says. Cline writes its own again, in another form and with the time, also without us."""
    try:
        return json.loads(text, object_hook=lambda members: {name: value for name, value in members.items() if name != "updatedAt"})
    except ValueError:
        return text


def main(names):
    provider = subprocess.Popen([BINARY, "demo", "--provider", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    failures = 0
    try:
        base = re.search(r"(http://\S+)", provider.stdout.readline())[0]
        for name, command, files in AGENTS:
            if not command[0].exists() or names and not any(name.startswith(one) for one in names):
                continue
            try:
                summary = launch(base, command, files)
                assert summary["calls"] > 0, "nothing came through"
                print(f"ok {name}: {summary['calls']} calls", flush=True)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failures += 1
                print(f"FAILED {name}: {error}", flush=True)
    finally:
        provider.kill()
    return 1 if failures else 0


sys.exit(main(sys.argv[1:]))
