#!/usr/bin/env python3
"""Fits what a token of each class costs with tokenizers that are not public: core/src/tokens/fitted.rs.

    plimsoll replay --pairs TRANSCRIPTS... > pairs.jsonl
    scripts/estimator/fit.py pairs.jsonl > core/src/tokens/fitted.rs

Each pair tells what the new text of a call looked like (tokens of o200k by class,
core/src/tokens/features.rs) and what it cost. Bayesian linear regression with Student-t weights, so that
calls whose bytes the recording hides teach little; no session counts as more than 150 calls. Each
tokenizer generation is fitted on its own calls alone. What stands around text is not fitted here: it is
what core/src/tokens/estimate.rs says (STRUCTURE).

Before any data all classes cost the same, and classes of one kind, length or rareness differ from that
together: a class that few calls have is told by its neighbours. How far they may differ (SPREADS) is
chosen by leaving out each session in turn: the spread with which the sessions that were left out are told
best. Standard error says how well that went. scripts/estimator/left_out.py measures whole estimates in
the same way.

Needs numpy.
"""

import collections
import json
import sys

import numpy as np

KINDS, LENGTHS, RARENESS = 12, 5, 4
CLASSES = KINDS * LENGTHS * RARENESS
MOST_OF_A_SESSION = 150
# No token costs less, whatever the data says: it would be noise.
LEAST = 0.1
# Rounds of weighing anew; what is least is held in the second half, when outliers weigh little.
ROUNDS = 10
# Variances of what a class, a kind, and a kind of one length or rareness may differ by, in squared tokens of a token.
SPREADS = [0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 0.6, 1.0, 3.0]
# Errors of more than so many times what is expected say no more than that the recording hides something.
MOST_OF_AN_ERROR = 10.0
FAMILIES = {
    "claude_new": {"start": 1.56, "of": "claude-new"},
    "claude": {"start": 1.15, "of": "claude"},
    "gemini": {"start": 1.16, "of": "gemini"},
}


class Calls:
    """Calls of one family that can teach."""

    def __init__(self, sessions, looks, cost, weight):
        self.sessions, self.looks, self.cost, self.weight = sessions, looks, cost, weight

    def only(self, which):
        return Calls(*(of[which] for of in (self.sessions, self.looks, self.cost, self.weight)))


def calls(pairs, family):
    found = []
    for pair in pairs:
        if not (pair["visible"] and pair["family"] == FAMILIES[family]["of"] and pair["tally"]):
            continue
        # The habit that explains the call best, as the estimator finds in hindsight.
        off = min((pair["actual"] - counted for counted in pair["counted"]), key=abs)
        if abs(off) <= 400 + pair["words"]:
            found.append((pair["session"], pair["tally"], pair["words"] + off))
    looks = np.zeros((len(found), CLASSES))
    for at, (_, tally, _) in enumerate(found):
        for i, count in tally:
            looks[at, i] = count
    cost = np.array([cost for *_, cost in found], dtype=float)
    share = collections.Counter(session for session, *_ in found)
    capped = np.array([min(1.0, MOST_OF_A_SESSION / share[session]) for session, *_ in found])
    return Calls(np.array([it[0] for it in found]), looks, cost, capped / expected(cost) ** 2)


def expected(cost):
    """What a call is expected to be off by, tokens."""
    return np.sqrt(9 + (0.02 * cost) ** 2)


def certainty(spread):
    """How sure each class is of its start, and each two of being alike: the prior's inverse covariance."""
    at = np.arange(CLASSES)
    kind, length, rareness = at // (LENGTHS * RARENESS), at // RARENESS % LENGTHS, at % RARENESS
    same = lambda of: (of[:, None] == of[None, :]).astype(float)
    alike = same(kind) + same(kind * LENGTHS + length) + same(kind * RARENESS + rareness) + same(rareness)
    return np.linalg.inv(spread * (np.eye(CLASSES) + alike))


def fit(known, start, spread):
    looks, cost, weight = known.looks, known.cost, known.weight
    sure, starts = certainty(spread), np.full(CLASSES, start)
    costs, trust, held = starts, np.ones(len(cost)), np.zeros(CLASSES)
    for step in range(ROUNDS):
        trusted = looks * (weight * trust)[:, None]
        told = trusted.T @ cost + sure @ starts + held * LEAST
        costs = np.linalg.solve(looks.T @ trusted + sure + np.diag(held), told)
        if step >= ROUNDS // 2:
            held = np.where(costs < LEAST, 1e9, held)
        errors = (cost - looks @ costs) * np.sqrt(weight)
        scale = 1.4826 * np.median(np.abs(errors)) + 1e-9
        trust = 4 / (3 + (errors / scale) ** 2)
    return np.maximum(costs, LEAST)


def left_out(found, start, spread):
    """What calls are off by, tokens, where their session was left out."""
    errors = np.zeros(len(found.cost))
    for session in sorted(set(found.sessions)):
        its = found.sessions == session
        errors[its] = found.looks[its] @ fit(found.only(~its), start, spread) - found.cost[its]
    return errors


def loss(errors, found):
    """How bad errors are, by call."""
    capped = np.minimum(MOST_OF_AN_ERROR, np.abs(errors) / expected(found.cost))
    return capped * found.weight * expected(found.cost) ** 2


class Choice:
    """The spread with which sessions that are left out are told best."""

    def __init__(self, found, start):
        self.found, self.start = found, start
        self.errors = {spread: left_out(found, start, spread) for spread in SPREADS}

    def spread(self, without=None):
        """`without`: the session that has no say."""
        others = self.found.sessions != without
        return min(SPREADS, key=lambda spread: loss(self.errors[spread], self.found)[others].sum())

    def costs(self, without=None):
        known = self.found.only(self.found.sessions != without)
        return fit(known, self.start, self.spread(without))


def tell(name, choice, costs):
    found, spread = choice.found, choice.spread()
    large = found.cost > 100
    print(f"{name}: {len(found.cost)} calls of {len(set(found.sessions))} sessions", file=sys.stderr)
    for one in SPREADS:
        total = loss(choice.errors[one], found).sum()
        print(f"  spread {one}: loss {total:.0f}{' <' if one == spread else ''}", file=sys.stderr)
    for what, errors in (
        ("fitted on", found.looks @ costs - found.cost),
        ("left out", choice.errors[spread]),
    ):
        percent = errors[large] * 100 / found.cost[large]
        middle, most, tail = np.percentile(np.abs(percent), [50, 75, 95])
        print(
            f"  new part of sessions {what}: median {middle:.2f} % (signed {np.median(percent):+.2f}), "
            f"p75 {most:.1f} %, p95 {tail:.1f} %",
            file=sys.stderr,
        )


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    print("//! What a token of each class of o200k costs with tokenizers that are not public.")
    print("//!")
    print("//! Made by scripts/estimator/fit.py from recorded sessions; do not edit.")
    print()
    print("use super::features::CLASSES;")
    for name, options in FAMILIES.items():
        found = calls(pairs, name)
        choice = Choice(found, options["start"])
        costs = choice.costs()
        tell(name, choice, costs)
        print(f"\n/// From {len(found.cost)} calls of {len(set(found.sessions))} sessions.")
        print("#[rustfmt::skip]")
        print(f"pub(super) static {name.upper()}: [f32; CLASSES] = [")
        for at in range(0, CLASSES, 10):
            print("    " + ", ".join(f"{cost:.3f}" for cost in costs[at : at + 10]) + ",")
        print("];")


if __name__ == "__main__":
    main()
