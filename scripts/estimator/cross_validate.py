#!/usr/bin/env python3
"""Cross-validation: whole estimates of sessions that were left out of the fit.

    plimsoll replay --pairs TRANSCRIPTS... > pairs.jsonl
    scripts/estimator/cross_validate.py pairs.jsonl PLIMSOLL TRANSCRIPTS... > left_out.jsonl
    scripts/estimator/tables.py left_out.jsonl

For each session of a family, costs are fitted on the other sessions (scripts/estimator/fit.py, with the spread of the
prior, too). The family's sessions are then replayed with these costs in the order of time, as live traffic comes, and
the pairs of this session are printed. Estimates include what Plimsoll learns from responses during the replay. Pairs
of families that are counted exactly are printed as they are. scripts/estimator/tables.py makes docs/accuracy.md's
tables of them.

Needs numpy, an optimised build of the program, and zstd for compressed transcripts.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from fit import FAMILIES, Calls, Choice

# The families that are estimated. The others are counted exactly.
ESTIMATED = ["claude", "claude_new", "gemini"]


class Recording:
    """A file of one session, and when its calls were made."""

    def __init__(self, path):
        unpack = ["zstd", "-dc"] if path.suffix == ".zst" else ["cat"]
        lines = subprocess.run([*unpack, path], check=True, stdout=subprocess.PIPE).stdout.splitlines()
        calls = [json.loads(line) for line in lines]
        self.path, self.session = path, calls[0]["session"]
        times = [str(call["ts"]) for call in calls]
        self.start, self.end = min(times), max(times)


def recordings(transcripts):
    paths = []
    for path in map(pathlib.Path, transcripts):
        paths += sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
    return [Recording(path) for path in paths]


def replay(program, files, costs):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(costs, file)
        file.flush()
        command = [program, "replay", "--pairs", "--costs", file.name, *[recording.path for recording in files]]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) for line in out.splitlines()]


def left_out(pairs, program, files, name):
    """The family's pairs, each estimated with costs that were fitted without its session."""
    family = FAMILIES[name]["family"]
    sessions = {pair["session"] for pair in pairs if pair["family"] == family}
    files = [file for file in files if file.session in sessions]
    choice = Choice(Calls(pairs, name))
    for file in files:
        # What was called after the session's end cannot have taught anything before.
        earlier = [other for other in files if other.start <= file.end]
        replayed = replay(program, earlier, {"family": family, **choice.costs(file.session)})
        print(f"{name}: {file.session}", file=sys.stderr, flush=True)
        yield from (pair for pair in replayed if pair["family"] == family and pair["session"] == file.session)


def main():
    program, files = sys.argv[2], recordings(sys.argv[3:])
    with open(sys.argv[1], encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    estimated = [FAMILIES[name]["family"] for name in ESTIMATED]
    for pair in pairs:
        if pair["family"] not in estimated:
            print(json.dumps(pair))
    for name in ESTIMATED:
        for pair in left_out(pairs, program, files, name):
            print(json.dumps(pair), flush=True)


main()
