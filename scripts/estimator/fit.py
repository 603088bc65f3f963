#!/usr/bin/env python3
"""Fits what a token of each class costs with tokenizers that are not public: core/src/tokens/fitted.rs.

    plimsoll replay --pairs TRANSCRIPTS... > pairs.jsonl
    scripts/estimator/fit.py pairs.jsonl > core/src/tokens/fitted.rs

Each pair has the features of a call's new text (its o200k tokens by class, core/src/tokens/features.rs) and its cost in
tokens. The fit is a Bayesian linear regression with Student-t weights, so that calls with input that the recording hides
have little influence. No session counts as more than 150 calls. Each tokenizer generation is fitted on its own calls
only. The tokens around text are not fitted here: core/src/tokens/estimate.rs has them (STRUCTURE).

The prior is that all classes cost the same, and that classes of the same kind, length or rareness differ from that
together: a class that occurs in few calls is estimated from its neighbours. How far classes may differ (SPREADS) is
chosen by cross-validation: the spread that predicts each session best from the other sessions. Standard error shows the
result. scripts/estimator/cross_validate.py measures whole estimates in the same way.

Needs numpy.
"""

import collections
import json
import sys

import numpy as np

KINDS, LENGTHS, RARENESS = 12, 5, 4
CLASSES = KINDS * LENGTHS * RARENESS
MAX_CALLS_OF_A_SESSION = 150
# The lowest cost of a token. A lower one in the data is noise.
MIN_COST = 0.1
# Rounds of reweighting. Costs below the lowest are fixed there in the second half, when outliers have little weight.
ROUNDS = 10
# Variances by which a class, a kind, and a kind of one length or rareness may differ, in squared tokens per token.
SPREADS = [0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 0.6, 1.0, 3.0]
# Errors of more than so many times the expected one count as this much: the recording hides something there.
MAX_RELATIVE_ERROR = 10.0
FAMILIES = {
    "claude_new": {"start": 1.56, "family": "claude-new"},
    "claude": {"start": 1.15, "family": "claude"},
    "gemini": {"start": 1.16, "family": "gemini"},
}


class Calls:
    """Calls of one family that the fit can use: the session, features, cost and weight of each."""

    def __init__(self, sessions, features, cost, weight):
        self.sessions, self.features, self.cost, self.weight = sessions, features, cost, weight

    def select(self, mask):
        return Calls(*(values[mask] for values in (self.sessions, self.features, self.cost, self.weight)))


def usable_calls(pairs, name):
    found = []
    for pair in pairs:
        if not (pair["visible"] and pair["family"] == FAMILIES[name]["family"] and pair["tally"]):
            continue
        # The way of counting that explains the call best, as the estimator chooses it afterwards.
        error = min((pair["actual"] - counted for counted in pair["counted"]), key=abs)
        if abs(error) <= 400 + pair["words"]:
            found.append((pair["session"], pair["tally"], pair["words"] + error))
    features = np.zeros((len(found), CLASSES))
    for row, (_, tally, _) in enumerate(found):
        for token_class, count in tally:
            features[row, token_class] = count
    cost = np.array([cost for *_, cost in found], dtype=float)
    calls_of = collections.Counter(session for session, *_ in found)
    weights = np.array([min(1.0, MAX_CALLS_OF_A_SESSION / calls_of[session]) for session, *_ in found])
    return Calls(np.array([session for session, *_ in found]), features, cost, weights / expected_error(cost) ** 2)


def expected_error(cost):
    """The expected error of a call's estimate, in tokens."""
    return np.sqrt(9 + (0.02 * cost) ** 2)


def inverse_prior_covariance(spread):
    """The precision matrix of the prior: classes of the same kind, length or rareness are correlated."""
    index = np.arange(CLASSES)
    kind, length, rareness = index // (LENGTHS * RARENESS), index // RARENESS % LENGTHS, index % RARENESS
    same = lambda group: (group[:, None] == group[None, :]).astype(float)
    shared = same(kind) + same(kind * LENGTHS + length) + same(kind * RARENESS + rareness) + same(rareness)
    return np.linalg.inv(spread * (np.eye(CLASSES) + shared))


