#!/usr/bin/env bash
# Checks the engine's protocol as a Spin model: every interleaving of each program that must hold, and for each broken
# variant that the check finds the break. Half a minute on two cores; each run takes less than 2 GB of memory.
#
#   tests/model/check.sh [--quick | --few]   --quick: the smaller models, and every variant; --few: one of each
#   tests/model/check.sh --traces PROGRAM    instead: the chains' model follows the traces that PROGRAM FOLDER writes, and
#                                            those in traces/ that it must follow, and none that it must not
#
# Without --traces it prints a line for each, with the number of states or with what broke, and ends with
# `models N ok, variants M of M fail`. Exit status 0 if that is so.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Model, what it is about, options of spin (from the first -D on). Those before the empty line are the quick ones.
models="
chain  a failing update, a read, a write that heals, two pushers  -DPROGRAM=2
chain  a wait and a reader behind an op that fails                -DPROGRAM=3
chain  any two ops over two variables, two pushers                -DPROGRAM=5 -DOPS=2 -DWORKERS=1

chain  two-variable ops of two pushers, crossed; one fails        -DPROGRAM=1
chain  any three accesses of one variable                         -DPROGRAM=4 -DWORKERS=1
"

# Model, what is broken, options. Each changes a line or two of the model, next to the line that is right.
variants="
chain  several variables linked one after another, no lock mark        -DPROGRAM=1 -DNO_LOCK_MARK
chain  the token leaves its variable after it says that it is done     -DPROGRAM=2 -DDETACH_LATE
chain  the linker computes rights from the state before its own bit    -DPROGRAM=2 -DOLD_RIGHTS
chain  rights are passed again when the state changes again            -DPROGRAM=4 -DWORKERS=1 -DRIGHTS_OF_NEW
chain  poison is not passed to the successor                           -DPROGRAM=2 -DNO_POISON
chain  an idle tail does not say whether the variable is marked        -DPROGRAM=2 -DSTALE_IDLE
chain  a token is retired before its rights are brought                -DPROGRAM=2 -DRETIRE_FIRST
chain  a state is stored that another thread may still change          -DPROGRAM=2 -DSTORES_EARLY
chain  a retirement counts twice                                       -DPROGRAM=1 -DTWICE
"

quick=no few=no traces=
case ${1:-} in
  "") ;;
  --quick) quick=yes ;;
  --few) few=yes ;;
  --traces) traces=$(realpath "${2:?check.sh: --traces wants a program}") ;;
  --help | -h) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "check.sh: unknown argument '$1'" >&2; exit 2 ;;
