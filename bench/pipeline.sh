#!/usr/bin/env bash
# How much two stages on two cores gain over one single-threaded stage: the quickstart's training, in interleaved runs.
#
#   bench/pipeline.sh [--rounds 7] [ARGUMENT...]       arguments go to both sides, such as --microbatches 16
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"

rounds=7 arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --rounds) rounds=$2; shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

step "build"
build_preset release bench-pipeline fashion_mnist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() {  # STAGES THREADS
  SLUICE_THREADS=$2 "$root/build/release/examples/fashion_mnist" --epochs 1 --stages "$1" \
    --out "$work" "${arguments[@]}" | awk '/^throughput/ { print $2 }'
}
median() { sort -g "$1" | awk '{ v[NR] = $1 } END { printf "%.0f (%.0f to %.0f)", v[int((NR + 1) / 2)], v[1], v[NR] }'; }

step "train: $rounds rounds, in turns (images/s)"
for ((i = 0; i < rounds; ++i)); do
  one=$(run 1 1)
  two=$(run 2 2)
  echo "$one" >>"$work/one"
  echo "$two" >>"$work/two"
  awk -v a="$two" -v b="$one" 'BEGIN { printf "%.3f\n", a / b }' >>"$work/ratio"
  echo "   one stage, one thread: $one    two stages: $two"
done
echo "one stage, 1 thread     $(median "$work/one")"
echo "two stages, 2 threads   $(median "$work/two")"
sort -g "$work/ratio" | awk '{ v[NR] = $1 } END { printf "ratio                   %.2f (%.2f to %.2f)\n", v[int((NR + 1) / 2)], v[1], v[NR] }'
