#!/usr/bin/env python3
"""Runs every mutant that cargo-mutants lists, with one build; scripts/mutation/README.md explains it and has the score.

  run.py list           lists the mutants with cargo-mutants
  run.py build          builds the copy of the tree with all switches, and its test programs (`switch.py`). TESTS= builds
                        only some of the programs (`core` and `lib` are the unit tests): mutants of code that is not built
                        are not run
  run.py baseline       runs each test by itself: how long it takes, and which mutants it reaches. KEEP=1 runs only new
                        tests
  run.py run [k/n]      runs the tests that reach each mutant until one fails. Caught mutants are not run again; alive ones
                        are, after another baseline. ONLY= runs those again whose name contains it, UNDER= runs those of
                        files whose path begins with it
  run.py score          prints the score by floor, and lists the mutants that are alive in target/mutants/alive.txt

All results are in target/mutants. A run that was stopped continues.
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
# The code that decides.
INCLUDED = ["core/src/context/**", "core/src/dialect/rewrite.rs", "core/src/dialect/rewrite/**", "core/src/tokens/**",
            "src/store/**", "src/proxy/exchange/retry.rs", "src/proxy/exchange/retry/**"]
EXCLUDED = ["**/tests.rs", "**/tests/**", "**/testing/**",
            "src/store/sqlite/scale.rs"]
# A test that takes longer by itself is left out. A mutant runs for LONGEST_MUTANT_S at most.
LONGEST_TEST_S, LONGEST_MUTANT_S = 20, int(os.environ.get("LONGEST_MUTANT_S", 60))
FLOORS = ["core/src/context", "core/src/dialect/rewrite", "core/src/tokens", "src/proxy/exchange/retry", "src/store"]
# Tests run in tiers by how long they take, in seconds: the quickest first.
TIERS = [0.03, 0.2, 1, 4]
WORKERS = int(os.environ.get("WORKERS", 2))


# The step that writes each file.
MADE_BY = {"list.json": "list", "built.json": "build", "baseline.json": "baseline"}


def load(name, default=None):
    path = OUT / name
    if not path.exists() and default is None:
        sys.exit(f"target/mutants/{name} is missing: run `run.py {MADE_BY[name]}` first")
    return json.loads(path.read_text()) if path.exists() else default


def save(name, value):
    (OUT / (name + ".new")).write_text(json.dumps(value, indent=0))
    (OUT / (name + ".new")).rename(OUT / name)


def mutants():
    """The mutants. Each gets a key that does not change if lines above it do."""
    found, seen = load("list.json"), Counter()
    for mutant in found:
        function = mutant["function"]["function_name"] if mutant["function"] else ""
        line = next((line for line in mutant["diff"].split("\n")[2:] if line.startswith("-")), "")
        key = "|".join([mutant["file"], function, mutant["genre"], mutant["replacement"], line.strip("- ")])
        mutant["key"] = f"{key}|{seen[key]}"
        seen[key] += 1
    return found


def floor_of(mutant):
    return next(floor for floor in FLOORS if mutant["file"].startswith(floor))


# ---- list


def list_all():
    command = ["cargo", "mutants", "--list", "--json", "--workspace"]
    command += [word for path in INCLUDED for word in ("-f", path)] + [word for path in EXCLUDED for word in ("-e", path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"cargo-mutants lists nothing (`scripts/mutants` installs it):\n{found.stderr[-3000:]}")
    save("list.json", json.loads(found.stdout))
    print(f"{len(mutants())} mutants")


def require_current_list(found):
    """Exits if a file was changed after the mutants were listed: their positions may be wrong then."""
    list_time = (OUT / "list.json").stat().st_mtime
    paths = sorted({mutant["file"] for mutant in found})
    changed = [path for path in paths if not (ROOT / path).exists() or (ROOT / path).stat().st_mtime > list_time]
    if changed:
        sys.exit(f"{changed[0]} was changed after the mutants were listed: run `run.py list` again")


# ---- build


def build():
    found = mutants()
    require_current_list(found)
    tree = switch.Tree(ROOT, OUT / "tree", found)
    previous = load("built.json", {})
    by_key = {m["key"]: m["id"] for m in tree.mutants}
    tree.not_viable = {by_key[key]: error for key, error in previous.get("not_viable", {}).items() if key in by_key}
    # The tests run many times, so it is worth some build time to make them faster.
    environment = {"CARGO_PROFILE_DEV_OPT_LEVEL": "1", **os.environ, "CARGO_TARGET_DIR": str(OUT / "target")}
    command = ["cargo", "test", "--no-run", "--locked", "--message-format=json", *switch.cargo_selection(wanted_programs())]
    key_of = {m["id"]: m["key"] for m in tree.mutants}
    not_viable = lambda: {key_of[number]: error for number, error in tree.not_viable.items()}
    save_progress = lambda: save("built.json", dict(previous, not_viable=not_viable()))
    programs = tree.build(command, environment, save_progress)
    save("built.json", {
        "not_viable": not_viable(),
        "programs": programs,
        "ids": {m["key"]: m["id"] for m in tree.mutants},
        "constants": [m["key"] for m in tree.constants],
    })
    print(f"{len(tree.mutants)} mutants, {len(tree.not_viable)} not viable, {len(tree.constants)} in constants")


def wanted_programs():
    all_programs, wanted = [*UNITS.values(), *PROGRAMS], os.environ.get("TESTS", "").split()
    unknown = [name for name in wanted if name not in all_programs]
    if unknown:
        sys.exit(f"TESTS= has an unknown program {unknown[0]!r}: there are {', '.join(all_programs)}")
    return wanted or all_programs


# ---- tests


LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


def limit_process():
    """A mutant may use all memory or never end: this limits its memory, and kills it when this program ends."""
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Tests:
    """Runs tests of one program, one after the other, until one fails."""

    def __init__(self, program, environment):
        self.program, self.environment = program, environment

    def run(self, names, limits):
        """Returns `("ok", None)`, `("failed", test)` or `("timeout", test)`. `limits`: each test's timeout in seconds."""
        with tempfile.TemporaryDirectory(dir=OUT / "tmp", ignore_cleanup_errors=True) as scratch:
            process = subprocess.Popen(
                [self.program, "--exact", "--test-threads=1", *names],
                cwd=package_of(self.program), env=dict(self.environment, TMPDIR=scratch), text=False, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                preexec_fn=limit_process,
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
        data, current, start = b"", names[0], time.monotonic()
        while True:
            left = start + limits[current] - time.monotonic()
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
                    current, start = name, time.monotonic()
            if not read:
                return "failed", current  # the process died


def environment(**extra):
    inherited = {name: value for name, value in os.environ.items() if name not in ("MUTANT", "MUTANTS_REACHED")}
    # Random cases are the same in each run, and a failing case is not shrunk.
    proptest = {"PROPTEST_RNG_SEED": "1", "PROPTEST_MAX_SHRINK_ITERS": "0", "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"}
    return dict(inherited, RUST_BACKTRACE="0", **proptest, **extra)


def package_of(program):
    """The folder in which cargo runs a test program."""
    return OUT / "tree/core" if Path(program).name.startswith("plimsoll_core-") else OUT / "tree"


def list_tests(program, *options):
    found = subprocess.run([program, "--list", "--format=terse", *options], cwd=package_of(program), capture_output=True, text=True)
    return [line.removesuffix(": test") for line in found.stdout.splitlines() if line.endswith(": test")]


def programs_of(built):
    """The test programs that were built; with TESTS= only those."""
    programs = {name: path for name, path in built["programs"].items() if name in wanted_programs()}
    missing = [name for name in wanted_programs() if not Path(programs.get(name, "-")).exists()]
    if missing and (os.environ.get("TESTS") or not programs):
        sys.exit(f"the tests of {missing[0]} are not built: run `run.py build` first")
    return {name: path for name, path in programs.items() if name not in missing}


def baseline():
    built = load("built.json")
    key_of = {number: key for key, number in built["ids"].items()}
    keys = sorted(built["ids"])
    previous = load("baseline.json", {"tests": {}, "keys": []}) if os.environ.get("KEEP") else {"tests": {}, "keys": []}
    old = {name: dict(test, reached=[previous["keys"][i] for i in test["reached"]]) for name, test in previous["tests"].items()}
    index_of = {key: i for i, key in enumerate(keys)}
    jobs, results, lock = [], {}, threading.Lock()
    for program, path in programs_of(built).items():
        ignored = set(list_tests(path, "--ignored"))
        for name in list_tests(path):
            if name not in ignored:
                test = old.get(f"{program} {name}")
                if test:
                    results[f"{program} {name}"] = dict(test, reached=[index_of[key] for key in test["reached"] if key in index_of])
                else:
                    jobs.append((program, path, name))

    def run_test(job):
        program, path, name = job
        reached = OUT / "tmp" / f"reached-{threading.get_ident()}"
        reached.unlink(missing_ok=True)
        start = time.monotonic()
        verdict, _ = Tests(path, environment(MUTANTS_REACHED=str(reached))).run([name], {name: 120})
        seconds = time.monotonic() - start
        ids = set(reached.read_text().split()) if reached.exists() else set()
        with lock:
            results[f"{program} {name}"] = {
                "seconds": round(seconds, 3), "verdict": verdict, "reached": sorted(index_of[key_of[int(i)]] for i in ids)}
            if len(results) % 100 == 0:
                print(f"{len(results)} tests", flush=True)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(run_test, jobs))
    save("baseline.json", {"time": time.time(), "keys": keys, "tests": results})
    for name, test in results.items():
        if test["verdict"] != "ok" or test["seconds"] > LONGEST_TEST_S:
            print("left out:", name, test["verdict"], test["seconds"])
    reached = set().union(*(test["reached"] for test in results.values()))
    print(f"{len(results)} tests, {sum(t['seconds'] for t in results.values()):.0f} s, {len(reached)} mutants reached")