esac
for tool in spin gcc; do
  command -v $tool >/dev/null || { echo "check.sh: no '$tool' here (cmake/packages.sh test installs it)" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# search FOLDER OPTIMISE MODEL OPTION...: leaves what the search said in FOLDER/said.
search() {
  local folder=$1 optimise=$2 model=$3
  shift 3
  mkdir "$folder"
  cp "$here"/*.pml "$folder"
  (
    cd "$folder"
    spin "$@" -a "$model.pml" >spin.log 2>&1 &&
      gcc "$optimise" -w -DSAFETY -DCOLLAPSE -DMEMLIM=2000 -o pan pan.c >>spin.log 2>&1 || { cat spin.log; exit 0; }
    ./pan -m100000 2>&1
  ) >"$folder/said" || true
}

# one KIND NUMBER LINE: searches, prints the line of this model or variant, and leaves FOLDER/right if it is as it must be.
one() {
  local kind=$1 folder=$work/$1$2 model what options seconds=$SECONDS
  read -r model what <<<"$3"
  options=-D${what#*-D}
  what=${what%%-D*}
  local arguments
  read -r -a arguments <<<"$options"
  # Compiling takes longer than finding what is broken.
  if [ "$kind" = model ]; then search "$folder" -O1 "$model" "${arguments[@]}"; else search "$folder" -O0 "$model" "${arguments[@]}"; fi
  seconds=$((SECONDS - seconds))
  local states broke
  states=$(awk '/states, stored/ { print $1; exit }' "$folder/said")
  broke=$(sed -n 's/^pan:[0-9]*: \(.*\) (at depth [0-9]*)$/\1/p' "$folder/said" | head -n 1)
  local searched=no
  if grep -q 'errors: [0-9]' "$folder/said" && ! grep -qE 'max search depth too small|Search not completed' "$folder/said"; then
    searched=yes
  fi
  if [ "$kind" = model ] && [ $searched = yes ] && grep -q 'errors: 0' "$folder/said"; then
    printf 'model   %-6s %-66s ok, %s states, %d s\n' "$model" "$what" "$states" "$seconds"
    touch "$folder/right"
  elif [ "$kind" = variant ] && [ -n "$broke" ]; then
    printf 'variant %-6s %-66s fails: %.60s\n' "$model" "$what" "$broke"
    touch "$folder/right"
  else
    printf '%-7s %-6s %-66s WRONG: %s\n' "$kind" "$model" "$what" "${broke:-$(tail -n 3 "$folder/said" | tr '\n' ' ')}"
  fi
}

# all KIND LIST: two at a time, one line each.
all() {
  local kind=$1 line number=0
  while read -r line; do
    if [ -z "$line" ]; then continue; fi
    number=$((number + 1))
    one "$kind" "$number" "$line" &
    if [ "$(jobs -rp | wc -l)" -ge 2 ]; then wait -n; fi
  done <<<"$2"
  wait
}
# right KIND: how many came out as they must; count LIST: how many there are.
right() { find "$work" -path "$work/$1*/right" | wc -l; }
count() { grep -c . <<<"$1"; }

# Each trace has a model of its own, read when it runs. Distinct ones are followed once.
follow() {
  local followed=0 wrong=0 trace said folder=$work/follow
  mkdir "$folder" "$work/told"
  cp "$here"/*.pml "$folder"
  (cd "$folder" && spin -DTRACED -DOPS=6 -DVARS=3 -a chain.pml && gcc -O1 -w -DSAFETY -DCOLLAPSE -DMEMLIM=2000 -o pan pan.c)
  "$traces" "$work/told"
  (cd "$work/told" && md5sum -- * | sort | awk 'seen[$1]++ { print $2 }' | xargs -r rm)
  for trace in "$here"/traces/* "$work"/told/*; do
    # An end that is no end is where the model cannot follow; the search goes on for another way.
    said=$(cd "$folder" && TRACE=$trace ./pan -E -m100000 2>&1 || true)
    local wanted=accepted
    if [[ $trace == */rejected-* ]]; then wanted=rejected; fi
    if grep -q "^trace: $wanted" <<<"$said" && ! grep -q '^pan:[0-9]*: ' <<<"$said"; then
      followed=$((followed + 1))
    else
      wrong=$((wrong + 1))
      printf 'WRONG: %s is not %s: %s\n' "${trace##*/}" "$wanted" "$(grep -E '^(trace|pan:[0-9]*): ' <<<"$said" | head -n 1)"
      cat "$trace"
    fi
  done
  printf 'traces %d as they must be, %d not\n' $followed $wrong
  [ $wrong = 0 ]
}
if [ -n "$traces" ]; then
  follow
  exit
fi

chosen=$models
if [ $quick = yes ]; then chosen=$(awk 'NF { begun = 1; print } !NF && begun { exit }' <<<"$models"); fi
if [ $few = yes ]; then
  chosen=$(awk 'NF && !seen[$1]++' <<<"$models")
  variants=$(awk 'NF && !seen[$1]++' <<<"$variants")
fi
all model "$chosen"
all variant "$variants"
good=$(right model) failing=$(right variant)
printf 'models %d ok, variants %d of %d fail\n' "$good" "$failing" "$(count "$variants")"
[ "$good" = "$(count "$chosen")" ] && [ "$failing" = "$(count "$variants")" ]
