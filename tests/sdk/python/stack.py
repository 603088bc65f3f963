"""Starts what the SDK tests need: a scripted provider, a real model server, and Plimsoll in front of both.

Each is a child process on a free loopback port. They are stopped when the `with` block ends.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = pathlib.Path(os.environ.get("PLIMSOLL_BINARY", ROOT / "target/debug/plimsoll"))
# Refuses what real providers refuse.
STRICT_PROVIDER = ROOT / "target/debug/examples/strict-provider"
# How long a response of the admin API may take, and a condition to become true.
TIMEOUT_S = 60


class TestStack:
    """A context manager. `slot_tokens`: the context size of a conversation with the real model; without it no model
    server is started. `env`: environment variables of the proxy. `strict`: the provider refuses what real ones refuse.
    `config`: the proxy's configuration.

    `provider`, `model`, `proxy` and `admin` are base URLs."""

    def __init__(self, slot_tokens=8192, env=(), strict=False, config=""):
        self.slot_tokens = slot_tokens
        self.env = dict(env)
        self.strict = strict
        self.config = config
        self.children = []
        self.data = tempfile.TemporaryDirectory(prefix="plimsoll-sdk-")

    def __enter__(self):
        provider = [STRICT_PROVIDER] if self.strict else [BINARY, "demo", "--provider"]
        self.provider = self.start([*provider, "127.0.0.1:0"], r"(http://\S+)")[0]
        upstreams = [f"anthropic={self.provider}", f"openai={self.provider}", f"gemini={self.provider}"]
        if self.slot_tokens:
            server = [sys.executable, ROOT / "tests/sdk/model_server.py", self.slot_tokens]
            self.model = self.start(server, r"model (http://\S+)")[0]
            upstreams.append(f"model={self.model}")
        config = pathlib.Path(self.data.name) / "plimsoll.toml"
        config.write_text(self.config)
        serve = [BINARY, "serve", "--config", config, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", self.data.name]
        for upstream in upstreams:
            serve += ["--upstream", upstream]
        ready = r"listening on (http://\S+) \(admin (http://[^)\s/]+)\)"
        self.proxy, self.admin = self.start(serve, ready, self.env)
        self.token = (pathlib.Path(self.data.name) / "admin.token").read_text().strip()
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            child.stdin.close()
            child.terminate()
        for child in self.children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.data.cleanup()

    def start(self, command, ready, env=()):
        """Starts a process, waits for a line that matches `ready`, and returns the groups of the match."""
        log = open(pathlib.Path(self.data.name) / f"{len(self.children)}.log", "w+")
        # Settings of this machine must not change the test.
        full_env = {name: value for name, value in os.environ.items() if not name.startswith(("PLIMSOLL_", "HTTP", "http"))}
        full_env |= dict(env)
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=full_env
        )
        self.children.append(child)
        for line in child.stdout:
            if match := re.search(ready, line):
                return match.groups()
        log.seek(0)
        raise SystemExit(f"{command[:2]} exited before it was ready:\n{log.read()}")

    def get(self, path, timeout=TIMEOUT_S):
        """The admin API's response to `path`."""
        request = urllib.request.Request(self.admin + path, headers={"authorization": f"Bearer {self.token}"})
        return urllib.request.urlopen(request, timeout=timeout)

    def get_json(self, path):
        """The JSON of the admin API's response to `path`."""
        with self.get(path) as response:
            return json.load(response)


def wait_for(what, condition):
    """Calls `condition` until it returns something true, and returns that. Fails after TIMEOUT_S."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out waiting for {what}")
        time.sleep(0.02)
    return result
