#!/usr/bin/env bash
# Mutants of the engine's protocol, each of which a test must catch: made mechanically from the code (every memory order
# weaker than it is written; every notify, poison, hand-over, count, fence and store left out) and by hand
# (tests/mutants/by_hand.txt). Each runs in a process of its own under the schedule explorer, for 60 s of CPU time at
# most; what catches it is a wrong result, a data race, a hang, a lost wake-up, a crash, or an engine that ends with
# something left over. A mutant is named by its file, its function and what is changed there; by_hand.txt and
# equivalent.txt, which lists the mutants that change nothing, with the argument, speak of them by these names.
#
#   tests/mutations.sh             all of them: about seven minutes on two cores
#   tests/mutations.sh --quick     some of each kind in each file: a minute
#   --only TEXT                    those whose name and kind have the text, such as "chain.h take:" or "by hand"
#   --slice K/N                    the K-th of N slices
#   --seconds S  --jobs N          for each; at one time [60; all cores]
#   --with-equivalents             judges those too, and so tries the arguments
#   --list                         the mutants, and runs none
#   --unmutated S                  the judge's programs on the protocol as it is, each for S seconds: they must find
#                                  nothing
#
# Prints a line for each mutant as it is judged, then the equivalents, and ends with `caught N of N`; the exit status says
# whether all were caught and the list of equivalents fits the code.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
jobs=$(nproc)
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) jobs=$2 && shift ;;
    --only | --slice | --seconds | --unmutated | --family | --replay) arguments+=("$1" "$2") && shift ;;
    --quick | --few | --list | --with-equivalents) arguments+=("$1") ;;
    *) sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; [[ $1 = --help || $1 = -h ]] && exit 0 || exit 2 ;;
  esac
  shift
done
build_preset release mutants mutants_main -DSLUICE_TESTS=ON
exec "$root/build/release/tests/mutants_main" --jobs "$jobs" "${arguments[@]}"
