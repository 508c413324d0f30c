#!/usr/bin/env bash
# Training steps of five networks beside PyTorch, eager, with a malloc that keeps its memory; of convolutional ones the
# faster of its two layouts. In turns, on one and on two threads. Prints for each network
#   NETWORK THREADS ours_ms peer_ms ratio lower upper
# the medians of the turns, and median and quartiles of peer / ours, turn by turn: above 1 we are faster.
#
#   bench/cpu.sh [--python PYTHON] [--nets "mlp gpt"] [--threads "1 2"] [--turns 9] [--seconds 3]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"
python=python3 nets="mlp cnn resnet18 gpt lstm" threads="1 2" turns=9 seconds=3
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2 ;;
    --nets) nets=$2 ;;
    --threads) threads=$2 ;;
    --turns) turns=$2 ;;
    --seconds) seconds=$2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
"$python" -c 'import torch' 2>/dev/null || { echo "cpu.sh: $python has no torch; give one that has with --python" >&2; exit 2; }
program=$root/build/release/bench/bench_cpu_nets
build_preset release cpu-nets bench_cpu_nets -DSLUICE_BENCH=ON
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
peer() {
  MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_MMAP_THRESHOLD_=8589934592 "$python" "$root/bench/peers/cpu_torch.py" "$@"
}
for count in $threads; do
  export SLUICE_THREADS=$count OMP_NUM_THREADS=$count
  for net in $nets; do
    rm -f "$folder"/*
    for _ in $(seq "$turns"); do
      "$program" "$net" "$seconds" >>"$folder/ours"
      theirs=$(peer "$net" "$seconds")
      case $net in
        cnn | resnet18) theirs=$(printf '%s\n' "$theirs" "$(peer "$net" "$seconds" --channels-last)" | sort -g | head -1) ;;
      esac
      echo "$theirs" >>"$folder/theirs"
    done
    paste "$folder/ours" "$folder/theirs" | awk '{ print $2 / $1 }' >"$folder/ratio"
    read -r ours _ < <(quartiles "$folder/ours" %.3f)
    read -r theirs _ < <(quartiles "$folder/theirs" %.3f)
    printf '%-9s %s  %8s %8s  %s\n' "$net" "$count" "$ours" "$theirs" "$(quartiles "$folder/ratio" %.3f)"
  done
done
