#!/usr/bin/env bash
# What a GPU does under Sluice, and under PyTorch where python3 has torch: the cost of a small operation for the host, the
# time from kernel to kernel in a chain of 1,000, matrix products, elementwise operators beside a copy, how far copies
# overlap with products, and images/s of the quickstart's network.
#
#   bench/gpu.sh [--rounds 3] [--no-torch] [--out FILE]
#
# Each figure is a line of JSON, in build/bench/gpu.jsonl if --out names no other file; the sides run in turns, and the
# table at the end has medians over the rounds. Exit status 3: there is no device.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

rounds=3 torch=yes out=$root/build/bench/gpu.jsonl
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --no-torch) torch=""; shift ;;
    --rounds | --out)
      [ $# -ge 2 ] || { echo "error: $1 wants a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
done

step "build"
build=$root/build/bench
build_ours bench_gpu "$root/build/bench.log"
build_ours bench_train "$root/build/bench.log"
if grep -q ' libsluice_cuda.so' "$build/build.ninja"; then build_ours sluice_cuda "$root/build/bench.log"; fi
if ! said=$("$build/bench/bench_gpu" info 2>&1); then
  echo "$said" >&2
  exit 3
fi
if [ -n "$torch" ] && ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  echo "   no PyTorch that has the device: Sluice alone"
  torch=""
fi

step "measure: $rounds rounds"
mkdir -p "$(dirname "$out")"
: >"$out"
for ((round = 0; round < rounds; ++round)); do
  "$build/bench/bench_gpu" | tee -a "$out"
  SLUICE_TF32=1 "$build/bench/bench_gpu" gemm | tee -a "$out"
  for batch in 64 512; do
    "$build/bench/bench_train" --device cuda --steps 1000 --batch $batch | awk -v batch=$batch '/^images/ {
      printf "{\"side\": \"sluice\", \"part\": \"train\", \"what\": \"batch %d\", \"unit\": \"images/s\", \"value\": %s}\n",
             batch, $2 }' | tee -a "$out"
  done
  if [ -n "$torch" ]; then python3 "$root/bench/peers/gpu_torch.py" | tee -a "$out"; fi
done

step "medians of $rounds rounds"
python3 - "$out" <<'TABLE'
import collections, json, statistics, sys
found = collections.defaultdict(list)
for line in open(sys.argv[1]):
    row = json.loads(line)
    found[row["part"], row["what"], row["unit"], row["side"]].append(row["value"])
print(f'{"part":12} {"what":28} {"unit":10} {"side":14} {"median":>12}')
for (part, what, unit, side), values in found.items():
    print(f"{part:12} {what:28} {unit:10} {side:14} {statistics.median(values):12.5g}")
TABLE