# ---- run


def results():
    """The last result of each mutant."""
    path, found = OUT / "results.jsonl", {}
    if path.exists():
        for line in path.read_text().splitlines():
            record = json.loads(line)
            found[record["key"]] = record
    return found


def run(shard="0/1"):
    if not re.fullmatch(r"\d+/[1-9]\d*", shard):
        sys.exit(f"{shard!r} is not a shard: `0/4` is the first of four")
    part, parts = (int(word) for word in shard.split("/"))
    built, base, previous = load("built.json"), load("baseline.json"), results()
    tests_of = defaultdict(list)
    for name, test in base["tests"].items():
        if test["verdict"] == "ok" and test["seconds"] <= LONGEST_TEST_S:
            for index in test["reached"]:
                tests_of[base["keys"][index]].append(name)
    only, under, constants = os.environ.get("ONLY"), os.environ.get("UNDER", ""), set(built["constants"])
    units = {test.split()[0] for test in base["tests"]}
    jobs = []
    for index, mutant in enumerate(mutants()):
        last = previous.get(mutant["key"])
        is_done = last and (last["verdict"] != "alive" or last["baseline"] == base["time"])
        if only:
            is_done = only not in mutant["name"]
        is_built = mutant["key"] in built["ids"] and (mutant["file"].startswith("core/") or units - {"core"})
        is_viable = mutant["key"] not in built["not_viable"] and mutant["key"] not in constants
        is_wanted = index % parts == part and mutant["file"].startswith(under)
        if is_wanted and not is_done and is_built and is_viable:
            jobs.append(mutant)
    jobs.sort(key=lambda mutant: floor_of(mutant) not in FLOORS[:3])  # the code that decides comes first
    run_start, lock, counts = time.monotonic(), threading.Lock(), Counter()
    log = open(OUT / "results.jsonl", "a")

    def run_mutant(mutant):
        start = time.monotonic()
        verdict, test, count, is_capped = test_mutant(mutant, tests_of[mutant["key"]], built, base)
        with lock:
            counts[verdict] += 1
            record = {"key": mutant["key"], "name": mutant["name"], "verdict": verdict, "test": test, "tests": count,
                      "capped": is_capped, "seconds": round(time.monotonic() - start, 2), "baseline": base["time"]}
            log.write(json.dumps(record) + "\n")
            log.flush()
            done = sum(counts.values())
            if done % 100 == 0:
                left = (time.monotonic() - run_start) / done * (len(jobs) - done)
                print(f"{done}/{len(jobs)} {dict(counts)}, {left / 60:.0f} min left", flush=True)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(run_mutant, jobs))
    print(f"{len(jobs)} mutants in {(time.monotonic() - run_start) / 60:.0f} min: {dict(counts)}")


