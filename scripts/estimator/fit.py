#!/usr/bin/env python3
"""Fits what each token costs with tokenizers that are not public: core/src/tokens/fitted.rs.

    plimsoll replay --pairs TRANSCRIPTS... > pairs.jsonl
    scripts/estimator/fit.py pairs.jsonl > core/src/tokens/fitted.rs

Each pair has the o200k tokens of a call's new text, by class (core/src/tokens/features.rs) and by rank, and its cost in
tokens. The fit is a Bayesian linear regression with Student-t weights, so that calls with input that the recording hides
have little influence. No session counts as more than 150 calls. Each tokenizer generation is fitted on its own calls
only. The tokens around text are not fitted here: core/src/tokens/estimate.rs has them (STRUCTURE).

The prior is that all classes cost the same, and that classes of the same kind, length or rareness differ from that
together: a class that occurs in few calls is estimated from its neighbours. A token that occurs in many calls differs
from its class by itself. How far classes may differ (SPREADS) is chosen by cross-validation: the spread that predicts
each session best from the other sessions. Standard error shows the result. scripts/estimator/cross_validate.py measures
whole estimates in the same way.

Needs numpy.
"""

import collections
import json
import sys

import numpy as np

KINDS, LENGTHS, RARENESS = 12, 5, 4
CLASSES = KINDS * LENGTHS * RARENESS
MAX_CALLS_OF_A_SESSION = 150
# Rounds of reweighting.
ROUNDS = 4
# Variances by which a class, a kind, and a kind of one length or rareness may differ, in squared tokens per token.
SPREADS = [0.01, 0.05, 0.3]
# The variance by which a token differs from its class, and the calls in which it must occur.
TOKEN_SPREAD = 0.1
FREQUENT = 30
# Errors of more than so many times the expected one count as this much: the recording hides something there.
MAX_RELATIVE_ERROR = 10.0
FAMILIES = {
    "claude_new": {"start": 1.56, "family": "claude-new", "frequent": True},
    "claude": {"start": 1.15, "family": "claude", "frequent": True},
    # Results are sent as JSON, so what a recording shows is not split as it was sent.
    "gemini": {"start": 1.16, "family": "gemini", "frequent": False},
}
HABITS = ["keeps", "loops", "turns", "drops"]


class Calls:
    """Calls of one family that the fit can use: the session, features, cost and weight of each."""

    def __init__(self, pairs, name):
        options = FAMILIES[name]
        self.start, found = options["start"], []
        for pair in pairs:
            if not (pair["visible"] and pair["family"] == options["family"] and pair["tally"]):
                continue
            error = pair["actual"] - pair["counted"][HABITS.index(pair["habit"])]
            if abs(error) <= 400 + pair["words"]:
                found.append((pair, pair["words"] + error))
        self.cost = np.array([cost for _, cost in found], dtype=float)
        self.sessions = np.array([pair["session"] for pair, _ in found])
        calls_of = collections.Counter(self.sessions)
        self.share = np.array([min(1.0, MAX_CALLS_OF_A_SESSION / calls_of[session]) for session in self.sessions])
        # The variance of the expected error, in squared tokens.
        self.noise = 9 + (0.02 * self.cost) ** 2
        calls_with = collections.Counter(rank for pair, _ in found for rank, _ in pair["ranks"])
        is_frequent = lambda rank: options["frequent"] and calls_with[rank] >= FREQUENT
        self.frequent = sorted(rank for rank in calls_with if is_frequent(rank))
        column = {rank: at for at, rank in enumerate(self.frequent)}
        self.classes = np.zeros((len(found), CLASSES))
        self.tokens = np.zeros((len(found), len(self.frequent)))
        for row, (pair, _) in enumerate(found):
            for token_class, count in pair["tally"]:
                self.classes[row, token_class] = count
            for rank, count in pair["ranks"]:
                if rank in column:
                    self.tokens[row, column[rank]] = count
        # How calls vary together: because of a class at a spread of 1, and because of a token.
        self.by_class = self.classes @ SHARED @ self.classes.T
        self.by_token = TOKEN_SPREAD * self.tokens @ self.tokens.T

    def fit(self, spread, mask):
        """The calls' weights in a fit of the calls in `mask`: what it predicts of others is a sum over them."""
        covariance = (spread * self.by_class + self.by_token)[np.ix_(mask, mask)]
        rest = self.cost[mask] - self.start * self.classes[mask].sum(axis=1)
        trust = np.ones(len(rest))
        for _ in range(ROUNDS):
            variance = self.noise[mask] / self.share[mask] / trust
            weights = np.linalg.solve(covariance + np.diag(variance), rest)
            errors = variance * weights / np.sqrt(self.noise[mask])
            scale = 1.4826 * np.median(np.abs(errors)) + 1e-9
            trust = 4 / (3 + (errors / scale) ** 2)
        return weights

    def costs(self, spread, mask):
        """The cost of a token of each class, and how much more each frequent token costs."""
        weights = self.fit(spread, mask)
        classes = self.start + spread * SHARED @ self.classes[mask].T @ weights
        return classes, TOKEN_SPREAD * self.tokens[mask].T @ weights

    def errors(self, costs):
        """The error of each call in tokens, at these costs."""
        classes, more = costs
        return self.classes @ classes + self.tokens @ more - self.cost


