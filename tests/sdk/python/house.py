"""What the SDK tests stand in: a scripted provider, a real model server, and Plimsoll before both.

Everything is a child process on a free loopback port and ends with this one.
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
# How long a process may take to say where it listens, or a turn to be told of.
PATIENCE_S = 60


class House:
    """A context: processes live inside it. `slot`: tokens that a conversation with the real model
    may fill, none without that model; `settings`: environment of the proxy; `strict`: the provider refuses
    what real ones refuse."""

    def __init__(self, slot=8192, settings=(), strict=False):
        self.slot = slot
        self.settings = dict(settings)
        self.strict = ["--strict"] if strict else []
        self.children = []
        self.data = tempfile.TemporaryDirectory(prefix="plimsoll-sdk-")

    def __enter__(self):
        provider = [BINARY, "demo", "--provider", "127.0.0.1:0", *self.strict]
        self.provider = self.start(provider, r"(http://\S+)")[0]
        upstreams = [f"anthropic={self.provider}", f"openai={self.provider}", f"gemini={self.provider}"]
        if self.slot:
            server = [sys.executable, ROOT / "tests/sdk/model_server.py", self.slot]
            self.model = self.start(server, r"model (http://\S+)")[0]
            upstreams.append(f"model={self.model}")
        serve = [BINARY, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", self.data.name]
        for upstream in upstreams:
            serve += ["--upstream", upstream]
        # The link to the page carries the admin listener's token.
        ready = r"listening on (http://\S+) \(admin (http://[^)\s/]+)/#token=([\w-]+)\)"
        self.proxy, self.admin, self.token = self.start(serve, ready, self.settings)
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

    def start(self, command, ready, settings=()):
        """Starts a process and answers what its ready line says."""
        log = open(pathlib.Path(self.data.name) / f"{len(self.children)}.log", "w+")
        # Nothing of this machine's settings reaches the processes.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PLIMSOLL_", "HTTP", "http"))}
        env |= dict(settings)
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
        )
        self.children.append(child)
        for line in child.stdout:
            if found := re.search(ready, line):
                return found.groups()
        log.seek(0)
        raise SystemExit(f"{command[:2]} ended before it was ready:\n{log.read()}")

    def open(self, path, timeout=PATIENCE_S):
        """The admin API's response to `path`."""
        request = urllib.request.Request(self.admin + path, headers={"authorization": f"Bearer {self.token}"})
        return urllib.request.urlopen(request, timeout=timeout)

    def asked(self, path):
        """The admin API's answer to `path`."""
        with self.open(path) as response:
            return json.load(response)


def until(what, probe):
    """The first true answer of `probe`; fails when that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still not there: {what}")
        time.sleep(0.02)
    return answer
