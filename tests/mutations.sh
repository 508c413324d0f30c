#!/bin/sh
# Mutants of the engine's protocol, each of which a test must catch: made mechanically from the code (every memory order
# weaker than it is written; every notify, poison, hand-over, count, fence and store left out) and by hand
# (tests/mutants/by_hand.txt). Each runs in a process of its own under the schedule explorer, for 60 s of CPU time at
# most; what catches it is a wrong result, a data race, a hang, a lost wake-up, a crash, or an engine that ends with
# something left over. tests/mutants/equivalent.txt lists the mutants that change nothing, with the argument.
#
#   tests/mutations.sh             all of them: about seven minutes on two cores
#   tests/mutations.sh --quick     some of each kind in each file: a minute
#   --only TEXT                    those whose line in the table has the text: a file, a line, a kind, a change
#   --seconds S  --jobs N          for each; at one time [60; all cores]
#   --with-equivalents             judges those too, and so tries the arguments
#   --list                         the mutants, and runs none
#   --unmutated S                  the judge's programs on the protocol as it is, each for S seconds: they must find
#                                  nothing
#   --build DIR                    where to build [build/mutants]
#
# Prints a line for each mutant as it is judged, then the equivalents, and ends with `caught N of N`; the exit status says
# whether all were caught and the list of equivalents fits the code.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=$source/build/mutants
jobs=$(nproc)
count=$#
while [ "$count" -gt 0 ]; do
  word=$1
  shift
  count=$((count - 1))
  case $word in
    --build) build=$1 && shift && count=$((count - 1)) ;;
    --jobs) jobs=$1 && shift && count=$((count - 1)) ;;
    --only | --seconds | --unmutated | --family | --replay) set -- "$@" "$word" "$1" && shift && count=$((count - 1)) ;;
    --quick | --list | --with-equivalents) set -- "$@" "$word" ;;
    *) sed -n '2,20s/^# \{0,1\}//p' "$0" && exit 2 ;;
  esac
done

launcher=
command -v ccache > /dev/null && launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache
mkdir -p "$build"
{ cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSLUICE_EXAMPLES=OFF $launcher &&
  cmake --build "$build" --target mutants_main -j "$(nproc)"; } > "$build/mutants_build.log" 2>&1 ||
  { cat "$build/mutants_build.log" && exit 2; }
cd "$build"
exec "$build/tests/mutants_main" --jobs "$jobs" "$@"
