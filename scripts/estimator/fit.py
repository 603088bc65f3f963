#!/usr/bin/env python3
"""Fits what a token of each class costs with tokenizers that are not public: src/tokens/fitted.rs.

    plimsoll replay --pairs TRANSCRIPTS... > pairs.jsonl
    scripts/estimator/fit.py pairs.jsonl > src/tokens/fitted.rs

Each pair tells what the new text of a call looked like (tokens of o200k by class,
src/tokens/features.rs) and what it cost. Ridge regression towards one cost for all classes, with
Student-t weights, so that calls whose bytes the recording hides teach little; no session counts as more
than 150 calls. Each tokenizer generation is fitted on its own calls alone. What stands around text is
not fitted here: it is what src/tokens/estimate.rs says (STRUCTURE).

On standard error: how well it does on sessions that it was not fitted on (ten folds, by session).
Needs nothing but Python.
"""

import collections
import json
import math
import sys

CLASSES = 77
FOLDS = 10
MOST_OF_A_SESSION = 150
# No token costs less, whatever the data says: it would be noise.
LEAST = 0.1
# Rounds of weighing anew; what is least is held in the second half, when outliers weigh little.
ROUNDS = 10
# Pull towards one cost for all classes, in squared tokens of a class: more where there is less data.
FAMILIES = {
    "claude_new": {"start": 1.56, "pull": 0.3, "of": lambda p: p["family"] == "claude-new"},
    "claude": {"start": 1.15, "pull": 30.0, "of": lambda p: p["family"] == "claude"},
    "gemini": {"start": 1.16, "pull": 1.0, "of": lambda p: p["family"] == "gemini"},
}


def rows(pairs, family):
    """(session, classes, what its text cost, weight) of each call that can teach."""
    found = []
    for pair in pairs:
        if not (pair["visible"] and FAMILIES[family]["of"](pair) and pair["tally"]):
            continue
        # The habit that explains the call best, as the estimator finds in hindsight.
        off = min((pair["actual"] - counted for counted in pair["counted"]), key=abs)
        if abs(off) > 400 + pair["words"]:
            continue
        cost = pair["words"] + off
        found.append((pair["session"], pair["tally"], cost, 1 / (9 + (0.02 * cost) ** 2)))
    share = collections.Counter(session for session, *_ in found)
    capped = lambda session: min(1.0, MOST_OF_A_SESSION / share[session])
    return [(s, tally, cost, weight * capped(s)) for s, tally, cost, weight in found]


def solve(matrix, vector):
    """Cholesky, in place."""
    n = len(vector)
    for i in range(n):
        for j in range(i + 1):
            total = matrix[i][j] - sum(a * b for a, b in zip(matrix[i][:j], matrix[j][:j]))
            matrix[i][j] = math.sqrt(total) if i == j else total / matrix[j][j]
    for i in range(n):
        vector[i] = (vector[i] - sum(matrix[i][k] * vector[k] for k in range(i))) / matrix[i][i]
    for i in reversed(range(n)):
        below = sum(matrix[k][i] * vector[k] for k in range(i + 1, n))
        vector[i] = (vector[i] - below) / matrix[i][i]
    return vector


def fit(found, start, pull):
    towards, pulls = [start] * CLASSES, [pull] * CLASSES
    costs = towards
    trust = [1.0] * len(found)
    for step in range(ROUNDS):
        matrix = [[0.0] * CLASSES for _ in range(CLASSES)]
        vector = [0.0] * CLASSES
        for (_, tally, cost, weight), trusted in zip(found, trust):
            weight *= trusted
            left = cost - told(towards, tally)
            for at, (i, count) in enumerate(tally):
                vector[i] += weight * count * left
                row = matrix[i]
                for j, other in tally[: at + 1]:
                    row[j] += weight * count * other
        for i in range(CLASSES):
            matrix[i][i] += pulls[i]
        costs = [a + b for a, b in zip(towards, solve(matrix, vector))]
        for i, cost in enumerate(costs):
            if cost < LEAST and step >= ROUNDS // 2:
                towards[i], pulls[i] = LEAST, 1e9
        errors = [(cost - told(costs, tally)) * math.sqrt(weight) for _, tally, cost, weight in found]
        scale = 1.4826 * median([abs(error) for error in errors]) + 1e-9
        trust = [4 / (3 + (error / scale) ** 2) for error in errors]
    return [max(cost, LEAST) for cost in costs]


def told(costs, tally):
    return sum(costs[i] * count for i, count in tally)


def median(values):
    return sorted(values)[len(values) // 2] if values else 0.0


def check(name, found, options):
    sessions = sorted({session for session, *_ in found})
    fold = {session: at % FOLDS for at, session in enumerate(sessions)}
    errors = []
    for at in range(FOLDS):
        known = [row for row in found if fold[row[0]] != at]
        costs = fit(known, options["start"], options["pull"])
        errors += [
            abs(cost - told(costs, tally)) * 100 / cost
            for session, tally, cost, _ in found
            if fold[session] == at and cost > 100
        ]
    errors.sort()
    tail = errors[int(len(errors) * 0.95)] if errors else 0.0
    print(
        f"{name}: {len(found)} calls of {len(sessions)} sessions; on the new part of sessions not "
        f"fitted on: median {median(errors):.2f} %, p95 {tail:.1f} %",
        file=sys.stderr,
    )
    return len(sessions)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    print("//! What a token of each class of o200k costs with tokenizers that are not public.")
    print("//!")
    print("//! Made by scripts/estimator/fit.py from recorded sessions; do not edit.")
    print()
    print("use super::features::CLASSES;")
    for name, options in FAMILIES.items():
        found = rows(pairs, name)
        sessions = check(name, found, options)
        costs = fit(found, options["start"], options["pull"])
        print(f"\n/// From {len(found)} calls of {sessions} sessions.")
        print("#[rustfmt::skip]")
        print(f"pub(super) static {name.upper()}: [f32; CLASSES] = [")
        for at in range(0, CLASSES, 7):
            print("    " + ", ".join(f"{cost:.3f}" for cost in costs[at : at + 7]) + ",")
        print("];")


main()
