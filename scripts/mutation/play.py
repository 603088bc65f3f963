#!/usr/bin/env python3
"""Plays every mutant that cargo-mutants lists, with one build; docs/mutants.md says how and has the score.

  play.py list           what cargo-mutants would change
  play.py build          the tree with its switches, and its test programs (`switch.py`). TESTS= some of the programs
                         (`core` and `lib` have the unit tests): mutants of what is not built are not played
  play.py baseline       each test by itself: how long it takes, and which mutants it meets. KEEP=1 only runs new tests
  play.py play [k/n]     each mutant against the tests that meet it, until one fails. What was caught stays caught; what
                         lived is played again after another baseline. ONLY= plays those again whose name holds it,
                         UNDER= plays those of files whose path begins so
  play.py score          the score by floor; what lives is listed in target/mutants/alive.txt

Everything is kept in target/mutants. A run that was stopped goes on where it was.
"""

import ctypes
import json
import os
import re
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
# What decides.
PLAYED = ["core/src/context/**", "core/src/dialect/rewrite.rs", "core/src/dialect/rewrite/**", "core/src/tokens/**",
          "src/store/**", "src/proxy/exchange/retry.rs"]
NOT_PLAYED = ["**/tests.rs", "**/tests/**", "core/src/dialect/rewrite/invariants*", "core/src/dialect/rewrite/invariants/**",
              "src/store/conformance*", "src/store/sqlite/scale.rs"]
# A test that takes longer by itself is left out, and one mutant is played for as long at most.
LONGEST_TEST_S, LONGEST_MUTANT_S = 20, int(os.environ.get("LONGEST_MUTANT_S", 60))
FLOORS = ["core/src/context", "core/src/dialect/rewrite", "core/src/tokens", "src/proxy/exchange/retry.rs", "src/store"]
TIERS = [0.03, 0.2, 1, 4]
WORKERS = int(os.environ.get("WORKERS", 2))


# Which step makes each file.
MADE_BY = {"list.json": "list", "built.json": "build", "baseline.json": "baseline"}


def load(name, default=None):
    path = OUT / name
    if not path.exists() and default is None:
        sys.exit(f"target/mutants/{name} is not there: run `play.py {MADE_BY[name]}` first")
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


# ---- list