def test_mutant(mutant, names, built, base):
    """Runs tests with one mutant until one fails: quick ones and those that reach few mutants first. Returns the verdict, the
    test that failed, the number of tests, and whether the time was over before all ran."""
    tests = base["tests"]
    tier = lambda name: next((i for i, most in enumerate(TIERS) if tests[name]["seconds"] <= most), len(TIERS))
    names = sorted(names, key=lambda name: (tier(name), name.split()[0] not in UNITS.values(), len(tests[name]["reached"])))
    groups = defaultdict(list)
    for name in names:
        program, test = name.split(" ", 1)
        groups[tier(name), program not in UNITS.values(), program].append(test)
    start = time.monotonic()
    for (_, uses_sockets, program), group in sorted(groups.items()):
        seconds = lambda test: tests[f"{program} {test}"]["seconds"]
        limits = {test: 5 + 10 * seconds(test) for test in group}
        runner = Tests(built["programs"][program], environment(MUTANT=str(built["ids"][mutant["key"]])))
        while group:
            if time.monotonic() - start > LONGEST_MUTANT_S:
                return "alive", None, len(names), True
            # One process runs several tests, which shares their setup. Between processes the time limit is checked.
            size = max(1, int(20 / max(seconds(test) for test in group[:50])))
            batch, group = group[:size], group[size:]
            while batch:
                verdict, test = runner.run(batch, limits)
                if verdict == "ok":
                    break
                is_slow = uses_sockets or seconds(test) > 0.2
                # A test that waits for something may fail once only because the machine is busy: it must fail twice.
                if verdict == "timeout" or not is_slow or runner.run([test], limits)[0] != "ok":
                    return ("timeout" if verdict == "timeout" else "caught"), f"{program} {test}", len(names), False
                batch = [other for other in batch if other != test]
    return "alive", None, len(names), False


