#!/usr/bin/env bash
# What operators cost on large arrays (16 Mi numbers of f32; matrices of 1,024 x 1,024), beside libtorch's C++, in
# interleaved runs.
#
#   bench/operators.sh [--torch DIR | --no-torch] [--before DIR] [--threads "1 2"] [--rounds 7] [--only "add exp"]
#
# --torch as for bench/train.sh; Debian's libtorch-dev if not given. --before: an older checkout of ours, whose libraries
# run the same program. bench/peers/large_ops.h says what a run measures.
# All samples are in build/bench/operators.tsv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

torch=/usr before="" threads="1 2" rounds=7 only=""
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --no-torch) torch=""; shift ;;
    --torch | --before | --threads | --rounds | --only)
      [ $# -ge 2 ] || { echo "error: $1 wants a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
done

step "packages"
"$root/cmake/packages.sh" build bench

step "build"
build=$root/build/bench
log=$root/build/bench.log
build_ours bench_large_ops "$log"
sides=(sluice)
declare -A program=([sluice]=$build/bench/bench_large_ops)
if [ -n "$torch" ]; then
  torch_peer "$torch" large_ops_torch "$log"
  # As it comes, glibc gives large blocks back to the system at once, and page faults are most of libtorch's time. The
  # second side is libtorch with a malloc that keeps its memory, as ours keeps it in a pool.
  sides+=(libtorch libtorch+keep)
  program[libtorch]=$build/large_ops_torch
fi
if [ -n "$before" ]; then
  build_before "$before" "$build/before" bench_large_ops "$log"
  sides+=(before)
  program[before]=$build/before/bench_large_ops
fi
# Without an operation the program says which there are, and that this is no way to call it.
operations=${only:-$({ "${program[sluice]}" 2>&1 || true; } | sed 's/.*operations: //')}

step "measure: $rounds rounds, ${#sides[@]} sides in turns"
samples=$build/operators.tsv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'round\toperation\tthreads\tside\tms\n' >"$samples"
for ((round = 0; round < rounds; ++round)); do
  for n in $threads; do
    for operation in $operations; do
      declare -A ms=()
      for ((i = 0; i < ${#sides[@]}; ++i)); do
        side=${sides[(i + round) % ${#sides[@]}]}
        keep=()
        if [ "$side" = libtorch+keep ]; then
          keep=(env MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=1073741824)
        fi
        ms[$side]=$("${keep[@]}" "${program[${side%+keep}]}" "$operation" --threads "$n" --rounds 5 |
          awk '/^ms/ { print $2; found = 1 } END { exit !found }')
        printf '%s\t' "$round" "$operation" "$n" "$side" >>"$samples"
        echo "${ms[$side]}" >>"$samples"
        echo "${ms[$side]}" >>"$work/$operation.$n.$side"
      done
      for side in "${sides[@]:1}"; do
        awk -v a="${ms[$side]}" -v b="${ms[sluice]}" 'BEGIN { print a / b }' >>"$work/$operation.$n.$side.ratio"
      done
    done
  done
  echo "   round $((round + 1)) of $rounds"
done

echo
printf '%-14s %-8s %10s' operation threads "sluice, ms"
for side in "${sides[@]:1}"; do printf '   %-32s' "$side / sluice (quartiles)"; done
echo
for operation in $operations; do
  for n in $threads; do
    read -r median low high < <(quartiles "$work/$operation.$n.sluice" %.2f)
    printf '%-14s %-8s %10s' "$operation" "$n" "$median"
    for side in "${sides[@]:1}"; do
      read -r median low high < <(quartiles "$work/$operation.$n.$side.ratio" %.2f)
      printf '   %-32s' "$median ($low to $high)"
    done
    echo
  done
done
echo "Ratios are of the same round; above 1 Sluice is quicker."
