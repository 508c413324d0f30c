#!/usr/bin/env bash
# What is too long for CI, one part after the other; docs/testing.md says when to run which.
#
#   tests/deep.sh [--quick] [PART...]       all parts, or those that are named
#   tests/deep.sh --turn                    one slice, that whose turn it is by the commit's hash: at most 4 minutes
#
#   models     the protocol as Spin models, and its broken variants               tests/model/check.sh
#   searches   the tests of the engine of which CI runs a slice, in full (SLUICE_DEEP); the planner's search against all
#              cuts of 6,600 tables                                          tests/schedule/plan_search_test.cc
#   programs   10,000 random programs of arrays, with gradients, against an interpreter; 2,000 of several threads, with
#              checkpoints and errors, that others look at; 10,000 of operations that answer late or see poison, against
#              a model; 10,000 on meshes, against plain arrays
#              tests/autograd/, tests/ndarray/later_programs_test.cc, tests/operators/placed_programs_test.cc
#   sums       sums of 10^6 and 10^7 numbers in every operator that has some, against f64   tests/operators/
#   pipelines  every schedule's bits over 20 steps on simulated devices, of which CI runs a slice   tests/parallel/
#   nets       500 made-up nets, with a seed of each run's own (CI has 50)        tests/nn/make_up_nets.py
#   headers    every installed header in a file of its own, strict warnings, C++20 and 23, both compilers; CI has a
#              quarter in one of the four by turns                                tests/system/headers.py
#   compare    layers, gradients and optimisers beside PyTorch; without it `not run`   tests/compare.sh
#   minilm     all-MiniLM-L6-v2 beside transformers; without its folder in SLUICE_MINILM `not run`   tests/minilm.sh
#   forks      2,400 forks of a process under load, and 600 of processes in their first use; a training run that is killed
#              50 times and goes on                                               tests/system/programs/
#   fuzz       the parsers of pictures, CSV and CIFAR under libFuzzer, 30 s each (CI has the others)   tests/fuzz/
#   soak       long loads, whose memory must stay within its bounds               tests/soak.sh
#   mutants    the judge's programs on the protocol as it is; then every mutant    tests/mutations.sh
#   sanitizers the sanitizers with the other compiler: GCC's AddressSanitizer and UBSan, every test; clang 19's
#              ThreadSanitizer, the engine's tests and those of several pushers
#   debian13   every test in a fresh Debian 13; as root, else it says `not run`   tests/debian13.sh
#   explore    a million sampled schedules, and every one with few deviations     tests/explore.sh
#
#   --quick    a short form of each
#   PART:K/N   the K-th of N slices of a part: of pipelines, nets, headers, mutants and soak (of which there are three)
#   PART:quick the short form of this part
#
# The output of a part is also in build/deep/PART.log. The last line says how each ended, and after how many seconds;
# the exit status is 0 if all that were run are ok.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
all="models searches programs sums pipelines nets headers compare minilm forks fuzz soak mutants sanitizers debian13 explore"
turns=(models searches programs sums pipelines:{1..4}/4 nets:{1..5}/5 headers:{1..4}/4 forks fuzz soak:{1..3}/3 mutants:{1..4}/4 debian13:quick)

every_part_quick=()
parts=()
for word in "$@"; do
  case $word in
    --quick) every_part_quick=(--quick) ;;
    --turn) parts+=("${turns[$((16#$(git -C "$root" rev-parse --short=7 HEAD | cut -c 1-7) % ${#turns[@]}))]}") ;;
    --help | -h) sed -n '2,36s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) if [[ " $all " != *" ${word%%:*} "* ]]; then echo "deep.sh: unknown part '$word' (of: $all)" >&2; exit 2; fi
       parts+=("$word") ;;
  esac
