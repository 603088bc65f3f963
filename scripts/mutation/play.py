#!/usr/bin/env python3
"""Plays every mutant that cargo-mutants lists, with one build; docs/mutants.md says how and has the score.

  play.py build          the tree with its switches, and its test programs (`switch.py`)
  play.py baseline       each test by itself: how long it takes, and which mutants it meets. KEEP=1 only runs new tests,
                         TESTS= those of some programs (`core` and `lib` have the unit tests)
  play.py play [k/n]     each mutant against the tests that meet it, until one fails. What was caught stays caught; what
                         lived is played again after another baseline. ONLY= plays those again whose name holds it
  play.py score          the score by floor; what lives is listed in target/mutants/alive.txt

Everything is kept in target/mutants. A run that was stopped goes on where it was.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import switch
from switch import PROGRAMS, UNITS

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "target/mutants"
# A test that takes longer by itself is left out, and one mutant is played for as long at most.
LONGEST_TEST_S, LONGEST_MUTANT_S = 20, int(os.environ.get("LONGEST_MUTANT_S", 60))
FLOORS = ["core/src/context", "core/src/dialect/rewrite", "core/src/tokens", "src/proxy/exchange/retry.rs", "src/store"]
TIERS = [0.03, 0.2, 1, 4]
WORKERS = int(os.environ.get("WORKERS", 2))


def load(name, default=None):
    path = OUT / name
    return json.loads(path.read_text()) if path.exists() else default


def save(name, value):
    (OUT / (name + ".new")).write_text(json.dumps(value, indent=0))
    (OUT / (name + ".new")).rename(OUT / name)


def mutants():
    """Each mutant with a key that stays the same where lines above it are changed."""
    found, seen = load("list.json"), Counter()
    for mutant in found:
        where = mutant["function"]["function_name"] if mutant["function"] else ""
        changed = next((line for line in mutant["diff"].split("\n")[2:] if line.startswith("-")), "")
        key = "|".join([mutant["file"], where, mutant["genre"], mutant["replacement"], changed.strip("- ")])
        mutant["key"] = f"{key}|{seen[key]}"
        seen[key] += 1
    return found


def floor_of(mutant):
    return next(floor for floor in FLOORS if mutant["file"].startswith(floor))


# ---- build


def build():
    tree = switch.Tree(ROOT, OUT / "tree", mutants())
    before = load("built.json", {})
    by_key = {m["key"]: m["id"] for m in tree.mutants}
    tree.dropped = {by_key[key]: why for key, why in before.get("dropped", {}).items() if key in by_key}
    environment = dict(os.environ, CARGO_TARGET_DIR=str(OUT / "target"))
    command = ["cargo", "test", "--no-run", "--locked", "--message-format=json", "--lib"]
    key_of = {m["id"]: m["key"] for m in tree.mutants}
    keep = lambda: save("built.json", dict(before, dropped={key_of[number]: why for number, why in tree.dropped.items()}))
    programs = tree.build(command + [word for name in PROGRAMS for word in ("--test", name)], environment, keep)
    save("built.json", {
        "dropped": {key_of[number]: why for number, why in tree.dropped.items()},
        "programs": programs,
        "ids": {m["key"]: m["id"] for m in tree.mutants},
        "apart": [m["key"] for m in tree.apart],
    })
    print(f"{len(tree.mutants)} mutants, {len(tree.dropped)} not viable, {len(tree.apart)} in constants")


# ---- tests


class Tests:
    """Runs tests of one program, one after the other, and stops at the first that fails."""

    def __init__(self, program, environment):
        self.program, self.environment = program, environment

    def run(self, names, limits):
        """`("ok", None)`, `("failed", test)` or `("timeout", test)`; `limits` are seconds by name."""
        with tempfile.TemporaryDirectory(dir=OUT / "tmp", ignore_cleanup_errors=True) as scratch:
            process = subprocess.Popen(
                [self.program, "--exact", "--test-threads=1", *names],
                cwd=OUT / "tree", env=dict(self.environment, TMPDIR=scratch), text=False, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30)),
            )
            try:
                return self.watch(process, names, limits)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
                process.stdout.close()

    def watch(self, process, names, limits):
        data, current, since = b"", names[0], time.monotonic()
        while True:
            left = since + limits[current] - time.monotonic()
            if left <= 0:
                return "timeout", current
            if not select.select([process.stdout], [], [], left)[0]:
                continue
            read = os.read(process.stdout.fileno(), 65536)
            data += read
            *lines, data = data.split(b"\n")
            for line in lines:
                if line.startswith(b"test ") and line.endswith(b"FAILED"):
                    return "failed", line[5:].split(b" ")[0].decode()
                if line.startswith(b"test result: FAILED"):
                    return "failed", current
                if line.startswith(b"test result: ok"):
                    return "ok", None
            if data.startswith(b"test ") and b" ... " in data:
                name = data[5:].split(b" ")[0].decode()
                if name in limits and name != current:
                    current, since = name, time.monotonic()
            if not read:
                return "failed", current  # it died


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in ("MUTANT", "MUTANTS_MET")}
    return dict(kept, CARGO_MANIFEST_DIR=str(OUT / "tree"), RUST_BACKTRACE="0", PROPTEST_RNG_SEED="1", **more)


def listed(program, *options):
    found = subprocess.run([program, "--list", "--format=terse", *options], cwd=OUT / "tree", capture_output=True, text=True)
    return [line.removesuffix(": test") for line in found.stdout.splitlines() if line.endswith(": test")]


def baseline():
    built = load("built.json")
    key_of = {number: key for key, number in built["ids"].items()}
    keys = sorted(built["ids"])
    before = load("baseline.json", {"tests": {}, "keys": []}) if os.environ.get("KEEP") else {"tests": {}, "keys": []}
    old = {name: dict(test, met=[before["keys"][i] for i in test["met"]]) for name, test in before["tests"].items()}
    number_of = {key: i for i, key in enumerate(keys)}
    work, results, lock = [], {}, threading.Lock()
    wanted = os.environ.get("TESTS", "").split() or list(built["programs"])
    for program, path in built["programs"].items():
        if program not in wanted:
            continue
        ignored = set(listed(path, "--ignored"))
        for name in listed(path):
            if name not in ignored:
                test = old.get(f"{program} {name}")
                if test:
                    results[f"{program} {name}"] = dict(test, met=[number_of[k] for k in test["met"] if k in number_of])
                else:
                    work.append((program, path, name))

    def one(job):
        program, path, name = job
        met = OUT / "tmp" / f"met-{threading.get_ident()}"
        met.unlink(missing_ok=True)
        began = time.monotonic()
        verdict, _ = Tests(path, environment(MUTANTS_MET=str(met))).run([name], {name: 120})
        seconds = time.monotonic() - began
        ids = set(met.read_text().split()) if met.exists() else set()
        with lock:
            results[f"{program} {name}"] = {
                "seconds": round(seconds, 3), "verdict": verdict, "met": sorted(number_of[key_of[int(i)]] for i in ids)}
            if len(results) % 100 == 0:
                print(f"{len(results)} tests", flush=True)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(one, work))
    save("baseline.json", {"made": time.time(), "keys": keys, "tests": results})
    for name, test in results.items():
        if test["verdict"] != "ok" or test["seconds"] > LONGEST_TEST_S:
            print("left out:", name, test["verdict"], test["seconds"])
    met = set().union(*(test["met"] for test in results.values()))
    print(f"{len(results)} tests, {sum(t['seconds'] for t in results.values()):.0f} s, {len(met)} mutants met")


# ---- play


def played():
    """The last verdict on each mutant."""
    path, found = OUT / "played.jsonl", {}
    if path.exists():
        for line in path.read_text().splitlines():
            record = json.loads(line)
            found[record["key"]] = record
    return found


def play(shard="0/1"):
    part, parts = (int(word) for word in shard.split("/"))
    built, base, before = load("built.json"), load("baseline.json"), played()
    tests_of = defaultdict(list)
    for name, test in base["tests"].items():
        if test["verdict"] == "ok" and test["seconds"] <= LONGEST_TEST_S:
            for index in test["met"]:
                tests_of[base["keys"][index]].append(name)
    only, apart = os.environ.get("ONLY"), set(built["apart"])
    work = []
    for index, mutant in enumerate(mutants()):
        last = before.get(mutant["key"])
        is_done = last and (last["verdict"] != "alive" or last["baseline"] == base["made"])
        if only:
            is_done = only not in mutant["name"]
        if index % parts == part and not is_done and mutant["key"] not in built["dropped"] and mutant["key"] not in apart:
            work.append(mutant)
    work.sort(key=lambda mutant: floor_of(mutant) not in FLOORS[:3])  # what decides comes first
    began, lock, counts = time.monotonic(), threading.Lock(), Counter()
    log = open(OUT / "played.jsonl", "a")

    def one(mutant):
        start = time.monotonic()
        verdict, test, count, is_capped = against(mutant, tests_of[mutant["key"]], built, base)
        with lock:
            counts[verdict] += 1
            record = {"key": mutant["key"], "name": mutant["name"], "verdict": verdict, "test": test, "tests": count,
                      "capped": is_capped, "seconds": round(time.monotonic() - start, 2), "baseline": base["made"]}
            log.write(json.dumps(record) + "\n")
            log.flush()
            done = sum(counts.values())
            if done % 100 == 0:
                left = (time.monotonic() - began) / done * (len(work) - done)
                print(f"{done}/{len(work)} {dict(counts)}, {left / 60:.0f} min left", flush=True)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(one, work))
    print(f"{len(work)} mutants in {(time.monotonic() - began) / 60:.0f} min: {dict(counts)}")


def against(mutant, names, built, base):
    """What becomes of one mutant: the quick and special tests first."""
    tests = base["tests"]
    tier = lambda name: next((i for i, most in enumerate(TIERS) if tests[name]["seconds"] <= most), len(TIERS))
    names = sorted(names, key=lambda name: (tier(name), name.split()[0] not in UNITS.values(), len(tests[name]["met"])))
    groups = defaultdict(list)
    for name in names:
        program, test = name.split(" ", 1)
        groups[tier(name), program not in UNITS.values(), program].append(test)
    began = time.monotonic()
    for (_, is_over_sockets, program), group in sorted(groups.items()):
        seconds = lambda test: tests[f"{program} {test}"]["seconds"]
        limits = {test: 5 + 10 * seconds(test) for test in group}
        runner = Tests(built["programs"][program], environment(MUTANT=str(built["ids"][mutant["key"]])))
        while group:
            if time.monotonic() - began > LONGEST_MUTANT_S:
                return "alive", None, len(names), True
            # A process for some at a time: what they share is made once, and the time is looked at between.
            size = max(1, int(20 / max(seconds(test) for test in group[:50])))
            now, group = group[:size], group[size:]
            while now:
                verdict, test = runner.run(now, limits)
                if verdict == "ok":
                    break
                is_slow = is_over_sockets or seconds(test) > 0.2
                # On a busy machine one failure of a test that waits for something proves nothing.
                if verdict == "timeout" or not is_slow or runner.run([test], limits)[0] != "ok":
                    return ("timeout" if verdict == "timeout" else "caught"), f"{program} {test}", len(names), False
                now = [other for other in now if other != test]
    return "alive", None, len(names), False


# ---- score


def score():
    built, found = load("built.json"), played()
    apart, rows, alive = set(built["apart"]), defaultdict(Counter), []
    for mutant in mutants():
        floor = floor_of(mutant)
        record = found.get(mutant["key"])
        if mutant["key"] in built["dropped"]:
            kind = "not viable"
        elif mutant["key"] in apart:
            kind = "constant"
        else:
            kind = record["verdict"] if record else "not played"
        rows[floor][kind] += 1
        rows["all"][kind] += 1
        if kind == "alive":
            alive.append(f"{mutant['name']} ({record['tests']} tests{', not all played' if record['capped'] else ''})")
    kinds = ["caught", "timeout", "alive", "not viable", "constant", "not played"]
    print("| floor | " + " | ".join(kinds) + " | score |\n|" + "---|" * (len(kinds) + 2))
    for floor in [*FLOORS, "all"]:
        row = rows[floor]
        dead = row["caught"] + row["timeout"]
        share = f"{100 * dead / (dead + row['alive']):.1f} %" if dead else ""
        print(f"| {floor} | " + " | ".join(f"{row[kind]:,}" for kind in kinds) + f" | {share} |")
    (OUT / "alive.txt").write_text("\n".join(alive) + "\n")


if __name__ == "__main__":
    (OUT / "tmp").mkdir(parents=True, exist_ok=True)
    command, *rest = sys.argv[1:] or ["help"]
    commands = {"build": build, "baseline": baseline, "play": play, "score": score}
    commands[command](*rest) if command in commands else sys.exit(__doc__)
