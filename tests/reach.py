#!/usr/bin/env python3
"""Do the tests that CI runs reach every part of the engine, the arrays, the gradients and the pipelines?

    tests/reach.py [--minutes N] [--only WORDS]

One build in build/reach/tree has the faults of tests/mutants/by_hand.txt and of tests/reach/faults.txt; the environment
variable SLUICE_FAULT turns one on. Without a fault all tests must pass. Then each fault is judged by the tests of its
folder, the engine's by the programs of tests/mutants too, those in schedules by the tests of pipelines too, and where
these see nothing by tests/pushers, up to the first test that fails, hangs or ends the process; those of layouts by the
tests of these in operators and nn. The table at the end names it; the exit code is 1 where a fault survived.
--minutes: stops after about so long, and the next run goes on from there unless sources changed. --only: judges, once
more if need be, the faults that have these words in their names.
"""
import argparse, concurrent.futures, json, os, re, signal, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK, TREE = ROOT / "build/reach", ROOT / "build/reach/tree"
PROGRAMS = ("engine", "mutants", "ndarray", "operators", "autograd", "schedule", "parallel", "nn", "pushers")
# Of these two the tests of layouts: their folders have faults of layouts alone.
LAYOUTS = {"operators": "*Plac*", "nn": "Plac*:Zero*"}

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/reach"))
from plant import all_faults, plant


def build():
    flags = f"-DCMAKE_CXX_FLAGS=-w -include {TREE}/tests/reach/planted.h"
    options = ["-DSLUICE_TESTS=ON", "-DSLUICE_EXAMPLES=OFF", "-DSLUICE_CUDA=off", flags]
    subprocess.run(["cmake", "--preset", "release", *options], cwd=TREE, check=True, stdout=subprocess.DEVNULL)
    targets = [program + "_test" for program in PROGRAMS]
    subprocess.run(["cmake", "--build", "build/release", "-j2", "--target", *targets], cwd=TREE, check=True)


def run(program, number, limit, tests=""):
    """Runs tests of a program. Returns the first that fails, or "", how it does, and the seconds of the longest one."""
    log = WORK / f"{program}-{number}{'-again' if tests else ''}.log"
    tests = tests or LAYOUTS.get(program, "*")
    command = [TREE / f"build/release/tests/{program}_test", "--gtest_fail_fast", "--gtest_filter=" + tests]
    environment = {**os.environ, "SLUICE_FAULT": str(number)}
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        size, since = 0, time.monotonic()
        while process.poll() is None and time.monotonic() - since < limit:
            time.sleep(0.1)
            if log.stat().st_size != size:
                size, since = log.stat().st_size, time.monotonic()
        hangs = process.poll() is None
        if hangs:
            os.killpg(process.pid, signal.SIGKILL)
        how = " (hangs)" if hangs else f" (signal {-process.returncode})" if process.returncode < 0 else ""
    text = log.read_text(errors="replace")
    failed, begun = (re.findall(r"^\[ +" + word + r" +\] ([\w/.]+)", text, re.M) for word in ("FAILED", "RUN"))
    test = (failed[:1] or begun[-1:] or ["its start"])[0] if process.wait() != 0 else ""
    longest = max(map(int, re.findall(r"^\[       OK \].*\((\d+) ms\)", text, re.M)), default=0) / 1000
    return test, how, longest


def judged(programs, number, limits):
    """The first test that notices the fault, and whether it does so alone too: if not it may be an unsteady one."""
    for program in programs:
        test, how, _ = run(program, number, limits[program])
        if test:
            alone = any(run(program, number, limits[program], test)[0] for _ in range(3))
            return f"{program}: {test}{how}" + ("" if alone else ", NOT ALONE")
    return "SURVIVED"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    until, faults, file = time.monotonic() + 60 * asked.minutes, all_faults(), WORK / "judged.json"
    source = plant(faults, TREE)
    build()
    known = json.loads(file.read_text()) if file.exists() else {}
    if known.get("source") != source:
        known = {"source": source, "limits": {}, "judged": {}}
    names = [name for name in faults if name.startswith("mutant")]

    def keep():
        file.write_text(json.dumps(known, indent=1))

    def judge(name):
        if asked.only not in name or (name in known["judged"] and not asked.only) or time.monotonic() > until:
            return
        start, folder = time.monotonic(), faults[name][0][0].split("/")[0]
        beside = {"engine": ("mutants",), "schedule": ("parallel",), "operators": ("nn",), "nn": ()}
        programs = (folder, *beside.get(folder, ()), *(() if folder in LAYOUTS else ("pushers",)))
        caught = judged(programs, names.index(name) + 1, known["limits"])
        known["judged"][name] = [folder, caught, round(time.monotonic() - start)]
        keep()
        print(f"{len(known['judged'])}/{len(names)} {name}: {known['judged'][name]}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        left = [program for program in PROGRAMS if program not in known["limits"]]
        for program, (failed, how, longest) in zip(left, pool.map(lambda p: run(p, 0, 120), left)):
            if failed:
                sys.exit(f"without a fault: {program}: {failed}{how}")
            known["limits"][program] = max(20, 4 * longest)
        keep()
        list(pool.map(judge, names))
    for name in sorted(known["judged"], key=lambda name: PROGRAMS.index(known["judged"][name][0])):
        print("{0:9} {3:88} {1}, {2} s".format(*known["judged"][name], name.removeprefix("mutant ")))
    survived = sum(caught == "SURVIVED" for _, caught, _ in known["judged"].values())
    print(f"{len(known['judged'])} of {len(names)} judged, {survived} survived")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
