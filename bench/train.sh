#!/usr/bin/env bash
# Training speed of the quickstart's network on one device, beside libtorch's, in interleaved runs.
#
#   bench/train.sh [--torch DIR | --no-torch] [--before DIR] [--threads "1 2"] [--rounds 9] [--steps 150]
#
# --torch: a libtorch: the folder `torch` of PyPI's wheel (pip install --no-deps torch), an unpacked libtorch, or nothing
# for Debian's libtorch-dev. The peer is checked first: one whose matrix product is slow is no peer. --before: an older
# checkout of ours that has nn::Conv2d::relu, whose libraries run the same program.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

torch=/usr before="" threads="1 2" rounds=9 steps=150
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --no-torch) torch=""; shift ;;
    --torch | --before | --threads | --rounds | --steps)
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
build_ours bench_train "$log"
older=""
if [ -n "$before" ]; then
  build_before "$before" "$root/build/bench/before" bench_train "$log"
  older=$root/build/bench/before/bench_train
fi
if [ -n "$torch" ]; then torch_peer "$torch" train_torch "$log"; fi

if [ -n "$torch" ]; then step "the peer's matrix product (1,024^3, f32)"; fi
for n in ${torch:+$threads}; do
  gflops=$("$peer" --matmul --threads "$n" | awk '/^gflops/ { print $2 }')
  echo "   $n threads: $gflops GFLOP/s"
  # A reference BLAS reaches about 6 on one core; a tuned one ten times that and more.
  if awk -v g="$gflops" -v n="$n" 'BEGIN { exit !(g < 25 * n) }'; then
    echo "error: this libtorch has no tuned BLAS, so a comparison with it is worth nothing" >&2
    exit 1
  fi
done

rate() { awk '/^images\/s/ { print $2; found = 1 } END { exit !found }'; }

# libtorch takes each step's memory from malloc, and glibc gives large blocks back to the system at once: page faults are
# a third of its time. Both figures are shown: as it comes, and with a malloc that keeps what it has.
keep=(env MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184)

sides=(sluice)
if [ -n "$older" ]; then sides+=(before); fi
if [ -n "$torch" ]; then sides+=(libtorch libtorch+keep); fi
run() {  # SIDE ARGUMENT...
  local side=$1
  shift
  case $side in
    sluice) "$ours" "$@" ;;
    before) "$older" "$@" ;;
    libtorch) "$peer" "$@" ;;
    libtorch+keep) "${keep[@]}" "$peer" "$@" ;;
  esac
}

step "train: $rounds rounds of $steps steps, batch 64, in turns"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for n in $threads; do
  for ((round = 0; round < rounds; ++round)); do
    declare -A images=()
    line=""
    for ((i = 0; i < ${#sides[@]}; ++i)); do
      side=${sides[(i + round) % ${#sides[@]}]}
      images[$side]=$(run "$side" --threads "$n" --steps "$steps" --batch 64 | rate)
      echo "${images[$side]}" >>"$work/$side.$n"
      line+=", $side ${images[$side]}"
    done
    for side in "${sides[@]:1}"; do
      awk -v a="${images[sluice]}" -v b="${images[$side]}" 'BEGIN { print a / b }' >>"$work/ratio.$side.$n"
    done
    echo "   $n threads, round $((round + 1)): ${line#, } images/s"
  done
done

echo
printf '%-8s %-22s %10s   %s\n' threads side median quartiles
for n in $threads; do
  for side in "${sides[@]}"; do
    read -r median low high < <(quartiles "$work/$side.$n" %.0f)
    printf '%-8s %-22s %10s   %s to %s\n' "$n" "$side" "$median" "$low" "$high"
  done
  for side in "${sides[@]:1}"; do
    read -r median low high < <(quartiles "$work/ratio.$side.$n" %.3f)
    printf '%-8s %-22s %10s   %s to %s\n' "$n" "sluice/$side" "$median" "$low" "$high"
  done
done
echo "images/s; ratios are of the same round; +keep: libtorch with a malloc that keeps its memory"
