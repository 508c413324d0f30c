#!/usr/bin/env bash
# How much two stages on two cores gain over one device, beside torch.distributed.pipelining: the quickstart's network
# on made-up images, each side in a process (PyTorch's pipelines in two) of its own, in interleaved runs.
#
#   bench/pipeline.sh [--torch PYTHON] [--rounds 7] [--microbatches 8] [--batch 128] [--steps 60]
#
# PYTHON is an interpreter with PyTorch; without one there are our sides alone. "One device" runs the same microbatches
# one after another on one thread; it is bound to one core, where whatever pushes has its place too, and once more with
# the other core free. Efficiency is the speed of two stages over twice that of one device in the same round. All
# samples are in build/bench/pipeline.tsv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

torch="" rounds=7 microbatches=8 batch=128 steps=60
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --torch | --rounds | --microbatches | --batch | --steps)
      [ $# -ge 2 ] || { echo "error: $1 wants a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
done

step "packages"
"$root/cmake/packages.sh" build bench
if [ -n "$torch" ] && ! "$torch" -c 'import torch.distributed.pipelining' 2>/dev/null; then
  echo "error: --torch $torch: no Python with torch.distributed.pipelining" >&2
  exit 2
fi

step "build"
work=$root/build/bench
build_ours bench_pipeline "$work.log"

sluice() { "$work/bench/bench_pipeline" "$@" "$microbatches" "$batch" "$steps"; }  # STAGES THREADS SCHEDULE
peer() { "$torch" "$root/bench/peers/pipeline_torch.py" "$@" "$microbatches" "$batch" "$steps"; }  # STAGES SCHEDULE
one_core=()
if taskset -c 0 true 2>/dev/null; then one_core=(taskset -c 0); fi

# A side is SYSTEM DEVICES NAME; run_side prints its images/s.
run_side() {
  local pin=()
  if [ "$3" = "one-core" ]; then pin=("${one_core[@]}"); fi
  case $1.$2 in
    sluice.1) "${pin[@]}" "$work/bench/bench_pipeline" 1 1 1f1b "$microbatches" "$batch" "$steps" ;;
    sluice.2) sluice 2 2 "$3" ;;
    torch.1) "${pin[@]}" "$torch" "$root/bench/peers/pipeline_torch.py" 1 - "$microbatches" "$batch" "$steps" ;;
    torch.2) peer 2 "$3" ;;
  esac
}
sides=("sluice 1 one-core" "sluice 1 one-thread" "sluice 2 1f1b" "sluice 2 zb-h1" "sluice 2 zb-h2" "sluice 2 dynamic"
  "sluice 2 1f1b+U" "sluice 2 zb-h1+U" "sluice 2 zb-h2+U" "sluice 2 dynamic+U")
if [ -n "$torch" ]; then
  sides+=("torch 1 one-core" "torch 1 one-thread" "torch 2 gpipe" "torch 2 1f1b" "torch 2 interleaved-zb" "torch 2 zbv")
fi

samples=$work/pipeline.tsv
: >"$samples"
step "train: $rounds rounds of ${#sides[@]} sides in turns"
for ((round = 0; round < rounds; ++round)); do
  for side in "${sides[@]}"; do
    read -r system devices name <<<"$side"
    if ! speed=$(run_side $side 2>"$work/pipeline.err"); then
      cat "$work/pipeline.err" >&2
      echo "error: $side failed" >&2
      exit 1
    fi
    printf '%d\t%s\t%s\t%s\t%s\n' "$round" "$system" "$devices" "$name" "$speed" >>"$samples"
  done
  echo "   round $((round + 1)) of $rounds"
done

# Medians and quartiles over rounds: of the speed, of the efficiency against both runs of one device, and of the ratio
# to PyTorch's best pipeline of the round.
python3 - "$samples" "$microbatches" <<'TABLE'
import sys
from collections import defaultdict

rounds = defaultdict(dict)
for line in open(sys.argv[1]):
    number, system, devices, name, speed = line.split()
    rounds[number][system, devices, name] = float(speed)
m = int(sys.argv[2])


def quartiles(values, form):
    v = sorted(values)
    at = lambda p: v[int(p * (len(v) - 1))] + (p * (len(v) - 1) % 1) * (v[min(len(v) - 1, int(p * (len(v) - 1)) + 1)] - v[int(p * (len(v) - 1))])
    return f"{at(.5):{form}} ({at(.25):{form}} to {at(.75):{form}})"


print(f"{'side':24} {'images/s':26} {'efficiency':24} {'other core free':24} best PyTorch pipeline")
for side in next(iter(rounds.values())):
    system, devices, name = side
    text = f"{system + ' ' + name:24} {quartiles([r[side] for r in rounds.values()], '.0f'):26}"
    if devices == "2":
        for one in ("one-core", "one-thread"):
            text += f" {quartiles([r[side] / 2 / r[system, '1', one] for r in rounds.values()], '.3f'):24}"
        if system == "sluice" and any(s == "torch" for s, _, _ in rounds["0"]):
            best = lambda r: max(v for (s, d, _), v in r.items() if s == "torch" and d == "2")
            text += " " + quartiles([r[side] / best(r) for r in rounds.values()], ".2f")
    print(text)
print(f"1 - bubble of 1F1B with equal stages: {m / (m + 1):.3f}")
TABLE
