"""Stands before the provider and passes everything on: the status of each answer to a POST."""

import http.client
import http.server
import threading
import urllib.parse


class Witness:
    """A context: listens on a loopback port of its own, `url`."""

    def __init__(self, base):
        self.base = urllib.parse.urlsplit(base)
        self.seen = []

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("To", (Passing,), {"witness": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def take(self):
        """The statuses since the last time."""
        seen, self.seen = self.seen, []
        return seen


class Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    witness = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        base = self.witness.base
        onward = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
        dropped = ("host", "connection", "accept-encoding")
        onward.request(self.command, self.path, body, {name: value for name, value in self.headers.items() if name.lower() not in dropped})
        answer = onward.getresponse()
        whole = answer.read()
        onward.close()
        if self.command == "POST":
            self.witness.seen.append(answer.status)
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(whole)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(whole)

    do_GET = do_HEAD = do_POST

    def log_message(self, *_):
        pass
