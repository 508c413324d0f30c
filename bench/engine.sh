#!/usr/bin/env bash
# The engine's speed beside systems that do the same job, in interleaved runs.
#
#   bench/engine.sh [--quick] [--rounds N] [--taskflow DIR] [--mxnet DIR] [--before DIR] [--no-install]
#                   [--build DIR]
#
# Installs the peers that Debian has (--no-install: goes on without those that are missing). Taskflow needs the folder
# that holds `taskflow/taskflow.hpp`; MXNet that of the 1.9.1 wheel from PyPI, which holds libmxnet.so (pip download
# --no-deps mxnet==1.9.1, unpacked). --before: an older checkout of ours, whose library runs the same program; it has a
# line of its own beside the best peer. --rounds: 9, or 3 with --quick, which takes two minutes once all is built.
#
# In each round each pattern is a turn: a ping-pong reading (a cache line to another core and back) and then one run of
# each side, in an order that changes with the round. Turns whose reading is 200 ns or more are "far" and stand apart.
# bench/peers/engine_patterns.h says what a run measures. All samples are in BUILD/engine.tsv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
source "$root/bench/sides.sh"

wrong() { echo "error: $1" >&2; exit 2; }

quick=() rounds="" taskflow="" mxnet="" before="" install=() failures=0 build=$root/build/bench
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --quick) quick=(--quick); shift ;;
    --no-install) install=(--no-install); shift ;;
    --rounds | --taskflow | --mxnet | --before | --build)
      [ $# -ge 2 ] || wrong "$1 wants a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    *) wrong "unknown argument $1" ;;
  esac
done
if [ -z "$rounds" ]; then rounds=$([ ${#quick[@]} -gt 0 ] && echo 3 || echo 9); fi
[[ $rounds =~ ^[1-9][0-9]*$ ]] || wrong "--rounds $rounds: a positive number is wanted"
if [ -n "$taskflow" ]; then
  [ -e "$taskflow/taskflow/taskflow.hpp" ] || wrong "--taskflow $taskflow: no taskflow/taskflow.hpp there"
  taskflow=$(cd "$taskflow" && pwd)
fi
if [ -n "$mxnet" ]; then
  [ -e "$mxnet/libmxnet.so" ] || wrong "--mxnet $mxnet: no libmxnet.so there"
  mxnet=$(cd "$mxnet" && pwd)
fi
mkdir -p "$build/peers"
build=$(cd "$build" && pwd)

step "packages"
"$root/cmake/packages.sh" "${install[@]}" build
for group in peer_libomp peer_starpu; do
  "$root/cmake/packages.sh" "${install[@]}" "$group" || echo "   going on without this peer"
done

step "build"
log=$build/engine.log
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_BENCH=ON -DSLUICE_TESTS=OFF \
  -DSLUICE_EXAMPLES=OFF >"$log" 2>&1 || failed "configuring" "$log"
cmake --build "$build" --target bench_engine_patterns >>"$log" 2>&1 || failed "building" "$log"

ours=$build/bench/bench_engine_patterns
sides=(sluice)
declare -A command=([sluice]="$ours") has=() only=()

# peer NAME SOURCE COMPILER ARGUMENT...: compiles bench/peers/SOURCE where it, the shared header or the command is new.
peer() {
  local name=$1 source=$root/bench/peers/$2 program=$build/peers/$1
  shift 2
  local line=("$1" -O3 -DNDEBUG -I"$root/bench/peers" "$source" -o "$program" "${@:2}")
  if [ ! -x "$program" ] || [ "$source" -nt "$program" ] || [ "$root/bench/peers/engine_patterns.h" -nt "$program" ] ||
    [ "$(cat "$program.command" 2>/dev/null)" != "${line[*]}" ]; then
    echo "   $name"
    "${line[@]}" >>"$log" 2>&1 || failed "building the peer $name" "$log"
    echo "${line[*]}" >"$program.command"
  fi
}
# side NAME COMMAND [THREADS]: one that is run for that number of threads only, or for all.
side() { sides+=("$1"); command[$1]=$2; only[$1]=${3:-}; }

if [ -n "$before" ]; then
  build_before "$before" "$build/before" bench_engine_patterns "$log"
  side before "$build/before/bench_engine_patterns"
fi

# A team of one thread runs each op inside its push and schedules nothing. libomp's is shown, as a floor, and is never
# the best peer.
openmp() {
  side "$1" "env ENGINE_TEAM=counted-in $build/peers/$1" 2
  side "$1+1" "env ENGINE_TEAM=besides $build/peers/$1"
}

gcc=${CXX:-g++}
peer openmp-gcc engine_openmp.cc "$gcc" -std=c++20 -fopenmp
openmp openmp-gcc
if command -v clang++-19 >/dev/null && [ -e /usr/lib/llvm-19/lib/libomp.so ]; then
  peer openmp-llvm engine_openmp.cc clang++-19 -std=c++20 -fopenmp=libomp
  openmp openmp-llvm
  side serial "env ENGINE_TEAM=counted-in $build/peers/openmp-llvm" 1
else
  echo "   no openmp-llvm: clang-19 and libomp-19-dev are missing"
fi
if flags=$(pkg-config --cflags --libs starpu-1.3 2>/dev/null); then
  read -r -a starpu <<<"$flags"
  peer starpu engine_starpu.cc "$gcc" -std=c++20 "${starpu[@]}"
  side starpu "$build/peers/starpu"
else
  echo "   no starpu: libstarpu-dev is missing"
fi
peer tbb-graph engine_tbb.cc "$gcc" -std=c++20 -ltbb
side tbb-graph "$build/peers/tbb-graph"
if [ -n "$taskflow" ]; then
  peer taskflow engine_taskflow.cc "$gcc" -std=c++20 -isystem "$taskflow" -pthread
  side taskflow "$build/peers/taskflow"
else
  echo "   no taskflow: --taskflow DIR was not given"
fi
if [ -n "$mxnet" ]; then  # its headers are older than C++20
  peer mxnet engine_mxnet.cc "$gcc" -std=c++17 -fconcepts -w -DMSHADOW_STAND_ALONE=1 -DMSHADOW_USE_F16C=0 \
    -isystem "$mxnet/include" -L"$mxnet" -Wl,-rpath,"$mxnet" -lmxnet
  program=$build/peers/mxnet
  side mxnet-closure "env MXNET_ENGINE_TYPE=ThreadedEnginePerDevice ENGINE_OPERATORS=closure $program"
  side mxnet-cached "env MXNET_ENGINE_TYPE=ThreadedEnginePerDevice ENGINE_OPERATORS=cached $program"
  side mxnet-pooled "env MXNET_ENGINE_TYPE=ThreadedEngine ENGINE_OPERATORS=cached $program"
else
  echo "   no mxnet: --mxnet DIR was not given"
fi

for s in "${sides[@]}"; do has[$s]=" $(${command[$s]} --list | tr '\n' ' ')"; done

step "measure: $rounds rounds, ${#sides[@]} sides in turns"
samples=$build/engine.tsv
limit=$([ ${#quick[@]} -gt 0 ] && echo 10 || echo 60)  # libgomp's fan can take minutes
printf 'round\tpattern\tthreads\tside\tns\tshare\tping_pong_ns\n' >"$samples"
for ((round = 1; round <= rounds; ++round)); do
  for threads in 1 2; do
    start=$SECONDS readings=()
    for pattern in $("$ours" --list-all); do
      # The goals for two pushers are those with two workers.
      if [[ $pattern = pushers2_* && $threads = 1 ]]; then continue; fi
      ping_pong=$("$ours" --ping-pong)
      readings+=("$ping_pong")
      for ((i = 0; i < ${#sides[@]}; ++i)); do
        side=${sides[(i + round) % ${#sides[@]}]}
        if [[ ${has[$side]} != *" $pattern "* || ${only[$side]:-$threads} != "$threads" ]]; then continue; fi
        if ! result=$(timeout "$limit" ${command[$side]} "${quick[@]}" "$threads" "$pattern" 2>>"$log"); then
          echo "   warning: no figure of $side for $pattern with $threads threads: it failed, or took over $limit s"
          if [ "$side" = sluice ]; then failures=$((failures + 1)); fi
          continue
        fi
        read -r _ _ ns share <<<"$result"
        printf '%s\t' "$round" "$pattern" "$threads" "$side" "$ns" "$share" >>"$samples"
        echo "$ping_pong" >>"$samples"
      done
    done
    sorted=$(printf '%s\n' "${readings[@]}" | sort -g)
    echo "   round $round of $rounds, threads $threads: $((SECONDS - start)) s," \
      "ping-pong ${sorted%%$'\n'*} to ${sorted##*$'\n'} ns"
  done
done

# between LEAST MOST: the samples of the turns whose reading is at least LEAST and below MOST.
between() { awk -F'\t' -v least="$1" -v most="$2" 'NR > 1 && $7 >= least && $7 < most' "$samples"; }

# report LEAST MOST: their quartiles for each side, and then the line for each pattern.
report() {
  between "$1" "$2" | sort -t$'\t' -k5,5g |
    awk -F'\t' -v order="$("$ours" --list-all | tr '\n' ' ')" -v sides="${sides[*]}" '
      { key = $2 " " $3 " " $4; count[key]++; ns[key, count[key]] = $5; share[key, count[key]] = $6 }
      function at(values, key, p,   k, low) {
        k = 1 + p * (count[key] - 1); low = int(k)
        return values[key, low] + (k - low) * (values[key, low + (k > low)] - values[key, low])
      }
      function shown(value) { return sprintf(value < 100 && value > -100 ? "%.1f" : "%.0f", value) }
      function figure(key) { return key in median ? shown(median[key]) : "-" }
      function ratio(peer, own) {
        if (!(peer in median) || !(own in median) || median[peer] <= 0 || median[own] <= 0) return "-"
        return sprintf("%.2f", median[peer] / median[own])
      }
      function row(pattern, threads, side,   key, part) {
        key = pattern " " threads " " side
        median[key] = at(ns, key, 0.5)
        part = share[key, 1] == "-" ? "-" : sprintf("%.3f", at(share, key, 0.5))
        printf form, pattern, threads, side, shown(median[key]), shown(at(ns, key, 0.25)), shown(at(ns, key, 0.75)),
          part, count[key]
      }
      END {
        form = "%-16s %-7s %-14s %9s %9s %9s %6s %5s\n"
        patterns = split(order, pattern, " ")
        all = split(sides, side, " ")
        printf form, "pattern", "threads", "side", "median", "quartile", "quartile", "share", "runs"
        for (i = 1; i <= patterns; i++) for (t = 1; t <= 2; t++) {
          id = pattern[i] " " t
          best[id] = "-"
          for (j = 1; j <= all; j++) {
            key = id " " side[j]
            if (!(key in count)) continue
            row(pattern[i], t, side[j])
            if (side[j] == "sluice" || side[j] == "serial" || side[j] == "before") continue
            if (best[id] == "-" || median[key] < median[id " " best[id]]) best[id] = side[j]
          }
        }
        printf "\npattern threads sluice_ns best_peer best_peer_ns ratio%s\n", sides ~ / before/ ? " before_ns before/sluice" : ""
        for (i = 1; i <= patterns; i++) for (t = 1; t <= 2; t++) {
          id = pattern[i] " " t; own = id " sluice"; peer = id " " best[id]
          if ((own in median) || (peer in median))
            print id, figure(own), best[id], figure(peer), ratio(peer, own),
              sides ~ / before/ ? figure(id " before") " " ratio(id " before", own) : ""
        }
      }'
}

turns() { between "$1" "$2" | cut -f1-3 | sort -u | wc -l; }

far=$(turns 200 1e9) near=$(turns 0 200)
echo
echo "ns per op (work_*: beyond the body; share: of the cores' time spent in bodies); ratio: best peer / sluice"
echo "openmp-*+1: a team of one thread more; serial: a team of one, which runs each op in its push and is no peer"
if [ "$far" -gt 0 ]; then
  printf '\nfar: %d turns with a ping-pong of 200 ns or more\n' "$far"
  report 200 1e9
fi
printf '\nnear: %d turns with a ping-pong below 200 ns\n' "$near"
if [ "$near" -gt 0 ]; then report 0 200; fi
[ "$failures" = 0 ] || { echo "error: $failures of Sluice's runs failed; $log says more" >&2; exit 1; }
