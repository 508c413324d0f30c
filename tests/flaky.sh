#!/usr/bin/env bash
# Tests that touch threads, again and again on a busy machine: a test that fails once in a hundred runs is a defect of
# the test or of the code.
#
#   tests/flaky.sh [--tsan] [--rounds N] [--only FILTER]
#
# Each core has a busy loop beside the tests. A round has an eighth of the engine's tests, by turns. It is to take at most
# 30 s in release and 3 minutes with --tsan, and says where it takes longer. Rounds are counted by commit and kind in
# build/flaky/, and go on where an earlier call stopped, up to N [200; 20 with --tsan].
# The tests of a round come in an order of its own (--gtest_shuffle); what fails is run again by the line that is
# printed. --only FILTER: of all programs, the tests that GoogleTest's filter names; such rounds are not counted.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"

preset=release rounds= only=
while [ $# -gt 0 ]; do
  case $1 in
    --tsan) preset=tsan ;;
    --rounds) rounds=$2 && shift ;;
    --only) only=$2 && shift ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; [[ $1 = --help || $1 = -h ]] && exit 0 || exit 2 ;;
  esac
  shift
done
limit=30
if [ $preset = tsan ]; then limit=180; fi
rounds=${rounds:-$([ $preset = tsan ] && echo 20 || echo 200)}

# Program and filter, run one beside the other. Not the explorer's tests, which are one thread's, nor those that measure,
# nor the random circles, whose many threads yield to the busy loops for minutes.
engine='-Explore*:Litmus*:Reduction*:Planted*:Ring.Every*:Batch.Every*:*Oracle*:*ReplayOracle*:Replay.EqualsThePushes*'
engine+=':Bounds.*:Faults.*:*/Faults*:NoMemory.*:Serial.Deep*:*RandomCircles*:Exits*:Lifecycle*:Fork*:OperatorNew*'
sets=("engine_test $engine" "pushers_test *" "resources_test *" "ndarray_test *Thread*:*Imports*:*LostWrites*:*Rules*"
  "autograd_test Threads*:Halves*:BackwardInHalves.D*" "parallel_test Pipeline.*"
  "system_test DeviceGate*:DeviceLoss.AStop*:Semantics*")
if [ $preset = tsan ]; then sets=("engine_test $engine" "pushers_test *"); fi
for set in "${sets[@]}"; do
  build_preset $preset "flaky-$preset" "${set%% *}" -DSLUICE_TESTS=ON
done

folder=$root/build/flaky
mkdir -p "$folder"
commit=$(git -C "$root" rev-parse --short=12 HEAD)
if ! git -C "$root" diff --quiet HEAD -- engine resources ndarray operators autograd nn parallel tests; then commit+=-changed; fi
counted=$folder/$commit.$preset
done_before=$(cat "$counted" 2>/dev/null || echo 0)
if [ -n "$only" ]; then done_before=0; fi

busy=()
for ((i = 0; i < $(nproc); ++i)); do
  (while :; do :; done) &
  busy+=($!)
done
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
fixed_addresses=()  # ThreadSanitizer cannot follow some kernels' wide ones
if [ $preset = tsan ]; then
  export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp:history_size=7"
  if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi
fi

for ((round = done_before + 1; round <= rounds; ++round)); do
  start=$SECONDS
  running=() logs=()
  for i in "${!sets[@]}"; do
    program=${sets[i]%% *} filter=${only:-${sets[i]#* }} log=$folder/$commit.$preset.$i.log
    shards=()
    if [ "$program" = engine_test ]; then shards=(env GTEST_TOTAL_SHARDS=8 "GTEST_SHARD_INDEX=$((round % 8))"); fi
    command=("${shards[@]}" "${fixed_addresses[@]}" "$root/build/$preset/tests/$program" "--gtest_filter=$filter" --gtest_brief=1
      --gtest_shuffle "--gtest_random_seed=$((round % 99999 + 1))")
    printf '%q ' "${command[@]}" >"$log"
    echo >>"$log"
    timeout $((limit * 3)) "${command[@]}" >>"$log" 2>&1 </dev/null &
    running+=($!) logs+=("$log")
    # Two at a time, beside the busy loops.
    if ((i % 2 == 1)) || ((i + 1 == ${#sets[@]})); then
      for at in "${!running[@]}"; do
        if ! wait "${running[at]}"; then
          echo "round $round of $preset at $commit failed; again by:" >&2
          head -n 1 "${logs[at]}" >&2
          failed "round $round" "${logs[at]}"
        fi
      done
      running=() logs=()
    fi
  done
  took=$((SECONDS - start))
  if [ -z "$only" ]; then echo "$round" >"$counted"; fi
  if ((round % 10 == 0 || round == rounds || round == done_before + 1)); then
    echo "round $round of $rounds: ok, $took s"
  fi
  if ((took > limit)); then echo "   longer than $limit s"; fi
done
echo "$commit: $rounds rounds in $preset without a failure"