def list_all():
    command = ["cargo", "mutants", "--list", "--json", "--workspace"]
    command += [word for path in PLAYED for word in ("-f", path)] + [word for path in NOT_PLAYED for word in ("-e", path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"cargo-mutants lists nothing (`scripts/mutants` installs it):\n{found.stderr[-3000:]}")
    save("list.json", json.loads(found.stdout))
    print(f"{len(mutants())} mutants")


def must_be_listed(found):
    """The list says where each mutant stands: it is of the files as they are now, or of no use."""
    listed = (OUT / "list.json").stat().st_mtime
    paths = sorted({mutant["file"] for mutant in found})
    changed = [path for path in paths if not (ROOT / path).exists() or (ROOT / path).stat().st_mtime > listed]
    if changed:
        sys.exit(f"{changed[0]} was changed after the mutants were listed: run `play.py list` again")


# ---- build


def build():
    found = mutants()
    must_be_listed(found)
    tree = switch.Tree(ROOT, OUT / "tree", found)
    before = load("built.json", {})
    by_key = {m["key"]: m["id"] for m in tree.mutants}
    tree.dropped = {by_key[key]: why for key, why in before.get("dropped", {}).items() if key in by_key}
    # A build is played many times: some speed in its code is worth the time that takes.
    environment = {"CARGO_PROFILE_DEV_OPT_LEVEL": "1", **os.environ, "CARGO_TARGET_DIR": str(OUT / "target")}
    command = ["cargo", "test", "--no-run", "--locked", "--message-format=json", *switch.selected(wanted_programs())]
    key_of = {m["id"]: m["key"] for m in tree.mutants}
    keep = lambda: save("built.json", dict(before, dropped={key_of[number]: why for number, why in tree.dropped.items()}))
    programs = tree.build(command, environment, keep)
    save("built.json", {
        "dropped": {key_of[number]: why for number, why in tree.dropped.items()},
        "programs": programs,
        "ids": {m["key"]: m["id"] for m in tree.mutants},
        "apart": [m["key"] for m in tree.apart],
    })
    print(f"{len(tree.mutants)} mutants, {len(tree.dropped)} not viable, {len(tree.apart)} in constants")


def wanted_programs():
    every, wanted = [*UNITS.values(), *PROGRAMS], os.environ.get("TESTS", "").split()
    unknown = [name for name in wanted if name not in every]
    if unknown:
        sys.exit(f"TESTS= knows no {unknown[0]!r}: there are {', '.join(every)}")
    return wanted or every


# ---- tests


LIBC, DIES_WITH_PARENT = ctypes.CDLL(None), 1


def bounded():
    """A mutant may take all memory there is, or never end: it ends with this program at the latest."""
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    LIBC.prctl(DIES_WITH_PARENT, signal.SIGKILL)


class Tests:
    """Runs tests of one program, one after the other, and stops at the first that fails."""

    def __init__(self, program, environment):
        self.program, self.environment = program, environment

    def run(self, names, limits):
        """`("ok", None)`, `("failed", test)` or `("timeout", test)`; `limits` are seconds by name."""
        with tempfile.TemporaryDirectory(dir=OUT / "tmp", ignore_cleanup_errors=True) as scratch:
            process = subprocess.Popen(
                [self.program, "--exact", "--test-threads=1", *names],
                cwd=package_of(self.program), env=dict(self.environment, TMPDIR=scratch), text=False, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                preexec_fn=bounded,
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
    # Random cases are the same each time, and one that fails is enough.
    proptest = {"PROPTEST_RNG_SEED": "1", "PROPTEST_MAX_SHRINK_ITERS": "0", "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"}
    return dict(kept, RUST_BACKTRACE="0", **proptest, **more)


def package_of(program):
    """Where cargo runs a test program."""
    return OUT / "tree/core" if Path(program).name.startswith("plimsoll_core-") else OUT / "tree"


def listed(program, *options):
    found = subprocess.run([program, "--list", "--format=terse", *options], cwd=package_of(program), capture_output=True, text=True)
    return [line.removesuffix(": test") for line in found.stdout.splitlines() if line.endswith(": test")]


def programs_of(built):
    """The test programs that were built, as far as TESTS= wants them."""
    programs = {name: path for name, path in built["programs"].items() if name in wanted_programs()}
    missing = [name for name in wanted_programs() if not Path(programs.get(name, "-")).exists()]
    if missing and (os.environ.get("TESTS") or not programs):
        sys.exit(f"the tests of {missing[0]} are not built: run `play.py build` first")
    return {name: path for name, path in programs.items() if name not in missing}


def baseline():
    built = load("built.json")
    key_of = {number: key for key, number in built["ids"].items()}
    keys = sorted(built["ids"])
    before = load("baseline.json", {"tests": {}, "keys": []}) if os.environ.get("KEEP") else {"tests": {}, "keys": []}
    old = {name: dict(test, met=[before["keys"][i] for i in test["met"]]) for name, test in before["tests"].items()}
    number_of = {key: i for i, key in enumerate(keys)}
    work, results, lock = [], {}, threading.Lock()
    for program, path in programs_of(built).items():
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
    if not re.fullmatch(r"\d+/[1-9]\d*", shard):
        sys.exit(f"{shard!r} is no shard: `0/4` is the first of four")
    part, parts = (int(word) for word in shard.split("/"))
    built, base, before = load("built.json"), load("baseline.json"), played()
    tests_of = defaultdict(list)
    for name, test in base["tests"].items():
        if test["verdict"] == "ok" and test["seconds"] <= LONGEST_TEST_S:
            for index in test["met"]:
                tests_of[base["keys"][index]].append(name)
    only, under, apart = os.environ.get("ONLY"), os.environ.get("UNDER", ""), set(built["apart"])
    units = {test.split()[0] for test in base["tests"]}
    work = []
    for index, mutant in enumerate(mutants()):
        last = before.get(mutant["key"])
        is_done = last and (last["verdict"] != "alive" or last["baseline"] == base["made"])
        if only:
            is_done = only not in mutant["name"]
        is_built = mutant["key"] in built["ids"] and (mutant["file"].startswith("core/") or units - {"core"})
        is_viable = mutant["key"] not in built["dropped"] and mutant["key"] not in apart
        is_wanted = index % parts == part and mutant["file"].startswith(under)
        if is_wanted and not is_done and is_built and is_viable:
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
    commands = {"list": list_all, "build": build, "baseline": baseline, "play": play, "score": score}
    commands[command](*rest) if command in commands else sys.exit(__doc__)
