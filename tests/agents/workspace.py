"""The home folder and the small project of an agent under test, without settings of this machine."""

import errno
import os
import pathlib
import signal
import struct
import subprocess
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENTS = pathlib.Path(os.environ.get("PLIMSOLL_NEWEST_AGENTS", ROOT / ".tools/agents"))
NPM_BIN = AGENTS / "node_modules/.bin"
# Some agents need a newer Node.js than machines have.
NODE_BIN = AGENTS / "node_modules/.node/bin"
PYTHON_BIN = AGENTS / "py/bin"
KEY = "sk-dummy-0000000000000000"
FIRST_PROMPT = "Look at this project: list the files, read README.md, check build.log, and say in one sentence what it does. Change nothing."
SECOND_PROMPT = "Look at README.md once more and say whether the last build passed."
# How long an agent may take for one prompt.
TIMEOUT_S = 150

README = "# wordcount\n\nPrints the most frequent words of a file: `python3 app.py FILE`. The last build's output is in build.log.\n"
APP = "import collections, re, sys\n\nwords = re.findall(r\"[a-z']+\", open(sys.argv[1]).read().lower())\nfor word, n in collections.Counter(words).most_common(10):\n    print(f'{n:6d} {word}')\n"


class Workspace:
    """The home folder and the project of one agent, and the base URL that it sends requests to."""

    def __init__(self, base, folder):
        self.base = base
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

    def write_picture(self, name, width=300, height=200):
        """Writes a PNG of random pixels into the project: about three bytes each. Returns its name."""
        rows = b"".join(b"\0" + os.urandom(width * 3) for _ in range(height))
        (self.project / name).write_bytes(png(width, height, rows))
        return name

    def run(self, *command, stdin="", **env):
        """Runs a command in the project, which must succeed."""
        done = self.run_unchecked(*command, stdin=stdin, **env)
        assert done.returncode == 0, f"{command[:3]} exited with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def run_unchecked(self, *command, stdin="", **env):
        """Runs a command in the project, which may fail."""
        return subprocess.run(
            [str(word) for word in command], cwd=self.project, env=self.environment(env), input=stdin,
            capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
        )

    def run_and_kill(self, *command, stdin="", **env):
        """Runs a command until it reads README.md, then kills it. README.md is a named pipe, so reading it blocks."""
        readme = self.project / "README.md"
        readme.unlink()
        os.mkfifo(readme)
        child = subprocess.Popen(
            [str(word) for word in command], cwd=self.project, env=self.environment(env),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        child.stdin.write(stdin.encode())
        child.stdin.close()
        pipe = open_when_read(readme, child)
        # Time for the agent to store that it called the tool.
        time.sleep(2)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(pipe)
        readme.unlink()
        readme.write_text(README)

    def environment(self, env):
        inherited = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        inherited["PATH"] = f"{NODE_BIN}:{inherited['PATH']}" if NODE_BIN.exists() else inherited["PATH"]
        return inherited | {"HOME": str(self.home), "CI": "1", "NO_COLOR": "1"} | {name: str(value) for name, value in env.items()}


def open_when_read(pipe, child):
    """Waits until a process reads a named pipe, and returns the writing end."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and child.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        time.sleep(0.05)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    raise AssertionError("the agent did not read README.md")


def png(width, height, rows):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
