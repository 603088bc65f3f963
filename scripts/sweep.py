#!/usr/bin/env python3
"""Replays recorded sessions under a grid of pruning policies: what each saves, and which cut results agents read again.

    cargo build --locked --release
    scripts/sweep.py SESSIONS                      # the grid of docs/rewriting.md "How the defaults were chosen"
    scripts/sweep.py --protect 20000 --pressure 0.5,0.6 --low-water 0.4 SESSIONS

SESSIONS are what `plimsoll replay` reads: files with one call in each line, or folders of them (.jsonl, .jsonl.zst).
Each point of the grid is the default configuration with three other keys of `[prune]`. Each session is replayed alone
(`plimsoll replay --policy`).

Net is what was saved at catalogue prices, less the summaries, as a share of what was spent. It is also given for the odd
and for the even sessions in the order of their names: a choice made on one half should hold on the other. Broken is the
cost of the provider's cache that cuts made useless, as a share of the same. Re-read is the share of cut results whose tool
the agent called again later with the same arguments. The Pareto front is every point that no other beats in both net and
re-read.

106 published sessions of five agents ($728) on 2026-11-24, low_water 0.4; the defaults are in the second row:

    protect_tokens  pressure        net   broken  re-read
            10,000       0.5   +10.31 %   1.31 %   2.41 %
            20,000       0.6    +9.04 %   1.15 %   2.07 %
            20,000       0.8    +8.22 %   0.93 %   1.86 %
            40,000       0.5    +6.37 %   1.12 %   1.58 %

With --results FILE each replay is stored there as a line of JSON, so that a stopped sweep continues.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Reasons of a cut, or of none, that show that the window filled up.
WINDOW_FILLED = {"pressure", "little_room", "no_gain", "unknown_window"}


def arguments():
    numbers = lambda text: sorted(float(number) for number in text.split(","))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="+", type=pathlib.Path)
    parser.add_argument("--protect", type=numbers, default=[10_000, 20_000, 40_000])
    parser.add_argument("--pressure", type=numbers, default=[0.4, 0.5, 0.6, 0.8])
    parser.add_argument("--low-water", type=numbers, default=[0.3, 0.4, 0.6])
    parser.add_argument("--plimsoll", default=ROOT / "target/release/plimsoll", help="the program")
    parser.add_argument("--results", type=pathlib.Path, help="file for the replays that are done")
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args()


def recordings(paths):
    """The recordings among these files and in these folders, by name."""
    files = []
    for path in paths:
        inside = path.iterdir() if path.is_dir() else [path]
        files += [file for file in inside if file.name.endswith((".jsonl", ".jsonl.zst"))]
    return sorted(files, key=lambda file: file.name)


def replay(program, file, point):
    """What the policy of this point would have done to this session."""
    protect, pressure, low = point
    config = f"[prune]\nprotect_tokens = {protect:.0f}\npressure = {pressure}\nlow_water = {low}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as policy:
        policy.write(config)
        policy.flush()
        command = [program, "replay", "--policy", policy.name, "--json", file]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{file}\n{config}{done.stderr}")
    report = json.loads(done.stdout)
    cuts = [event for event in report["events"] if event["change"] == "cut"]
    spent, after = report["as_it_was"]["dollars"], report["under_policy"]["dollars"]
    return {
        "spent": spent,
        "saved": spent - after - report["spent_on_summaries"]["dollars"],
        "broken": report["savings"]["money"]["broken"],
        "cut": report["results_cut"],
        "again": report["asked_again"],
        "batches": len({event["call"] for event in cuts}),
        "filled": bool(WINDOW_FILLED & {*report["refused"], *(event["why"] for event in cuts)}),
    }


class Sweep:
    def __init__(self, options):
        self.program, self.results, self.done = options.plimsoll, options.results, {}
        if self.results and self.results.exists():
            for line in self.results.read_text().splitlines():
                file, point, outcome = json.loads(line)
                self.done[file, tuple(point)] = outcome

    def session(self, file, points):
        """The outcome of one session at every point, in the order of pressure. If the window did not fill at one pressure,
        it does not at a higher one either: that outcome is reused."""
        outcomes, not_filled = {}, {}
        for point in sorted(points):
            protect = point[0]
            if protect in not_filled:
                outcomes[point] = not_filled[protect]
                continue
            name = (file.name, point)
            if name not in self.done:
                self.done[name] = replay(self.program, file, point)
                if self.results:
                    with self.results.open("a") as results:
                        results.write(json.dumps([*name, self.done[name]]) + "\n")
            outcomes[point] = self.done[name]
            if not outcomes[point]["filled"]:
                not_filled[protect] = outcomes[point]
        return outcomes


def scores(sessions):
    """Sums over sessions, and net, broken and re-read in percent."""
    names = ["spent", "saved", "broken", "cut", "again", "batches"]
    total = {name: sum(session[name] for session in sessions) for name in names}
    spent = total["spent"] or 1.0
    total["net"], total["lost"] = 100 * total["saved"] / spent, 100 * total["broken"] / spent
    total["re_read"] = 100 * total["again"] / max(total["cut"], 1)
    return total


def pareto_front(rows):
    """The rows that no other row beats in both net and re-read."""

    def beats(one, other):
        no_worse = one["net"] >= other["net"] and one["re_read"] <= other["re_read"]
        return no_worse and (one["net"], one["re_read"]) != (other["net"], other["re_read"])

    return [row for row in rows if not any(beats(other[1], row[1]) for other in rows)]


def show(title, rows):
    print(f"\n{title}\n")
    print("| protect | pressure | low water | net | odd | even | broken | re-read | cut | batches |")
    print("|--:" * 10 + "|")
    for (protect, pressure, low), total, odd, even in rows:
        print(
            f"| {protect:,.0f} | {pressure} | {low} | {total['net']:+.2f} % | {odd['net']:+.2f} % | {even['net']:+.2f} % "
            f"| {total['lost']:.2f} % | {total['re_read']:.2f} % | {total['cut']:,} | {total['batches']} |"
        )


def main():
    options = arguments()
    files = recordings(options.sessions)
    points = [
        (protect, pressure, low)
        for protect in options.protect
        for pressure in options.pressure
        for low in options.low_water
        if low < pressure
    ]
    sweep = Sweep(options)
    with ThreadPoolExecutor(options.jobs) as pool:
        sessions = list(pool.map(lambda file: sweep.session(file, points), files))
    rows = []
    for point in points:
        outcomes = [session[point] for session in sessions]
        rows.append((point, scores(outcomes), scores(outcomes[0::2]), scores(outcomes[1::2])))
    rows.sort(key=lambda row: (-row[1]["net"], row[1]["re_read"]))
    spent = sum(session[points[0]]["spent"] for session in sessions)
    print(f"{len(files)} sessions, ${spent:.2f} at catalogue prices, {len(points)} points")
    show("The Pareto front:", pareto_front(rows))
    show("All points:", rows)


if __name__ == "__main__":
    main()