def fit(calls, start, spread):
    """The cost of a token of each class. `start` is the prior's cost of all classes."""
    features, cost, weight = calls.features, calls.cost, calls.weight
    precision, prior = inverse_prior_covariance(spread), np.full(CLASSES, start)
    costs, trust, fixed = prior, np.ones(len(cost)), np.zeros(CLASSES)
    for step in range(ROUNDS):
        trusted = features * (weight * trust)[:, None]
        target = trusted.T @ cost + precision @ prior + fixed * MIN_COST
        costs = np.linalg.solve(features.T @ trusted + precision + np.diag(fixed), target)
        if step >= ROUNDS // 2:
            fixed = np.where(costs < MIN_COST, 1e9, fixed)
        errors = (cost - features @ costs) * np.sqrt(weight)
        scale = 1.4826 * np.median(np.abs(errors)) + 1e-9
        trust = 4 / (3 + (errors / scale) ** 2)
    return np.maximum(costs, MIN_COST)


def cross_validated_errors(calls, start, spread):
    """The error of each call in tokens, with costs fitted on the other sessions."""
    errors = np.zeros(len(calls.cost))
    for session in sorted(set(calls.sessions)):
        mask = calls.sessions == session
        errors[mask] = calls.features[mask] @ fit(calls.select(~mask), start, spread) - calls.cost[mask]
    return errors


def loss(errors, calls):
    """The loss of each call."""
    capped = np.minimum(MAX_RELATIVE_ERROR, np.abs(errors) / expected_error(calls.cost))
    return capped * calls.weight * expected_error(calls.cost) ** 2


class Choice:
    """Chooses the spread that predicts sessions best from the other sessions."""

    def __init__(self, calls, start):
        self.calls, self.start = calls, start
        self.errors = {spread: cross_validated_errors(calls, start, spread) for spread in SPREADS}

    def spread(self, without=None):
        """`without`: a session that is left out."""
        others = self.calls.sessions != without
        return min(SPREADS, key=lambda spread: loss(self.errors[spread], self.calls)[others].sum())

    def costs(self, without=None):
        calls = self.calls.select(self.calls.sessions != without)
        return fit(calls, self.start, self.spread(without))


def report(name, choice, costs):
    calls, spread = choice.calls, choice.spread()
    large = calls.cost > 100
    print(f"{name}: {len(calls.cost)} calls of {len(set(calls.sessions))} sessions", file=sys.stderr)
    for candidate in SPREADS:
        total = loss(choice.errors[candidate], calls).sum()
        print(f"  spread {candidate}: loss {total:.0f}{' <' if candidate == spread else ''}", file=sys.stderr)
    for what, errors in (
        ("in the fit", calls.features @ costs - calls.cost),
        ("left out", choice.errors[spread]),
    ):
        percent = errors[large] * 100 / calls.cost[large]
        p50, p75, p95 = np.percentile(np.abs(percent), [50, 75, 95])
        print(
            f"  new part of sessions {what}: median {p50:.2f} % (signed {np.median(percent):+.2f}), "
            f"p75 {p75:.1f} %, p95 {p95:.1f} %",
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
        calls = usable_calls(pairs, name)
        choice = Choice(calls, options["start"])
        costs = choice.costs()
        report(name, choice, costs)
        print(f"\n/// From {len(calls.cost)} calls of {len(set(calls.sessions))} sessions.")
        print("#[rustfmt::skip]")
        print(f"pub(super) static {name.upper()}: [f32; CLASSES] = [")
        for first in range(0, CLASSES, 10):
            print("    " + ", ".join(f"{cost:.3f}" for cost in costs[first : first + 10]) + ",")
        print("];")


if __name__ == "__main__":
    main()
