#!/usr/bin/env bash
# Training speed of the quickstart's network on one device, beside libtorch's, in interleaved runs.
#
#   bench/train.sh [--torch DIR] [--threads "1 2"] [--rounds 9] [--steps 150]
#
# DIR is a libtorch: the folder `torch` of PyPI's wheel (pip install --no-deps torch), an unpacked libtorch, or nothing
# for Debian's libtorch-dev. The peer is checked first: one whose matrix product is slow is no peer.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"

torch=/usr threads="1 2" rounds=9 steps=150
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --torch | --threads | --rounds | --steps)
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
ours=$root/build/bench/bench/bench_train
peer=$root/build/bench/train_torch
log=$root/build/bench.log
mkdir -p "$root/build/bench"
cmake -S "$root" -B "$root/build/bench" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_BENCH=ON -DSLUICE_TESTS=OFF \
  -DSLUICE_EXAMPLES=OFF >"$log" 2>&1 || failed "configuring" "$log"
cmake --build "$root/build/bench" --target bench_train >>"$log" 2>&1 || failed "building" "$log"

torch=$(cd "$torch" && pwd)
library=$torch/lib
if [ ! -e "$library/libtorch_cpu.so" ]; then library=$library/$("${CXX:-g++}" -print-multiarch); fi
if [ ! -e "$library/libtorch_cpu.so" ] || [ ! -e "$torch/include/torch" ]; then
  echo "error: no libtorch in $torch; give one with --torch DIR (see --help)" >&2
  exit 2
fi
if [ ! -x "$peer" ] || [ "$root/bench/peers/train_torch.cc" -nt "$peer" ] || [ "$(cat "$peer.from")" != "$torch" ]; then
  # An unpacked libtorch keeps its C++ API a level deeper than its headers; Debian's keeps both in one place.
  "${CXX:-g++}" -std=c++20 -O2 -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
    "$root/bench/peers/train_torch.cc" -o "$peer" -L"$library" -Wl,-rpath,"$library" -ltorch_cpu -lc10 \
    >>"$log" 2>&1 || failed "building the peer" "$log"
  echo "$torch" >"$peer.from"
fi

step "the peer's matrix product (1,024^3, f32)"
for n in $threads; do
  gflops=$("$peer" --matmul --threads "$n" | awk '/^gflops/ { print $2 }')
  echo "   $n threads: $gflops GFLOP/s"
  # A reference BLAS reaches about 6 on one core; a tuned one ten times that and more.
  if awk -v g="$gflops" -v n="$n" 'BEGIN { exit !(g < 25 * n) }'; then
    echo "error: this libtorch has no tuned BLAS, so a comparison with it is worth nothing" >&2
    exit 1
  fi
done

rate() { awk '/^images\/s/ { print $2; found = 1 } END { exit !found }'; }

# Median, lower and upper quartile of the numbers in a file, in one format.
quartiles() {
  sort -g "$1" | awk -v format="$2" '
    { value[NR] = $1 }
    function at(p, k, f) { k = 1 + p * (NR - 1); f = k - int(k); return (1 - f) * value[int(k)] + f * value[int(k) + (f > 0)] }
    END { printf format " " format " " format "\n", at(0.5), at(0.25), at(0.75) }'
}

# libtorch takes each step's memory from malloc, and glibc gives large blocks back to the system at once: page faults are
# a third of its time. Both figures are shown: as it comes, and with a malloc that keeps what it has.
keep=(env MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184)

step "train: $rounds rounds of $steps steps, batch 64, in turns"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for n in $threads; do
  arguments=(--threads "$n" --steps "$steps" --batch 64)
  for round in $(seq "$rounds"); do
    a=$("$ours" "${arguments[@]}" | rate)
    b=$("$peer" "${arguments[@]}" | rate)
    c=$("${keep[@]}" "$peer" "${arguments[@]}" | rate)
    echo "$a" >>"$work/sluice.$n"
    echo "$b" >>"$work/libtorch.$n"
    echo "$c" >>"$work/libtorch+keep.$n"
    awk -v a="$a" -v b="$b" 'BEGIN { print a / b }' >>"$work/ratio.$n"
    awk -v a="$a" -v c="$c" 'BEGIN { print a / c }' >>"$work/ratio+keep.$n"
    echo "   $n threads, round $round: sluice $a, libtorch $b, libtorch+keep $c images/s"
  done
done

echo
printf '%-8s %-14s %10s   %s\n' threads side median quartiles
for n in $threads; do
  for side in sluice libtorch libtorch+keep ratio ratio+keep; do
    format=%.0f
    if [[ $side = ratio* ]]; then format=%.3f; fi
    read -r median low high < <(quartiles "$work/$side.$n" "$format")
    printf '%-8s %-14s %10s   %s to %s\n' "$n" "$side" "$median" "$low" "$high"
  done
done
echo "images/s; ratio: sluice / libtorch in the same round; +keep: libtorch with a malloc that keeps its memory"
