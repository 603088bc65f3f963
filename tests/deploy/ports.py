"""Ports for servers that cannot choose one themselves."""

import random
import socket

# Below those that the system gives to connections: another check's client could have one of those before its server starts.
BELOW_CONNECTIONS = range(20_000, 32_000)

_given = set()


def free_port():
    while True:
        port = random.choice(BELOW_CONNECTIONS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port
