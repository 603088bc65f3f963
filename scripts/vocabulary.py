#!/usr/bin/env python3
"""Makes core/src/tokens/data/*.bin.zst from the public vocabularies of OpenAI's tokenizers.

Usage: scripts/vocabulary.py FOLDER, where FOLDER holds `o200k_base.tiktoken` and `cl100k_base.tiktoken` as the crate
`tiktoken-rs` ships them in `assets/` (MIT; the vocabularies are OpenAI's, published with tiktoken under MIT).
Needs the Python package `zstandard`.

Each line of a source file is a token in base64 and its rank. Ranks have no gaps before the special tokens. The output
has the length of each token in one byte and then its bytes, in the order of ranks; a rank without a token has length 0.
"""
import base64
import pathlib
import sys

import zstandard

source = pathlib.Path(sys.argv[1])
target = pathlib.Path(__file__).resolve().parent.parent / "core/src/tokens/data"
for name in ("o200k", "cl100k"):
    ranks = {}
    for line in (source / f"{name}_base.tiktoken").read_text().splitlines():
        token, rank = line.split()
        ranks[int(rank)] = base64.b64decode(token)
    packed = bytearray()
    for rank in range(max(ranks) + 1):
        token = ranks.get(rank, b"")
        packed.append(len(token))
        packed += token
    (target / f"{name}.bin.zst").write_bytes(zstandard.ZstdCompressor(level=22).compress(bytes(packed)))
    print(name, len(ranks), "tokens,", len(packed), "bytes")
