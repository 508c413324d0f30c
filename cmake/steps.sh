# What quickstart.sh, test.sh and .ci/run share; sourced, with $root set to the repository.

step() { printf '== %s\n' "$1"; }

# build_preset PRESET LOG TARGET [CONFIGURE_ARGUMENT...]: configures and builds, quietly. On a terminal Ninja shows its
# own line; elsewhere there is one line for each fifth of the way. A failure shows the end of build/LOG.log.
# SLUICE_CCACHE=OFF in the environment does without ccache.
build_preset() {
  local preset=$1 log=$root/build/$2.log target=$3
  shift 3
  mkdir -p "$root/build"
  if [ -n "${SLUICE_CCACHE:-}" ]; then set -- "$@" "-DSLUICE_CCACHE=$SLUICE_CCACHE"; fi
  if ! (cd "$root" && cmake --preset "$preset" "$@" </dev/null) >"$log" 2>&1; then
    failed "configuring" "$log"
  fi
  local command=(cmake --build "$root/build/$preset" --target "$target" --parallel "$(nproc)")
  if [ -t 1 ]; then
    "${command[@]}" </dev/null || failed "building" ""
  elif ! "${command[@]}" </dev/null 2>&1 | tee -a "$log" | build_progress; then
    failed "building" "$log"
  fi
}

# No awk: Debian's keeps what it reads from a pipe until it has many lines.
build_progress() {
  local line fifth last=0
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    fifth=$((5 * BASH_REMATCH[1] / BASH_REMATCH[2]))
    if ((fifth > last)); then
      last=$fifth
      printf '   built: %d of %d\n' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    fi
  done
}

# outputs_of_failed BUILD_FOLDER: the last lines of the first two tests that failed in ctest's last run, once more and
# behind everything else, because who reads the output of a long run may see no more than its end.
outputs_of_failed() {
  local logs=$1/Testing/Temporary name
  [ -s "$logs/LastTestsFailed.log" ] || return 0
  head -n 2 "$logs/LastTestsFailed.log" | cut -d: -f2 | while read -r name; do
    printf '==== %s printed at last:\n' "$name"
    awk -v name="$name" '$2 == "Testing:" { here = $3 == name; next } here' "$logs/LastTest.log" |
      grep -vE '^(Command|Directory|Output): ?|^[0-9]+/[0-9]+ Test: |^Test (time =|Failed\.)|^-+$|^<end of output>' |
      grep -vE '^".*" (start time|end time|time elapsed):|^Running main|^Note: |^\[[-=]+\]|^ ?$|^ *[0-9]+ FAILED TEST|^\[ +(PASSED|FAILED) +\] [0-9]+ test' |
      tail -n 12 | cut -c 1-300
  done
}

failed() {
  local logs=$1/Testing/Temporary name
  [ -s "$logs/LastTestsFailed.log" ] || return 0
  head -n 3 "$logs/LastTestsFailed.log" | cut -d: -f2 | while read -r name; do
    printf '\n==== %s printed at last:\n' "$name"
    awk -v name="$name" '$2 == "Testing:" { here = $3 == name } here' "$logs/LastTest.log" |
      grep -vE '^(<end of output>|Test time =|-+$|".*" (start|end) time:|".*" time elapsed:)' | tail -n 30 | cut -c 1-400
  done
}

failed() {
  if [ -n "$2" ]; then
    tail -n 25 "$2" >&2
    # What is at fault need not be among the last lines, and who reads this may see no more than its end.
    echo "lines at fault:" >&2
    grep -n -A 6 -m 8 -E '(^|[^_])error:|: Failure$|ERROR: |runtime error: |WARNING: ThreadSanitizer|terminate called' "$2" |
      cut -c 1-400 >&2 || true
    # A test that ended without such a line: its own output, which follows ctest's line.
    grep -n -A 40 -m 4 -E '\*\*\*(Failed|Timeout|Exception|Not Run)' "$2" | cut -c 1-400 >&2 || true
    echo "error: $1 failed; all of its output is in $2" >&2
  else
    echo "error: $1 failed" >&2
  fi
  exit 1
}
