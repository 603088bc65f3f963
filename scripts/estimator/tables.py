#!/usr/bin/env python3
"""The tables of docs/accuracy.md, from pairs of estimates and reported tokens.

    scripts/estimator/tables.py left_out.jsonl

`plimsoll replay --pairs` prints such pairs, and scripts/estimator/cross_validate.py those of sessions that were left
out. Calls with proven hidden input (`excess`) are counted for themselves. `WORST=20` also lists the largest errors.

Needs numpy.
"""

import json
import os
import sys

import numpy as np

FAMILIES = {
    "o200k": "GPT",
    "claude-new": "Claude from Opus 4.7",
    "claude": "Claude up to 4.6",
    "gemini": "Gemini",
}
SIZES = [("under 100 tokens", 0, 100), ("100 to 500", 100, 500), ("500 to 3,000", 500, 3_000), ("more", 3_000, 1e12)]
KINDS = ["one result", "several results", "the user's text", "both", "pictures"]


def is_held(pair):
    return pair["low"] <= pair["actual"] <= pair["high"]


def percent(pair):
    return abs(pair["tokens"] - pair["actual"]) * 100 / pair["actual"]


def kind(pair):
    results, texts, _, media = pair["structure"]
    if media:
        return "pictures"
    if texts:
        return "both" if results else "the user's text"
    return "one result" if results == 1 else "several results"


def held(pairs):
    if not pairs:
        return ""
    return f"{np.mean([is_held(pair) for pair in pairs]) * 100:.0f} % of {len(pairs):,}"


def table(*rows):
    print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
    for row in rows[1:]:
        print("| " + " | ".join(row) + " |")
    print()


def errors(name, pairs):
    wrong = [percent(pair) for pair in pairs]
    p50, p95, p99 = np.percentile(wrong, [50, 95, 99])
    exact = np.mean([value == 0 for value in wrong])
    return [name, f"{len(pairs):,}", f"{p50:.4f} %", f"{p95:.3f} %", f"{p99:.2f} %", f"{exact * 100:.0f} %", held(pairs)]


def new_part(name, pairs):
    """Of calls that add more than 100 tokens."""
    new = [(pair["actual"] - pair["tokens"] + pair["new"], pair["tokens"] - pair["actual"]) for pair in pairs]
    wrong = [abs(error) * 100 / size for size, error in new if size > 100]
    if not wrong:
        return [name, "0", "", ""]
    p50, p95 = np.percentile(wrong, [50, 95])
    return [name, f"{len(wrong):,}", f"{p50:.1f} %", f"{p95:.1f} %"]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    visible = [pair for pair in pairs if pair["visible"]]
    hidden = [pair for pair in pairs if pair["excess"] is not None]
    of = {name: [pair for pair in visible if pair["family"] == family] for family, name in FAMILIES.items()}
    of = {name: these for name, these in of.items() if these}
    models = sorted({pair["model"] for pair in visible})
    of_model = {model: [pair for pair in visible if pair["model"] == model] for model in models}
    head = ["", "calls", "median", "95 of 100 within", "99 of 100 within", "exact", "in their band"]
    table(head, *[errors(*item) for item in of.items()], errors("all", visible), errors("all, and hidden input", visible + hidden))
    head = ["error of the new part", "calls", "median", "95 of 100 within"]
    table(head, *[new_part(*item) for item in of.items()], *[new_part(*item) for item in of_model.items()])
    by_size = [[held([pair for pair in these if low <= pair["new"] < high]) for _, low, high in SIZES] for these in of.values()]
    table(["in their band", *[size for size, _, _ in SIZES]], *[[name, *row] for name, row in zip(of, by_size)])
    by_kind = [[held([pair for pair in these if kind(pair) == what]) for what in KINDS] for these in of.values()]
    table(["in their band", *KINDS], *[[name, *row] for name, row in zip(of, by_kind)])
    table(["in their band", ""], *[[model, held(these)] for model, these in of_model.items()])
    for pair in sorted(visible, key=percent, reverse=True)[: int(os.environ.get("WORST", 0))]:
        error, new = pair["tokens"] - pair["actual"], pair["new"]
        print(f"{percent(pair):.2f} %: {error:+} of {new} new, {pair['model']}, {kind(pair)}, {pair['habit']} of {pair['by_habit']}, {pair['session']} {pair['call']}")


main()
