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
Needs numpy.
"""

import collections
import json
import sys

import numpy as np

CLASSES = 240
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


def fit(found, start, pull):
    looks = np.zeros((len(found), CLASSES))
    for at, (_, tally, _, _) in enumerate(found):
        for i, count in tally:
            looks[at, i] = count
    cost, weight = (np.array([row[at] for row in found]) for at in (2, 3))
    towards, pulls = np.full(CLASSES, start), np.full(CLASSES, pull)
    costs, trust = towards, np.ones(len(found))
    for step in range(ROUNDS):
        trusted = looks * (weight * trust)[:, None]
        left = cost - looks @ towards
        costs = towards + np.linalg.solve(looks.T @ trusted + np.diag(pulls), trusted.T @ left)
        if step >= ROUNDS // 2:
            low = costs < LEAST
            towards, pulls = np.where(low, LEAST, towards), np.where(low, 1e9, pulls)
        errors = (cost - looks @ costs) * np.sqrt(weight)
        scale = 1.4826 * np.median(np.abs(errors)) + 1e-9
        trust = 4 / (3 + (errors / scale) ** 2)
    return np.maximum(costs, LEAST)


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
        for at in range(0, CLASSES, 10):
            print("    " + ", ".join(f"{cost:.3f}" for cost in costs[at : at + 10]) + ",")
        print("];")


main()
