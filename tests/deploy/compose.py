"""The compose file of a fleet, run with real processes: two replicas, Valkey and nginx with the file's own settings."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time

import yaml
from charts import ROOT
from ports import free_port

BINARY = pathlib.Path(os.environ.get("PLIMSOLL_BINARY", ROOT / "target/debug/plimsoll"))
FILE = ROOT / "deploy/compose-fleet.yaml"
VALKEY = ROOT / ".tools/fleet/valkey"
NGINX = ROOT / ".tools/nginx/usr/sbin/nginx"
REPLICAS = ("first", "second")
TURNS = 8
TIMEOUT_S = 60


def wait_for_port(port):
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")


def front_configuration(compose, ports, front, folder):
    """The file's nginx.conf, with ports of this machine for the names of services, and folders that it may write."""
    text = compose["configs"]["front"]["content"].replace("$$", "$")
    for name, port in ports.items():
        assert f"server {name}:8787;" in text, f"the front does not know {name}"
        text = text.replace(f"server {name}:8787;", f"server 127.0.0.1:{port};")
    text = text.replace("listen 8787;", f"listen 127.0.0.1:{front};")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    return "daemon off; " + text.replace("http {", f"http {{ access_log off; {paths}", 1)


def say(port, messages):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    body = {"model": "claude-sonnet-4-6", "max_tokens": 50, "stream": True, "messages": messages}
    headers = {"content-type": "application/json", "x-api-key": "none", "anthropic-version": "2023-06-01", "x-plimsoll-session": "through-the-front"}
    connection.request("POST", "/v1/messages", json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read().decode()
    assert response.status == 200 and "message_stop" in text, f"{response.status}: {text[-200:]}"


def wait_for_turns(folder, count):
    """A replica lists one session with so many turns. On a busy disk, the server takes them later."""
    deadline = time.monotonic() + TIMEOUT_S
    while (turns := turns_of(folder)) != [count]:
        assert time.monotonic() < deadline, f"{folder} lists sessions of {turns} turns, not one of {count}"
        time.sleep(0.1)


def turns_of(folder):
    """The number of turns of each session that a replica lists."""
    listed = subprocess.run([BINARY, "sessions", "--json", "--data", folder], check=True, capture_output=True, text=True, env={"HOME": folder})
    return [session["turns"] for session in json.loads(listed.stdout)["sessions"]]


def fleet_of_compose_is_hardened():
    services = yaml.safe_load(FILE.read_text())["services"]
    for name in REPLICAS:
        replica = services[name]
        assert replica["read_only"] and replica["cap_drop"] == ["ALL"], name
        assert "ports" not in replica, "clients come through the front"
        assert replica["healthcheck"]["test"] == ["CMD", "/plimsoll", "healthcheck"]
    assert "ports" not in services["valkey"], "the server is reachable from outside"
    assert all(port.startswith("127.0.0.1:") for port in services["front"]["ports"])


def fleet_of_compose_answers_at_any_replica():
    compose = yaml.safe_load(FILE.read_text())
    services = compose["services"]
    server, front = free_port(), free_port()
    ports = {name: free_port() for name in REPLICAS}
    processes = []
    with tempfile.TemporaryDirectory(prefix="plimsoll-compose-") as folder:
        os.chmod(folder, 0o755)
        try:
            def start(command, **options):
                processes.append(subprocess.Popen([str(word) for word in command], **options))
                return processes[-1]

            provider = start([BINARY, "demo", "--provider", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            base = next(found[0] for line in provider.stdout if (found := re.search(r"http://\S+", line)))
            start([VALKEY / "valkey-server", *services["valkey"]["command"][1:], "--bind", "127.0.0.1", "--port", server, "--dir", folder],
                  env={"LD_LIBRARY_PATH": str(VALKEY)}, stdout=subprocess.DEVNULL)
            wait_for_port(server)
            for name in REPLICAS:
                settings = dict(services[name]["environment"])
                assert settings.pop("PLIMSOLL_STORE_SECRET").startswith("${PLIMSOLL_STORE_SECRET:?")
                assert settings.pop("PLIMSOLL_STORE_URL") == "redis://valkey"
                assert settings.pop("PLIMSOLL_WAREHOUSE") is None, "whoever starts it may name one"
                settings |= {"HOME": folder, "PLIMSOLL_STORE_URL": f"redis://127.0.0.1:{server}", "PLIMSOLL_STORE_SECRET": "a secret of this test"}
                start([BINARY, "serve", "--listen", f"127.0.0.1:{ports[name]}", "--admin", "127.0.0.1:0", "--data", f"{folder}/{name}",
                       "--upstream", f"anthropic={base}"], env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                wait_for_port(ports[name])
            configuration = pathlib.Path(folder, "nginx.conf")
            configuration.write_text(front_configuration(compose, ports, front, folder))
            start([NGINX, "-c", configuration, "-e", "stderr", "-g", f"pid {folder}/nginx.pid;"], stderr=subprocess.DEVNULL)
            wait_for_port(front)
            messages = []
            for turn in range(TURNS):
                messages += [{"role": "user", "content": f"Question {turn}"}]
                say(front, messages)
                messages += [{"role": "assistant", "content": "An answer."}]
            for name in REPLICAS:
                wait_for_turns(f"{folder}/{name}", TURNS)
            # One replica less: nobody notices.
            lost = processes[-2]
            lost.kill()
            lost.wait()
            for turn in range(TURNS, 2 * TURNS):
                messages += [{"role": "user", "content": f"Question {turn}"}]
                say(front, messages)
                messages += [{"role": "assistant", "content": "An answer."}]
            wait_for_turns(f"{folder}/first", 2 * TURNS)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(TIMEOUT_S)


CHECKS = (fleet_of_compose_is_hardened, fleet_of_compose_answers_at_any_replica)
