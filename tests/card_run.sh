#!/usr/bin/env bash
# Runs on a machine with a card what card_pack.sh has packed. CUDA's libraries are taken from the system, or from the
# packages of python3 (PyTorch brings them).
#
#   card_run.sh [--dry] [PART...]      all parts, about 4 minutes on an H100, or those that are named:
#
#   smoke      card, driver, what the backend does not find; the first operation, with kernels loaded late and early
#   tests      every row of the operators' table, sizes that only a card computes in time, and the tests of arrays,
#              gradients, layers and pipelines, in several processes
#   sanitizer  compute-sanitizer on the kernels that use shared memory
#   pipeline   the quickstart's program on 1, 2 and 4 logical devices: the model must have the same bits
#   bench      bench_gpu and bench_train
#   torch      the same by PyTorch, where python3 has it
#
# --dry: on the double of CUDA, which was packed with the programs. Without a card some sizes are cut, and a line says
# which; there is no sanitizer, no PyTorch, and what is measured are times of the double.
#
# Logs are in $OUT (./out). At the end: what failed. Exit status 1 if anything did.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here" || exit 1
packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
LD_LIBRARY_PATH=$here/lib:$(find "${packages:-/nowhere}" -type d -name lib 2>/dev/null | paste -sd:):${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH SLUICE_CUDA_LIBRARY=$here/libsluice_cuda.so
out=${OUT:-$here/out}
logs=$(mktemp -d)
# The most processes of tests at once, and the limit of each; what the benchmarks are told.
at_once=100 limit=150 steps=300 small=() batches="64 512" meshes=""
dry=""
if [ "${1-}" = --dry ]; then
  shift
  dry=yes at_once=$(nproc) limit=600 steps=3 small=(--small) batches=64
  # Nets on meshes make many small kernels, which take the double minutes.
  meshes=":PlacingGrid.*:Placing.AGpt*:Placing.DataParallel*:Placing.FilesHave*:Placing.AFailure*:Zero.*"
  export SLUICE_CARD_DRY=1
  unset SLUICE_CUDA_LIBRARY
fi
mkdir -p "$out"
: >"$out/failed"
say() { printf '\n#### %s, after %d s\n' "$1" $SECONDS; }
fail() { echo "$*" | tee -a "$out/failed"; }

smoke() {
  if [ -z "$dry" ]; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || fail "smoke: no driver"
    ldd -r "$SLUICE_CUDA_LIBRARY" 2>&1 | grep -E 'not found|undefined'
  fi
  local loading
  for loading in LAZY EAGER; do
    echo "CUDA_MODULE_LOADING=$loading"
    (time CUDA_MODULE_LOADING=$loading timeout 60 bin/push_to_gpu || fail "smoke: push_to_gpu") 2>&1 | grep -E ': |real'
  done
}

# shards NAME COUNT PROGRAM ARGUMENT...: in the background.
shards() {
  local name=$1 count=$2 i status
  shift 2
  for ((i = 0; i < count; ++i)); do
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
    (
      GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i timeout -k 5 "$limit" "$@" --gtest_print_time=0 >"$logs/$name.$i" 2>&1
      status=$?
      if [ $status != 0 ]; then fail "tests: $name.$i ended with $status"; fi
    ) &
  done
}
# The filters are those of tests/CMakeLists.txt for the double.
tests() {
  export SLUICE_TEST_DEVICE=gpu
  shards rows 5 bin/cuda_card_test
  shards ndarray 1 bin/ndarray_test "--gtest_filter=-Idx*:DLPack*:Imports*:ManyArrays*:Mapped*:Npy*:*Npz*:Safetensors*:HostTensor*:Devices*:Planted*"
  shards autograd 2 bin/autograd_test "--gtest_filter=-Tape.AVeryLongChain*:Sums.AnyNumberOfUses:Checkpoint.KeepsNoValuesInside:Checkpoint.Segments*:Backward.FreesWhatIsKeptAsItGoes:BackwardInHalves.FreesInTheFirst*:BackwardInHalves.DroppedWork*:ShapesOf.SevenBillion*"
  shards operators 2 bin/operators_test "--gtest_filter=Operators.*:ExactRows.*:Waiting.*:ValueErrors.*:Reductions.*:Statistics.*:Scans.*:Sorts.*"
  shards nn 1 bin/nn_test "--gtest_filter=-FashionMnist*:LayerNames.AreInAFailureOfBackward*:Training.AnyDevice*$meshes"
  shards parallel 2 bin/parallel_test "--gtest_filter=*Pipeline*:MeasuredLayers*-Pipeline.StagesMeet*:Pipeline.WeightsAfterFiftySteps*"
  wait
  unset SLUICE_TEST_DEVICE
  sed -n 's/^cut: /  &/p' "$logs"/*
  if [ -n "$meshes" ]; then echo "  cut: nn_test without $meshes"; fi
  echo "passed: $(cat "$logs"/* | grep -c '^\[       OK')"
  cat "$logs"/* | sed -n 's/^\[  FAILED  \] \([^ ]*\.[^ ,]*\).*/\1/p' | sort -u | while read -r name; do fail "tests: $name"; done
  tar cJf "$out/tests.txz" -C "$logs" .
}

sanitizer() {
  if [ -n "$dry" ]; then
    echo "the double looks at every access by itself: left out"
    return
  fi
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not installed: left out"
    return
  fi
  local tool
  for tool in memcheck racecheck synccheck; do
    timeout 80 compute-sanitizer --tool $tool --error-exitcode 9 bin/cuda_card_test --gtest_brief=1 \
      "--gtest_filter=CudaTiles.*:*softmax*:*cross_entropy*" >"$out/$tool.txt" 2>&1 || fail "sanitizer: $tool"
    echo "$tool: $(grep SUMMARY "$out/$tool.txt")"
  done
}

pipeline() {
  local devices first="" sum
  for devices in 1 2 4; do
    SLUICE_LOGICAL_GPUS=$devices timeout "$limit" bin/fashion_mnist --data data --device cuda --stages "$devices" --epochs 1 \
      --out "$out/pipeline$devices" >"$out/pipeline$devices.txt" 2>&1 || fail "pipeline: $devices devices"
    sum=$(sha256sum <"$out/pipeline$devices/model.safetensors")
    echo "$devices devices: $(grep throughput "$out/pipeline$devices.txt"), model $sum"
    [ "${first:=$sum}" = "$sum" ] || fail "pipeline: the model of $devices devices has other bits than that of one"
    rm -rf "$out/pipeline$devices"
  done
}

bench() {
  timeout "$limit" bin/bench_gpu "${small[@]}" | tee "$out/sluice.jsonl"
  [ "${PIPESTATUS[0]}" = 0 ] || fail "bench: bench_gpu"
  SLUICE_TF32=1 timeout "$limit" bin/bench_gpu "${small[@]}" gemm | tee -a "$out/sluice.jsonl"
  local batch
  for batch in $batches; do
    timeout "$limit" bin/bench_train --device cuda --steps "$steps" --batch $batch | awk -v batch=$batch '/^images/ {
      printf "{\"side\": \"sluice\", \"part\": \"train\", \"what\": \"batch %d\", \"unit\": \"images/s\", \"value\": %s}\n",
             batch, $2 }' | tee -a "$out/sluice.jsonl"
  done
}

torch() {
  if [ -z "$dry" ] && python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    timeout 150 python3 gpu_torch.py 2>/dev/null | tee "$out/torch.jsonl"
  else
    echo "no PyTorch that has the device: left out"
  fi
}

for part in ${*:-smoke tests sanitizer pipeline bench torch}; do
  say "$part"
  "$part"
done
say "failed"
if [ -s "$out/failed" ]; then
  cat "$out/failed"
  exit 1
fi
echo "nothing, at $(cat commit 2>/dev/null)"