done
if [ ${#parts[@]} = 0 ]; then read -r -a parts <<<"$all"; fi

models() { "$root/tests/model/check.sh" "${quick[@]}"; }
searches() {
  build_preset release searches engine_test -DSLUICE_TESTS=ON
  build_preset release searches schedule_test
  local deep=(env SLUICE_DEEP=1)
  if [ ${#quick[@]} -gt 0 ]; then deep=(); fi
  "${deep[@]}" "$root/build/release/tests/engine_test" --gtest_brief=1 \
    --gtest_filter='Explore*:Planted.*:Reduction.*:Ring.Every*:Batch.Every*:Replay.EqualsThePushesOneByOne:Bounds.AThreadThatEnds*' &&
    "${deep[@]}" "$root/build/release/tests/schedule_test" --gtest_brief=1 --gtest_filter='PlanSearch.*'
}
# A hundred in a process: the pools of blocks grow with each that has several threads (resources/object_pool.h).
sessions() {
  local first
  if [ ${#quick[@]} -gt 0 ]; then return 0; fi
  for ((first = 101; first < 2000; first += 100)); do
    SLUICE_PROGRAM=$first+100 "$root/build/release/tests/autograd_test" --gtest_brief=1 \
      --gtest_filter='RandomPrograms.OfThreads*' || return 1
  done
}
programs() {
  build_preset release programs autograd_test -DSLUICE_TESTS=ON
  build_preset release programs ndarray_test
  build_preset release programs operators_test
  local deep=(env SLUICE_DEEP=1)
  if [ ${#quick[@]} -gt 0 ]; then deep=(); fi
  "${deep[@]}" "$root/build/release/tests/autograd_test" --gtest_brief=1 --gtest_filter='RandomPrograms.*:BackwardInHalves.*RandomPrograms' &&
    sessions &&
    "${deep[@]}" "$root/build/release/tests/ndarray_test" --gtest_brief=1 --gtest_filter='LaterPrograms.*' &&
    "${deep[@]}" "$root/build/release/tests/operators_test" --gtest_brief=1 --gtest_filter='PlacedPrograms.*'
}
sums() {
  build_preset release sums operators_test -DSLUICE_TESTS=ON
  local deep=(env SLUICE_DEEP=1)
  if [ ${#quick[@]} -gt 0 ]; then deep=(); fi
  "${deep[@]}" "$root/build/release/tests/operators_test" --gtest_brief=1 --gtest_filter='LongSums.*'
}
pipelines() {
  build_preset release pipelines parallel_test -DSLUICE_TESTS=ON
  local deep=(env SLUICE_DEEP=1)
  if [ ${#quick[@]} -gt 0 ]; then deep=(); fi
  local shard=()
  if [ -n "$slice" ]; then shard=("GTEST_SHARD_INDEX=$((${slice%/*} - 1))" "GTEST_TOTAL_SHARDS=${slice#*/}"); fi
  env SLUICE_TEST_DEVICE=sim "${shard[@]}" "${deep[@]}" "$root/build/release/tests/parallel_test" --gtest_brief=1 \
    --gtest_filter='*PipelineOrders.*'
}
nets() {
  local count=500 seed=$((RANDOM * 32768 + RANDOM)) status
  if [ ${#quick[@]} -gt 0 ]; then count=60; fi
  if [ -n "$slice" ]; then count=$((count / ${slice#*/})); fi
  echo "$count nets of seed $seed"
  build_preset release nets nn_test -DSLUICE_TESTS=ON "-DSLUICE_MADE_UP_NETS=$count" "-DSLUICE_MADE_UP_SEED=$seed"
  "$root/build/release/tests/nn_test" --gtest_brief=1 --gtest_filter='MadeUpNets.*'
  status=$?
  env SLUICE_TEST_DEVICE=sim "$root/build/release/tests/nn_test" --gtest_brief=1 --gtest_filter='MadeUpNets.*' ||
    status=1
  cmake --preset release -USLUICE_MADE_UP_NETS -USLUICE_MADE_UP_SEED >/dev/null
  return $status
}
headers() {
  local part=${slice:-1/1}
  if [ ${#quick[@]} -gt 0 ]; then part=1/20; fi
  cmake --preset release >/dev/null &&
    cmake -DBUILD="$root/build/release" -DWORK="$root/build/deep/headers" -DSOURCE="$root" -DSLICE="$part" \
      -DCOMPILERS=g++,clang++-19 -DSTANDARDS=20,23 -P "$root/tests/system/headers_test.cmake"
}
compare() {
  local python=${SLUICE_PYTHON:-python3} seed
  if ! "$python" -c 'import numpy, safetensors, torch' 2>/dev/null; then
    echo "not run: $python has no torch; SLUICE_PYTHON says another"
    return 77
  fi
  for seed in 1 2 3 $((RANDOM + 4)); do "$root/tests/compare.sh" --python "$python" --seed "$seed" || return 1; done
}
minilm() {
  local said
  if [ -z "${SLUICE_MINILM:-}" ]; then
    echo "not run: SLUICE_MINILM is not the folder of the model"
    return 77
  fi
  build_preset release minilm finetune
  local epochs=3
  if [ ${#quick[@]} -gt 0 ]; then epochs=1; fi
  said=$("$root/tests/minilm.sh" "$(realpath "$SLUICE_MINILM")" --python "${SLUICE_PYTHON:-python3}" \
    --epochs "$epochs") || { echo "$said"; return 1; }
  echo "$said"
  if [[ $said == *"NOT RUN"* ]]; then return 77; fi
}
forks() {
  local count=2400
  if [ ${#quick[@]} -gt 0 ]; then count=240; fi
  build_preset release forks fork_load -DSLUICE_TESTS=ON
  build_preset release forks system_test
  local deep=(env SLUICE_DEEP=1)
  if [ ${#quick[@]} -gt 0 ]; then deep=(); fi
  "$root/build/release/tests/fork_load" load "$count" && "$root/build/release/tests/fork_load" first $((count / 12)) &&
    "${deep[@]}" "$root/build/release/tests/system_test" --gtest_brief=1 --gtest_filter='CheckpointRuns.*'
}
fuzz() {
  local seconds=30 parser log status=0
  if [ ${#quick[@]} -gt 0 ]; then seconds=5; fi
  if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++-19 -x c++ -fsanitize=fuzzer -o /dev/null - 2>/dev/null; then
    echo "no clang++-19 with libFuzzer here"
    return 77
  fi
  build_preset fuzz fuzz fuzzers
  rm -rf "$root/build/fuzz/deep_corpus"
  python3 "$root/tests/fuzz/seeds.py" "$root/build/fuzz/deep_corpus"
  for parser in image csv cifar; do
    log=$root/build/deep/fuzz-$parser.log
    if "$root/build/fuzz/tests/fuzz/fuzz_$parser" "-max_total_time=$seconds" -max_len=4096 -timeout=10 \
      -print_final_stats=1 "-artifact_prefix=$root/build/fuzz/" "$root/build/fuzz/deep_corpus/$parser" >"$log" 2>&1; then
      echo "$parser: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
    else
      tail -n 30 "$log"
      status=1
    fi
  done
  return $status
}
soak() {
  local loads=(flood bare wrap)
  if [ -n "$slice" ]; then loads=("${loads[$((${slice%/*} - 1))]}"); fi
  "$root/tests/soak.sh" "${quick[@]}" "${loads[@]}"
}
mutants() {
  if [ -n "$slice" ]; then
    "$root/tests/mutations.sh" --slice "$slice"
  else
    "$root/tests/mutations.sh" --unmutated 1 && "$root/tests/mutations.sh" "${quick[@]}"
  fi
}
# Addresses spread as the kernel likes may be more than ThreadSanitizer can follow: setarch.
sanitizers() {
  build_preset asan sanitizers all -DSLUICE_TESTS=ON
  build_preset tsan-clang sanitizers engine_test -DSLUICE_TESTS=ON
  build_preset tsan-clang sanitizers pushers_test
  local asan=() tsan=()
  if [ ${#quick[@]} -gt 0 ]; then asan=(-R '^ndarray') tsan=(-R '^pushers'); else tsan=(-R '^(engine|pushers)\.'); fi
  ctest --test-dir "$root/build/asan" -j2 --output-on-failure --no-tests=error "${asan[@]}" &&
    setarch "$(uname -m)" -R \
      ctest --test-dir "$root/build/tsan-clang" -j4 --output-on-failure --no-tests=error "${tsan[@]}"
}
debian13() { "$root/tests/debian13.sh" "${quick[@]}"; }
explore() { "$root/tests/explore.sh" "${quick[@]}"; }

mkdir -p "$root/build/deep"
summary=() status=0
for chosen in "${parts[@]}"; do
  printf '\n#### %s\n' "$chosen"
  start=$SECONDS part=${chosen%%:*} slice= quick=("${every_part_quick[@]}")
  case $chosen in
    *:quick) quick=(--quick) ;;
    *:*) slice=${chosen#*:} ;;
  esac
  "$part" 2>&1 </dev/null | tee "$root/build/deep/$part.log"
  case ${PIPESTATUS[0]} in
    0) ended=ok ;;
    77) ended='NOT RUN' ;;
    *) ended=FAILED status=1 ;;
  esac
  summary+=("$chosen $ended in $((SECONDS - start)) s")
done
printf '\ndeep: %s\n' "$(IFS=,; sed 's/,/, /g' <<<"${summary[*]}")"
exit $status
