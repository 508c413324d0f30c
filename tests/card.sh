#!/usr/bin/env bash
# The checks that need a real card, in parts of at most 10 minutes each; about 30 minutes in all, with the build.
#
#   tests/card.sh [--again] [PART...]       all parts, or those that are named
#   tests/card.sh --dry                     without a card: packs the programs with the double of CUDA (card_pack.sh), and
#                                           runs what is carried to a card (card_run.sh --dry), in some 15 minutes
#
#   build      the CUDA backend for this card, its tests, the programs
#   smoke      what card and driver it is, one operator, copies to and fro
#   rows       every row, result and gradients, against the reference on the CPU     tests/cuda/rows_test.cc
#   pipeline   the quickstart's program on 1, 2 and 4 logical devices: the same bits
#   sanitizer  compute-sanitizer on a part of the rows, where it is installed
#   bench      bench/gpu.sh
#
# Each part adds a line to build/card/results.jsonl, and its output is in build/card/PART.log. A part that is ok there for
# this commit does not run again, so that what was cut off can be gone on with; --again runs it. Exit status 0: all are ok.
# 1: a part failed. 3: there is no device.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source cmake/steps.sh
all="build smoke rows pipeline sanitizer bench"

again="" dry="" parts=()
for word in "$@"; do
  case $word in
    --help | -h) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --again) again=yes ;;
    --dry) dry=yes ;;
    *) if [[ " $all " != *" $word "* ]]; then echo "card.sh: unknown part '$word' (of: $all)" >&2; exit 2; fi
       parts+=("$word") ;;
  esac
done
if [ ${#parts[@]} = 0 ]; then read -r -a parts <<<"$all"; fi

out=$root/build/card
if [ -n "$dry" ]; then
  mkdir -p "$out"
  tests/card_pack.sh "$out/double.txz" double || exit 1
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  tar xJf "$out/double.txz" -C "$folder"
  OUT=$out/dry "$folder/card_run.sh" --dry
  exit
fi
results=$out/results.jsonl
programs=$root/build/cuda
export SLUICE_CUDA_LIBRARY=$programs/libsluice_cuda.so
mkdir -p "$out"

no_device() {
  printf 'no CUDA device: %s\n' "$1" >&2
  exit 3
}

build() {
  local architecture
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  build_preset cuda card sluice_cuda -DSLUICE_TESTS=ON "-DSLUICE_CUDA_ARCHITECTURES=${architecture:-90}-real" &&
    build_preset cuda card push_to_gpu -DSLUICE_TESTS=ON &&
    build_preset cuda card cuda_card_test -DSLUICE_TESTS=ON &&
    build_preset cuda card fashion_mnist -DSLUICE_TESTS=ON
}

smoke() {
  nvidia-smi --query-gpu=index,name,driver_version,memory.total,pci.bus_id --format=csv
  local said
  said=$("$programs/tests/push_to_gpu") || return 1
  echo "$said"
  grep -q '^transfer: done$' <<<"$said" && grep -q '^operator: done$' <<<"$said"
}

rows() { "$programs/tests/cuda_card_test" --gtest_brief=1; }

pipeline() {
  local first="" sum devices
  for devices in 1 2 4; do
    SLUICE_LOGICAL_GPUS=$devices "$programs/examples/fashion_mnist" --device cuda --stages "$devices" --epochs 1 \
      --out "$out/pipeline$devices" || return 1
    sum=$(sha256sum <"$out/pipeline$devices/model.safetensors")
    if [ "${first:=$sum}" != "$sum" ]; then
      echo "the model of $devices devices has other bits than that of one"
      return 1
    fi
    if ! grep -q 'compute (device)"' "$out/pipeline$devices/timeline.json"; then
      echo "the trace of $devices devices has no times of theirs"
      return 1
    fi
  done
}

sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null) || {
    echo "compute-sanitizer is not installed: left out"
    return 0
  }
  local some='*_exp:*_add*:*_sum*:*softmax*:*cross_entropy*:*matmul*:CudaArrays.*'
  local check
  for check in memcheck racecheck synccheck; do
    echo "== $check"
    "$tool" --tool "$check" --error-exitcode 9 "$programs/tests/cuda_card_test" --gtest_brief=1 "--gtest_filter=$some" ||
      return 1
  done
}

bench() { bench/gpu.sh --rounds 1 --out "$out/gpu.jsonl"; }

commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
if ! command -v nvidia-smi >/dev/null; then no_device "nvidia-smi is not there, so no driver is installed"; fi
if ! card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 | head -n 1) || [ -z "$card" ]; then
  no_device "nvidia-smi says: $card"
fi

status=0
for part in "${parts[@]}"; do
  if [ -z "$again" ] && grep -q "\"part\": \"$part\", \"status\": \"ok\".*\"commit\": \"$commit\"" "$results" 2>/dev/null; then
    echo "#### $part: ok before"
    continue
  fi
  printf '\n#### %s\n' "$part"
  start=$SECONDS
  export -f "$part" build_preset build_progress failed step
  export root out programs
  if timeout --kill-after=10 590 bash -c "set -uo pipefail; $part" 2>&1 </dev/null | tee "$out/$part.log"; then
    ended=ok
  else
    ended=failed status=1
  fi
  printf '{"part": "%s", "status": "%s", "seconds": %d, "commit": "%s", "card": "%s", "date": "%s"}\n' "$part" "$ended" \
    $((SECONDS - start)) "$commit" "$card" "$(date -u +%FT%TZ)" | tee -a "$results"
  if [ "$part" = build ] && [ "$ended" != ok ]; then break; fi
done
exit $status
