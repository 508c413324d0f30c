#!/usr/bin/env bash
# All-reduces of f32 in one process, over logical CPUs of one thread each, beside copies of the same bytes and beside
# PyTorch's gloo between processes of one thread each, in turns.
#
#   bench/collectives.sh --torch PYTHON [--turns 5] [--rounds 9]
#
# For 2 and 4 places and 1 to 64 MiB: medians and quartiles of all rounds; and how many times as fast ours is as gloo,
# median and quartiles of the turns' medians. A turn has some rounds of each side. Both give new values at each place,
# ours in another array, gloo in the same.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

torch="" turns=5 rounds=9
while [ $# -gt 0 ]; do
  case $1 in
    --torch | --turns | --rounds) declare "${1#--}=${2?$1 wants a value}" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
[ -n "$torch" ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
step "packages"
"$root/cmake/packages.sh" build bench
work=$root/build/bench
step "build"
build_ours bench_collectives "$work.log"

samples=$work/collectives.tsv
: >"$samples"
step "all-reduces: $turns turns of $rounds rounds"
for ((turn = 0; turn < turns; ++turn)); do
  "$work/bench/bench_collectives" --samples "$rounds" | sed "s/^/$turn\t/" >>"$samples"
  for places in 2 4; do
    "$torch" "$root/bench/peers/all_reduce_torch.py" "$rounds" $places 1 4 16 64 2>"$work/collectives.err" |
      sed "s/^/$turn\tgloo\t$places\t/" >>"$samples" || { cat "$work/collectives.err" >&2; exit 1; }
  done
done

python3 - "$samples" <<'TABLE'
import sys
from collections import defaultdict
from statistics import median, quantiles

times = defaultdict(lambda: defaultdict(list))
for line in open(sys.argv[1]):
    turn, side, places, mebibytes, ms = line.rstrip("\n").split("\t")
    times[int(places), int(mebibytes)][side, turn].append(float(ms))


def shown(values, form):
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


print(f"{'places':6} {'MiB':>4}  {'ours, ms':26} {'copies, ms':26} {'gloo, ms':26} {'of a copy':22} gloo / ours")
for (places, mebibytes), sides in sorted(times.items()):
    all_of = {name: [t for (side, _), list in sides.items() if side == name for t in list]
              for name in ("ours", "copies", "gloo")}
    by_turn = {name: {turn: median(list) for (side, turn), list in sides.items() if side == name} for name in all_of}
    ratio = lambda a, b: [by_turn[a][turn] / by_turn[b][turn] for turn in by_turn[b]]
    print(f"{places:6} {mebibytes:4}  " + " ".join(f"{shown(all_of[name], '.2f'):26}" for name in all_of)
          + f" {shown(ratio('ours', 'copies'), '.2f'):22} {shown(ratio('gloo', 'ours'), '.2f')}")
TABLE
