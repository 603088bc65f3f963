"""Replaces a fleet of real processes under load, three times, as a rollout does: a new replica is ready before an old one
leaves the Service, and an old one gets SIGTERM a moment after that (preStop). No client may see an error.
"""

import asyncio
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

from charts import ROOT

BINARY = pathlib.Path(os.environ.get("PLIMSOLL_BINARY", ROOT / "target/debug/plimsoll"))
REPLICAS = 2
ROLLOUTS = 3
CLIENTS = 6
# preStop.sleep of the chart, made shorter: the front forgets a replica at once.
PRE_STOP_S = 0.3
TIMEOUT_S = 60


class Front:
    """What a Service is: each connection goes to the next replica, and stays there."""

    def __init__(self):
        self.replicas = []
        self.taken = 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self.accept, "127.0.0.1", 0), self.loop).result()
        self.port = self.server.sockets[0].getsockname()[1]

    async def accept(self, reader, writer):
        port = self.replicas[self.taken % len(self.replicas)]
        self.taken += 1
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self.copy(reader, to_writer), self.copy(to_reader, writer))

    async def copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def close(self):
        self.loop.call_soon_threadsafe(self.server.close)


class Replica:
    def __init__(self, provider, folder):
        env = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
        command = [BINARY, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", folder, "--upstream", f"anthropic={provider}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
        line = self.process.stdout.readline()
        self.port, self.admin = (int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", line))
        deadline = time.monotonic() + TIMEOUT_S
        while not self.is_ready():
            assert time.monotonic() < deadline, "a replica did not become ready"
            time.sleep(0.05)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == 0, "a replica did not drain"


class Client(threading.Thread):
    """One request after the other, each sent once, over a connection that is kept, or over a new one for each."""

    def __init__(self, port, keeps, stop):
        super().__init__(daemon=True)
        self.port, self.keeps, self.stop = port, keeps, stop
        self.replies, self.errors = 0, []
        self.connection = None

    def run(self):
        while not self.stop.is_set():
            try:
                self.ask()
                self.replies += 1
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.errors.append(repr(error))
                self.connection = None
            if not self.keeps:
                self.connection = None

    def ask(self):
        if not self.connection:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        body = {"model": "claude-sonnet-4-6", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": f"Say {time.monotonic()}"}]}
        headers = {"content-type": "application/json", "x-api-key": "none", "anthropic-version": "2023-06-01"}
        self.connection.request("POST", "/v1/messages", json.dumps(body), headers)
        response = self.connection.getresponse()
        text = response.read().decode()
        assert response.status == 200 and "message_stop" in text, f"{response.status}: {text[-200:]}"


def rollouts_lose_no_request():
    provider = subprocess.Popen([BINARY, "demo", "--provider", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    replicas, front, stop = [], Front(), threading.Event()
    try:
        base = next(found[0] for line in provider.stdout if (found := re.search(r"http://\S+", line)))
        with tempfile.TemporaryDirectory(prefix="plimsoll-roll-") as folder:
            def start():
                replicas.append(Replica(base, f"{folder}/{time.monotonic_ns()}"))
                front.replicas.append(replicas[-1].port)

            for _ in range(REPLICAS):
                start()
            clients = [Client(front.port, number % 2 == 0, stop) for number in range(CLIENTS)]
            for client in clients:
                client.start()
            for _ in range(ROLLOUTS * REPLICAS):
                before = sum(client.replies for client in clients)
                start()
                front.replicas.pop(0)
                time.sleep(PRE_STOP_S)
                replicas.pop(0).stop()
                deadline = time.monotonic() + TIMEOUT_S
                while sum(client.replies for client in clients) < before + CLIENTS:
                    assert time.monotonic() < deadline, "no replies any more"
                    time.sleep(0.02)
            stop.set()
            for client in clients:
                client.join(TIMEOUT_S)
            errors = [error for client in clients for error in client.errors]
            replies = sum(client.replies for client in clients)
            assert not errors, f"{len(errors)} of {replies + len(errors)} requests failed: {errors[:5]}"
            for replica in replicas:
                replica.stop()
            replicas.clear()
    finally:
        stop.set()
        front.close()
        for process in [provider, *(replica.process for replica in replicas)]:
            process.kill()
            process.wait()
    return replies


CHECKS = (rollouts_lose_no_request,)
