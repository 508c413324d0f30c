#!/usr/bin/env bash
# What a step of training costs on a mesh of two places with a thread each: data parallelism, ZeRO 1 to 3 and tensor
# parallelism of one GPT, beside two nets that train at once, each on half of the batch; and the same of PyTorch (DDP,
# FSDP2, DTensor over gloo, two processes of one thread) in turns.
#
#   bench/sharding.sh [--torch PYTHON] [--turns 3] [--rounds 3] [--steps 1] [--layers 4] [--width 256]
#                     [--vocabulary 8192] [--length 64] [--batch 32]
#
# PYTHON is an interpreter with PyTorch; without one there are our sides alone. "of two nets" is the time of two nets over
# that of the side in the same round: 1 would be no cost at all. All samples are in build/bench/sharding.tsv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

torch="" turns=3 rounds=3 steps=1 layers=4 width=256 vocabulary=8192 length=64 batch=32
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --torch | --turns | --rounds | --steps | --layers | --width | --vocabulary | --length | --batch)
      [ $# -ge 2 ] || { echo "error: $1 wants a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
done

step "packages"
"$root/cmake/packages.sh" build bench
if [ -n "$torch" ] && ! "$torch" -c 'import torch.distributed.fsdp, torch.distributed.tensor' 2>/dev/null; then
  echo "error: --torch $torch: no Python with PyTorch's FSDP2 and DTensor" >&2
  exit 2
fi

step "build"
work=$root/build/bench
build_ours bench_sharding "$work.log"

samples=$work/sharding.tsv
: >"$samples"
# keep SYSTEM: notes samples "side<TAB>ms".
keep() { sed "s/^/$1\t/" >>"$samples"; }
step "train: $turns turns of $rounds rounds of all sides"
for ((turn = 0; turn < turns; ++turn)); do
  "$work/bench/bench_sharding" --samples --rounds "$rounds" --steps "$steps" --layers "$layers" --width "$width" \
    --vocabulary "$vocabulary" --length "$length" --batch "$batch" | keep sluice
  if [ -n "$torch" ]; then
    "$torch" "$root/bench/peers/sharding_torch.py" "$rounds" "$steps" "$layers" "$width" "$vocabulary" "$length" \
      "$batch" 2>"$work/sharding.err" | keep torch || { cat "$work/sharding.err" >&2; exit 1; }
  fi
  echo "   turn $((turn + 1)) of $turns"
done

python3 - "$samples" <<'TABLE'
import sys
from collections import defaultdict
from statistics import quantiles

times = defaultdict(list)
for line in open(sys.argv[1]):
    system, side, ms = line.rstrip("\n").split("\t")
    times[system, side].append(float(ms))


def shown(values, form):
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


print(f"{'side':28} {'ms':28} of two nets")
for (system, side), values in times.items():
    ratios = [a / b for a, b in zip(times[system, "two nets"], values)]
    print(f"{system + ' ' + side:28} {shown(values, '.1f'):28} {shown(ratios, '.3f')}")
TABLE
