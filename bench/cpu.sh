#!/usr/bin/env bash
# Training steps of five networks, of a GAN and of reinforcement learning (gan and rl are defined in
# bench/peers/cpu_torch_gan_rl.py) beside PyTorch and JAX, on one and on two threads. Prints for each workload and peer
#   WORKLOAD THREADS ours_ms PEER peer_ms ratio lower upper ours_MiB peer_MiB
# the medians of the turns, and median and quartiles of peer / ours, turn by turn: above 1 we are faster.
#
#   bench/cpu.sh [--python PYTHON] [--nets "mlp gpt"] [--threads "1 2"] [--turns 9] [--seconds 3]
#                [--peers "eager compile channels-last jax"]
#
# In a turn each side runs once, for some seconds after five steps that are not counted. PEER is PyTorch's fastest by
# its median (torch-eager, torch-compile, and for cnn and resnet18 torch-channels-last), and jax: one jitted step, its
# state donated, with fast random numbers. Peers that PYTHON cannot import are left out; one that fails in a workload
# shows as "-", and the last line of its error goes to stderr. Times include Python's share in a step, but no
# compilation. MiB: a process's peak RSS less that after its imports and one small call; inputs are in it, and what a
# compiler took in the process. PyTorch has a malloc that keeps its memory. All sides run on as many cores as threads
# (taskset): JAX sizes its pool by these, whatever intra_op_parallelism_threads in XLA_FLAGS says.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"
python=python3 nets="mlp cnn resnet18 gpt lstm gan rl" threads="1 2" turns=9 seconds=3
peers="eager compile channels-last jax"
while [ $# -gt 0 ]; do
  case $1 in
    --python | --nets | --threads | --turns | --seconds | --peers) declare "${1#--}=${2?$1 wants a value}" ;;
    *) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
program=$root/build/release/bench/bench_cpu_nets
build_preset release cpu-nets bench_cpu_nets -DSLUICE_BENCH=ON
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
installed=()
for peer in $peers; do
  module=torch side=torch-$peer
  if [ "$peer" = jax ]; then module=jax side=jax; fi
  if "$python" -c "import $module" 2>/dev/null; then installed+=("$side"); else
    echo "cpu.sh: $side is left out: $python has no $module; give one that has with --python" >&2
  fi
done

[ ${#installed[@]} -gt 0 ] || exit 2

# run SIDE NET: adds a line "ms MiB" to the side's file, or writes a "-" over it: then the side has failed.
run() {
  local command=("$python" "$root/bench/peers/cpu_torch.py" "$2" "$seconds") keep=8589934592
  case $1 in
    ours) command=("$program" "$2" "$seconds") ;;
    jax) command[1]=$root/bench/peers/cpu_jax.py ;;
    torch-*)
      command=(env "MALLOC_TRIM_THRESHOLD_=$keep" "MALLOC_MMAP_THRESHOLD_=$keep" "${command[@]}")
      if [ "$1" != torch-eager ]; then command+=("--${1#torch-}"); fi
      ;;
  esac
  if grep -qs '^-' "$folder/$1"; then return; fi
  if ! taskset -c "$cores" "${command[@]}" >>"$folder/$1" 2>"$folder/error"; then
    echo - >"$folder/$1"
    echo "cpu.sh: $1, $2: $(tail -n 1 "$folder/error")" >&2
  fi
}

# median SIDE COLUMN: of the side's turns.
median() {
  awk -v column="$2" 'NF >= column { print $column }' "$folder/$1" >"$folder/column"
  if ! grep -q '^[0-9]' "$folder/column"; then echo -; else quartiles "$folder/column" %.3f | cut -d ' ' -f 1; fi
}

# line NET SIDE...: ours beside the fastest of the sides.
line() {
  local net=$1 best mine theirs ratio="- - -"
  shift
  best=$(for side in "$@"; do echo "$(median "$side" 1) $side"; done | sed 's/^-/inf/' | sort -g | sed -n '1s/.* //p')
  mine=$(median ours 1) theirs=$(median "$best" 1)
  if [ "$mine" != - ] && [ "$theirs" != - ]; then
    paste "$folder/ours" "$folder/$best" | awk '{ print $(NF - 1) / $1 }' >"$folder/ratio"
    ratio=$(quartiles "$folder/ratio" %.3f)
  fi
  printf '%-9s %s  %9s  %-19s %9s  %s  %8s %8s\n' "$net" "$count" "$mine" "$best" "$theirs" "$ratio" \
    "$(median ours 2)" "$(median "$best" 2)"
}

for count in $threads; do
  export SLUICE_THREADS=$count OMP_NUM_THREADS=$count
  cores=$("$python" -c "import os; print(*sorted(os.sched_getaffinity(0))[:$count], sep=',')")
  for net in $nets; do
    rm -f "$folder"/*
    torches=() sides=(ours)
    for side in "${installed[@]}"; do
      case $side-$net in
        jax-*) sides+=(jax) ;;
        torch-channels-last-cnn | torch-channels-last-resnet18 | torch-eager-* | torch-compile-*) torches+=("$side") ;;
      esac
    done
    sides+=("${torches[@]}")
    for _ in $(seq "$turns"); do
      for side in "${sides[@]}"; do run "$side" "$net"; done
    done
    if [ ${#torches[@]} -gt 0 ]; then line "$net" "${torches[@]}"; fi
    if [ -e "$folder/jax" ]; then line "$net" jax; fi
  done
done
