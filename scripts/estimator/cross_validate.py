#!/usr/bin/env python3
"""Cross-validation: the error of whole estimates on sessions that were left out of the fit.

    plimsoll replay --pairs TRANSCRIPTS... > pairs.jsonl
    scripts/estimator/cross_validate.py pairs.jsonl PLIMSOLL TRANSCRIPTS...

For each session of a family, costs are fitted on the other sessions (scripts/estimator/fit.py, with the spread of the
prior, too). All sessions of the family are then replayed with these costs in the order of time, as live traffic comes,
and the errors of this session are counted. Estimates include what Plimsoll learns from responses during the replay. For
comparison, the errors with the costs that are built into the program are printed, too.

Needs numpy, and a release build of the program.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from fit import FAMILIES, Calls, Choice

# The families that are estimated. The others are counted exactly.
ESTIMATED = ["claude", "claude_new", "gemini"]


def replay(program, transcripts, costs=None):
    costs_args = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        if costs is not None:
            json.dump(costs, file)
            file.flush()
            costs_args = ["--costs", file.name]
        command = [program, "replay", "--pairs", *costs_args, *transcripts]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) for line in out.splitlines()]


def files_of(transcripts, sessions):
    """The files that have one of the sessions. The other files are of other models."""
    found = []
    for path in map(pathlib.Path, transcripts):
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            with open(file, encoding="utf-8") as lines:
                if json.loads(next(lines))["session"] in sessions:
                    found.append(str(file))
    return found


def report(name, pairs):
    error = np.array([pair["tokens"] - pair["actual"] for pair in pairs])
    actual = np.array([pair["actual"] for pair in pairs])
    new = np.array([pair["actual"] - pair["tokens"] + pair["new"] for pair in pairs])
    in_band = np.mean([pair["low"] <= pair["actual"] <= pair["high"] for pair in pairs])
    large = new > 100
    percent, percent_of_new = np.abs(error) * 100 / actual, error[large] * 100 / new[large]
    p50, p95, p99 = np.percentile(percent, [50, 95, 99])
    new_p50, new_p95 = np.percentile(np.abs(percent_of_new), [50, 95])
    print(
        f"{name}: {len(pairs)} calls; median {p50:.4f} %, p95 {p95:.3f} %, p99 {p99:.2f} %; new part "
        f"{new_p50:.2f} % / {new_p95:.1f} % (signed {np.median(percent_of_new):+.2f} %); in their band {in_band * 100:.0f} %",
        flush=True,
    )


def report_both(name, pairs):
    report(name, [pair for pair in pairs if pair["visible"]])
    report(f"{name}, with proven hidden input", pairs)


def main():
    program, transcripts = sys.argv[2], sys.argv[3:]
    with open(sys.argv[1], encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    for name in ESTIMATED:
        family = FAMILIES[name]["family"]
        # Calls with proven hidden input (`excess`) are not used in the fit, and are reported separately.
        is_counted = lambda pair: pair["family"] == family and (pair["visible"] or pair["excess"] is not None)
        sessions = sorted({pair["session"] for pair in pairs if is_counted(pair)})
        files = files_of(transcripts, sessions)
        report_both(f"{family}, built-in costs", [pair for pair in replay(program, files) if is_counted(pair)])
        choice, counted = Choice(Calls(pairs, name)), []
        for session in sessions:
            replayed = replay(program, files, {"family": family, **choice.costs(session)})
            counted += [pair for pair in replayed if is_counted(pair) and pair["session"] == session]
        report_both(f"{family}, left out", counted)


main()