def prior_covariance():
    """Classes of the same kind, length or rareness are correlated."""
    index = np.arange(CLASSES)
    kind, length, rareness = index // (LENGTHS * RARENESS), index // RARENESS % LENGTHS, index % RARENESS
    same = lambda group: (group[:, None] == group[None, :]).astype(float)
    return np.eye(CLASSES) + same(kind) + same(kind * LENGTHS + length) + same(kind * RARENESS + rareness) + same(rareness)


SHARED = prior_covariance()


def loss(errors, calls):
    """The loss of each call."""
    return np.minimum(MAX_RELATIVE_ERROR, np.abs(errors) / np.sqrt(calls.noise)) * calls.share


class Choice:
    """Chooses the spread that predicts sessions best from the other sessions."""

    def __init__(self, calls):
        self.calls = calls
        self.errors = {spread: np.zeros(len(calls.cost)) for spread in SPREADS}
        self.left_out = {}
        for session in sorted(set(calls.sessions)):
            mask = calls.sessions == session
            for spread in SPREADS:
                costs = self.left_out[session, spread] = calls.costs(spread, ~mask)
                self.errors[spread][mask] = calls.errors(costs)[mask]

    def spread(self, without=None):
        """`without`: a session that is left out."""
        others = self.calls.sessions != without
        return min(SPREADS, key=lambda spread: loss(self.errors[spread], self.calls)[others].sum())

    def costs(self, without=None):
        """The costs as `plimsoll replay --costs` reads them, rounded."""
        spread = self.spread(without)
        if (without, spread) in self.left_out:
            classes, more = self.left_out[without, spread]
        else:
            classes, more = self.calls.costs(spread, self.calls.sessions != without)
        frequent = [[rank, round(float(more), 2)] for rank, more in zip(self.calls.frequent, more)]
        return {"classes": [round(float(cost), 3) for cost in classes], "frequent": [pair for pair in frequent if pair[1]]}


def report(name, choice):
    calls, spread = choice.calls, choice.spread()
    large = calls.cost > 100
    print(f"{name}: {len(calls.cost)} calls of {len(set(calls.sessions))} sessions", file=sys.stderr)
    for candidate in SPREADS:
        total = loss(choice.errors[candidate], calls).sum()
        print(f"  spread {candidate}: loss {total:.0f}{' <' if candidate == spread else ''}", file=sys.stderr)
    in_the_fit = calls.errors(calls.costs(spread, np.ones(len(calls.cost), bool)))
    for what, errors in (("in the fit", in_the_fit), ("left out", choice.errors[spread])):
        percent = errors[large] * 100 / calls.cost[large]
        p50, p75, p95 = np.percentile(np.abs(percent), [50, 75, 95])
        print(
            f"  new part of sessions {what}: median {p50:.2f} % (signed {np.median(percent):+.2f}), "
            f"p75 {p75:.1f} %, p95 {p95:.1f} %",
            file=sys.stderr,
        )


def rows(values, width):
    for first in range(0, len(values), width):
        print("        " + ", ".join(values[first : first + width]) + ",")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    print("//! What each token of o200k costs with tokenizers that are not public.")
    print("//!")
    print("//! Made by scripts/estimator/fit.py from recorded sessions; do not edit.")
    print()
    print("use super::token_costs::TokenCosts;")
    for name in FAMILIES:
        choice = Choice(Calls(pairs, name))
        costs = choice.costs()
        report(name, choice)
        print(f"\n/// From {len(choice.calls.cost)} calls of {len(set(choice.calls.sessions))} sessions.")
        print("#[rustfmt::skip]")
        print(f"pub(super) static {name.upper()}: TokenCosts<'static> = TokenCosts {{")
        print("    classes: &[")
        rows([f"{cost:.3f}" for cost in costs["classes"]], 10)
        print("    ],\n    frequent: &[")
        rows([f"({rank}, {more:.2f})" for rank, more in costs["frequent"]], 7)
        print("    ],\n};")


if __name__ == "__main__":
    main()