# ---- score


def score():
    built, found = load("built.json"), results()
    constants, rows, alive = set(built["constants"]), defaultdict(Counter), []
    for mutant in mutants():
        floor = floor_of(mutant)
        record = found.get(mutant["key"])
        if mutant["key"] in built["not_viable"]:
            kind = "not viable"
        elif mutant["key"] in constants:
            kind = "constant"
        else:
            kind = record["verdict"] if record else "not run"
        rows[floor][kind] += 1
        rows["all"][kind] += 1
        if kind == "alive":
            alive.append(f"{mutant['name']} ({record['tests']} tests{', not all of them run' if record['capped'] else ''})")
    kinds = ["caught", "timeout", "alive", "not viable", "constant", "not run"]
    print("| floor | " + " | ".join(kinds) + " | score |\n|" + "---|" * (len(kinds) + 2))
    for floor in [*FLOORS, "all"]:
        row = rows[floor]
        caught = row["caught"] + row["timeout"]
        share = f"{100 * caught / (caught + row['alive']):.1f} %" if caught else ""
        print(f"| {floor} | " + " | ".join(f"{row[kind]:,}" for kind in kinds) + f" | {share} |")
    (OUT / "alive.txt").write_text("\n".join(alive) + "\n")


if __name__ == "__main__":
    (OUT / "tmp").mkdir(parents=True, exist_ok=True)
    command, *rest = sys.argv[1:] or ["help"]
    commands = {"list": list_all, "build": build, "baseline": baseline, "run": run, "score": score}
    commands[command](*rest) if command in commands else sys.exit(__doc__)
