"""A proxy in front of the provider that records the status of each response to a POST."""

import http.client
import http.server
import threading
import urllib.parse


class RecordingProxy:
    """A context manager: listens on a free loopback port at `url` and forwards to `base`."""

    def __init__(self, base):
        self.base = urllib.parse.urlsplit(base)
        self.statuses = []

    def __enter__(self):
        handler = type("Handler", (ForwardingHandler,), {"proxy": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def take_statuses(self):
        """The statuses since the last call."""
        statuses, self.statuses = self.statuses, []
        return statuses


class ForwardingHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        base = self.proxy.base
        upstream = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
        dropped = ("host", "connection", "accept-encoding")
        upstream.request(self.command, self.path, body, {name: value for name, value in self.headers.items() if name.lower() not in dropped})
        response = upstream.getresponse()
        response_body = response.read()
        upstream.close()
        if self.command == "POST":
            self.proxy.statuses.append(response.status)
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(response_body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response_body)

    do_GET = do_HEAD = do_POST

    def log_message(self, *_):
        pass
