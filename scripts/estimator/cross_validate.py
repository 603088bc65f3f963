#!/usr/bin/env python3
"""How wrong whole estimates are on sessions that the fit left out.

    plimsoll replay --pairs TRANSCRIPTS... > pairs.jsonl
    scripts/estimator/left_out.py pairs.jsonl PLIMSOLL TRANSCRIPTS...

For each session of a family its costs are fitted on the others alone (scripts/estimator/fit.py, the prior's
spread too), and all sessions of the family are played with them, in the order of time, as live traffic is; of that
only the session itself is scored. What answers teach while it goes on is part of the estimate. Beside it
stands what the program says with the costs that it has.

Needs numpy, and the program built for speed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from fit import FAMILIES, Choice, calls

# Whoever counts exactly has nothing to fit.
MEASURED = ["claude", "claude_new", "gemini"]


def play(program, transcripts, costs=None):
    given = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        if costs is not None:
            json.dump(costs, file)
            file.flush()
            given = ["--costs", file.name]
        command = [program, "replay", "--pairs", *given, *transcripts]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) for line in out.splitlines()]


def files_of(transcripts, sessions):
    """The files that hold one of the sessions: what others teach is of other models."""
    found = []
    for path in map(pathlib.Path, transcripts):
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            with open(file, encoding="utf-8") as lines:
                if json.loads(next(lines))["session"] in sessions:
                    found.append(str(file))
    return found


def tell(name, pairs):
    off = np.array([pair["tokens"] - pair["actual"] for pair in pairs])
    whole = np.array([pair["actual"] for pair in pairs])
    new = np.array([pair["actual"] - pair["tokens"] + pair["new"] for pair in pairs])
    held = np.mean([pair["low"] <= pair["actual"] <= pair["high"] for pair in pairs])
    large = new > 100
    of_whole, of_new = np.abs(off) * 100 / whole, off[large] * 100 / new[large]
    median, tail, most = np.percentile(of_whole, [50, 95, 99])
    part, worst = np.percentile(np.abs(of_new), [50, 95])
    print(
        f"{name}: {len(pairs)} calls; median {median:.4f} %, p95 {tail:.3f} %, p99 {most:.2f} %; new part "
        f"{part:.2f} % / {worst:.1f} % (signed {np.median(of_new):+.2f} %); in their band {held * 100:.0f} %",
        flush=True,
    )


def tell_both(name, pairs):
    tell(name, [pair for pair in pairs if pair["visible"]])
    tell(f"{name}, with proven hidden input", pairs)


def main():
    program, transcripts = sys.argv[2], sys.argv[3:]
    with open(sys.argv[1], encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    for family in MEASURED:
        of, found = FAMILIES[family]["of"], calls(pairs, family)
        # Calls of proven hidden input (`excess`) teach the fit nothing, and are scored apart.
        is_scored = lambda pair: pair["visible"] or pair["excess"] is not None
        is_its = lambda pair: pair["family"] == of and is_scored(pair)
        sessions = sorted({pair["session"] for pair in pairs if is_its(pair)})
        files = files_of(transcripts, sessions)
        tell_both(f"{of}, as it is", [pair for pair in play(program, files) if is_its(pair)])
        choice, scored = Choice(found, FAMILIES[family]["start"]), []
        for session in sessions:
            costs = {"family": of, "costs": choice.costs(session).tolist()}
            played = play(program, files, costs)
            scored += [pair for pair in played if is_its(pair) and pair["session"] == session]
        tell_both(f"{of}, left out", scored)


main()
