#!/usr/bin/env bash
# What an operator costs whose work is next to nothing, beside libtorch's C++ and an older checkout, in interleaved runs.
#
#   bench/small_ops.sh [--torch DIR | --no-torch] [--before DIR] [--threads "1 2"] [--rounds 15] [--ops 200000]
#
# --torch as for bench/train.sh; Debian's libtorch-dev if not given. --before: an older checkout of ours, whose libraries
# run the same program. bench/peers/small_ops.h says what a run measures. All samples are in build/bench/small_ops.tsv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

torch=/usr before="" threads="1 2" rounds=15 ops=200000
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --no-torch) torch=""; shift ;;
    --torch | --before | --threads | --rounds | --ops)
      [ $# -ge 2 ] || { echo "error: $1 wants a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
done
[ "$rounds" -ge 7 ] || { echo "error: --rounds $rounds: fewer than 7 say nothing about the spread" >&2; exit 2; }

step "packages"
"$root/cmake/packages.sh" build bench

step "build"
build=$root/build/bench
log=$root/build/bench.log
mkdir -p "$build"
build_ours bench_small_ops "$log"
sides=(sluice)
declare -A program=([sluice]=$build/bench/bench_small_ops)
if [ -n "$before" ]; then
  build_before "$before" "$build/before" bench_small_ops "$log"
  sides+=(before)
  program[before]=$build/before/bench_small_ops
fi
if [ -n "$torch" ]; then
  torch_peer "$torch" small_ops_torch "$log"
  sides+=(libtorch)
  program[libtorch]=$build/small_ops_torch
fi

step "measure: $rounds rounds of $ops operations, ${#sides[@]} sides in turns"
samples=$build/small_ops.tsv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'round\tpattern\tthreads\tside\tns\n' >"$samples"
patterns="plain chain in_place recorded"
for ((round = 0; round < rounds; ++round)); do
  for n in $threads; do
    for pattern in $patterns; do
      declare -A ns=()
      for ((i = 0; i < ${#sides[@]}; ++i)); do
        side=${sides[(i + round) % ${#sides[@]}]}
        ns[$side]=$("${program[$side]}" "$pattern" --threads "$n" --ops "$ops" | awk '/^ns/ { print $2; found = 1 } END { exit !found }')
        printf '%s\t' "$round" "$pattern" "$n" "$side" >>"$samples"
        echo "${ns[$side]}" >>"$samples"
        echo "${ns[$side]}" >>"$work/$pattern.$n.$side"
      done
      for side in "${sides[@]:1}"; do
        awk -v a="${ns[$side]}" -v b="${ns[sluice]}" 'BEGIN { print a / b }' >>"$work/$pattern.$n.$side.ratio"
      done
    done
  done
  echo "   round $((round + 1)) of $rounds"
done

echo
printf '%-10s %-8s %-16s %10s   %s\n' pattern threads side median quartiles
for pattern in $patterns; do
  for n in $threads; do
    for side in "${sides[@]}"; do
      read -r median low high < <(quartiles "$work/$pattern.$n.$side" %.0f)
      printf '%-10s %-8s %-16s %10s   %s to %s\n' "$pattern" "$n" "$side" "$median" "$low" "$high"
    done
    for side in "${sides[@]:1}"; do
      read -r median low high < <(quartiles "$work/$pattern.$n.$side.ratio" %.3f)
      printf '%-10s %-8s %-16s %10s   %s to %s\n' "$pattern" "$n" "$side/sluice" "$median" "$low" "$high"
    done
  done
done
echo "ns per operation; ratios are of the same round. Threads: workers beside the thread that pushes; libtorch's own"
