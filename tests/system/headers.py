#!/usr/bin/env python3
"""Every installed header compiles under strict warnings, alone.

  headers.py FOLDER [--slice K/N] [--std 20,23] [--alone 20] COMPILER...

FOLDER is where the headers were installed (it holds sluice/). For each compiler and standard: first all headers in one
file, which tells nearly all that there is to tell of warnings in seconds; then each header (of every N the K-th, with
--slice; in the standards of --alone, which are all of them if it is not given) in a file that includes nothing else,
which tells what it needs and does not include. The exit status is 0 where all is well.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror".split()


def compiles(folder, compiler, standard, headers):
    text = "".join(f'#include "{header}"\n' for header in headers)
    command = [compiler, f"-std=c++{standard}", "-fsyntax-only", "-x", "c++", *WARNINGS, f"-I{folder}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode == 0:
        return True
    what = headers[0] if len(headers) == 1 else f"{len(headers)} headers in one file"
    print(f"{what}, {compiler}, C++{standard}:\n{done.stderr[:2000]}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--slice", default="1/1")
    parser.add_argument("--std", default="20,23")
    parser.add_argument("--alone")
    parser.add_argument("compilers", nargs="+")
    given = parser.parse_args()
    slice_of, slices = (int(number) for number in given.slice.split("/"))
    headers = sorted(str(path.relative_to(given.folder)) for path in given.folder.glob("sluice/**/*.h"))
    if len(headers) < 100:
        sys.exit(f"{given.folder} has {len(headers)} headers: is it an installation?")
    kinds = [(compiler, standard) for compiler in given.compilers for standard in given.std.split(",")]
    jobs = [(*kind, headers) for kind in kinds]
    alone = [kind for kind in kinds if kind[1] in (given.alone or given.std).split(",")]
    jobs += [(*kind, [header]) for kind in alone for header in headers[slice_of - 1 :: slices]]
    with concurrent.futures.ThreadPoolExecutor(max(2, min(8, len(os.sched_getaffinity(0))))) as pool:
        fine = list(pool.map(lambda job: compiles(given.folder, *job), jobs))
    print(f"{len(headers)} headers, {len(jobs)} files compiled, {fine.count(False)} refused")
    return 0 if all(fine) else 1


sys.exit(main())
