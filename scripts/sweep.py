#!/usr/bin/env python3
"""Plays recorded sessions under a grid of pruning policies: what each saves, and what agents asked for again.

    cargo build --locked --release
    scripts/sweep.py SESSIONS                      # the grid of docs/rewriting.md "How the defaults were chosen"
    scripts/sweep.py --protect 20000 --pressure 0.5,0.6 --low-water 0.4 SESSIONS

SESSIONS are what `plimsoll replay` reads: files of one call a line, or folders of them (.jsonl, .jsonl.zst). Each point
is the defaults with three keys of `[prune]` over them; each session is played by itself (`plimsoll replay --policy`).

Net is what was saved at catalogue prices, summaries paid, as a share of what was spent; it stands beside that of the odd
and of the even sessions, in the order of their names: what is chosen on one half should hold on the other. Broken is
what it cost that cuts broke the provider's cache, as a share of the same. Re-read is the share of cut results whose tool
the agent asked again later, with the same arguments. The front is every point that no other beats in both net and re-read.

With --results FILE what was played is kept there, a line of JSON each: a sweep that was stopped goes on.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Why something was cut or was not: the window filled.
FILLED = {"pressure", "little_room", "no_gain", "unknown_window"}


def arguments():
    numbers = lambda text: sorted(float(number) for number in text.split(","))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="+", type=pathlib.Path)
    parser.add_argument("--protect", type=numbers, default=[10_000, 20_000, 40_000])
    parser.add_argument("--pressure", type=numbers, default=[0.4, 0.5, 0.6, 0.8])
    parser.add_argument("--low-water", type=numbers, default=[0.3, 0.4, 0.6])
    parser.add_argument("--plimsoll", default=ROOT / "target/release/plimsoll", help="the program")
    parser.add_argument("--results", type=pathlib.Path, help="where played sessions are kept")
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args()


def recordings(named):
    """Files, of folders those in them, by name."""
    files = []
    for path in named:
        inside = path.iterdir() if path.is_dir() else [path]
        files += [it for it in inside if it.name.endswith((".jsonl", ".jsonl.zst"))]
    return sorted(files, key=lambda file: file.name)


def play(program, file, point):
    """What this policy would have done to this session."""
    protect, pressure, low = point
    said = f"[prune]\nprotect_tokens = {protect:.0f}\npressure = {pressure}\nlow_water = {low}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as policy:
        policy.write(said)
        policy.flush()
        command = [program, "replay", "--policy", policy.name, "--json", file]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{file}\n{said}{done.stderr}")
    told = json.loads(done.stdout)
    cuts = [event for event in told["events"] if event["change"] == "cut"]
    spent, after = told["as_it_was"]["dollars"], told["under_policy"]["dollars"]
    return {
        "spent": spent,
        "saved": spent - after - told["spent_on_summaries"]["dollars"],
        "broken": told["savings"]["money"]["broken"],
        "cut": told["results_cut"],
        "again": told["asked_again"],
        "batches": len({event["call"] for event in cuts}),
        "filled": bool(FILLED & {*told["refused"], *(event["why"] for event in cuts)}),
    }


class Sweep:
    def __init__(self, asked):
        self.program, self.results, self.known = asked.plimsoll, asked.results, {}
        if self.results and self.results.exists():
            for line in self.results.read_text().splitlines():
                file, point, played = json.loads(line)
                self.known[file, tuple(point)] = played

    def session(self, file, points):
        """One session at every point, those of little pressure first. Where no decision was due to a pressure, none
        is due to a higher one: that is not played again."""
        played, calm = {}, {}
        for point in sorted(points):
            protect = point[0]
            if protect in calm:
                played[point] = calm[protect]
                continue
            name = (file.name, point)
            if name not in self.known:
                self.known[name] = play(self.program, file, point)
                if self.results:
                    with self.results.open("a") as kept:
                        kept.write(json.dumps([*name, self.known[name]]) + "\n")
            played[point] = self.known[name]
            if not played[point]["filled"]:
                calm[protect] = played[point]
        return played


def scores(sessions):
    """Sums over sessions, and net, broken and re-read in percent of them."""
    names = ["spent", "saved", "broken", "cut", "again", "batches"]
    total = {name: sum(session[name] for session in sessions) for name in names}
    spent = total["spent"] or 1.0
    total["net"], total["lost"] = 100 * total["saved"] / spent, 100 * total["broken"] / spent
    total["re_read"] = 100 * total["again"] / max(total["cut"], 1)
    return total


def front(rows):
    """Those that no other beats in both net and re-read."""

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
    asked = arguments()
    files = recordings(asked.sessions)
    points = [
        (protect, pressure, low)
        for protect in asked.protect
        for pressure in asked.pressure
        for low in asked.low_water
        if low < pressure
    ]
    sweep = Sweep(asked)
    with ThreadPoolExecutor(asked.jobs) as pool:
        played = list(pool.map(lambda file: sweep.session(file, points), files))
    rows = []
    for point in points:
        at = [session[point] for session in played]
        rows.append((point, scores(at), scores(at[0::2]), scores(at[1::2])))
    rows.sort(key=lambda row: (-row[1]["net"], row[1]["re_read"]))
    spent = sum(session[points[0]]["spent"] for session in played)
    print(f"{len(files)} sessions, ${spent:.2f} at catalogue prices, {len(points)} points")
    show("The front:", front(rows))
    show("All:", rows)


if __name__ == "__main__":
    main()
