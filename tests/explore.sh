#!/usr/bin/env bash
# The schedule explorer's long run: builds it (Release) and runs sampled schedules of random programs, then every
# schedule with a few deviations (preemptions, stale reads) of a small program (tests/engine/explore_main.cc says more).
#
#   tests/explore.sh             1,000,000 distinct sampled schedules; every schedule with at most 3 deviations of two
#                                pushers, two workers, three ops, two variables; with at most 2 where a pusher waits too
#   tests/explore.sh --quick     100,000; at most 2; at most 1
#   --schedules N  --seed S  --budget B     other numbers: of distinct sampled schedules, the first seed, of deviations
#                                (where a pusher waits, one less; 3 takes more than an hour there: --wait-budget B)
#   --replay SEED | --replay every:DECISIONS | --replay wait:DECISIONS
#                                runs one schedule again and prints every step
#
# Ends with `schedules N mismatches M hangs H`, N counted by the hash of what each run did; the exit status says whether
# M and H are 0.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
build=$root/build/release schedules=1000000 seed=1 budget=3 wait_budget= replay=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) schedules=100000 budget=2 ;;
    --schedules) schedules=$2 && shift ;;
    --seed) seed=$2 && shift ;;
    --budget) budget=$2 && shift ;;
    --wait-budget) wait_budget=$2 && shift ;;
    --replay) replay=$2 && shift ;;
    *) sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; [[ $1 = --help || $1 = -h ]] && exit 0 || exit 2 ;;
  esac
  shift
done

build_preset release explore explore_main -DSLUICE_TESTS=ON
main=$build/tests/explore_main
if [ -n "$replay" ]; then
  exec "$main" replay "$replay"
fi

# Each part ends with a line of the form that this script ends with.
total=0 mismatches=0 hangs=0
part() {
  last=
  { "$main" "$@" || true; } > "$build/explore_part" &
  while IFS= read -r line; do
    case $line in
      schedules\ *) last=$line ;;
      *) echo "$line" ;;
    esac
  done < "$build/explore_part"
  wait $!
  # A part that broke off says nothing: that is no success.
  [ -n "$last" ] || { echo "explore_main $* broke off" && hangs=$((hangs + 1)) && return 0; }
  set -- $last
  total=$((total + $2)) mismatches=$((mismatches + $4)) hangs=$((hangs + $6))
}
rm -f "$build/explore_part"
mkfifo "$build/explore_part"
part sample "$seed" "$schedules"
part every "$budget"
part wait "${wait_budget:-$((budget - 1))}"
rm -f "$build/explore_part"
echo "schedules $total mismatches $mismatches hangs $hangs"
[ $((mismatches + hangs)) -eq 0 ]
