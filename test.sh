#!/usr/bin/env bash
# Installs what is missing, builds Sluice and runs every test.
#
#   ./test.sh [--no-install] [CTEST_ARGUMENT...]      such as: ./test.sh -R engine    ./test.sh -LE slow
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$root/cmake/steps.sh"

install=()
arguments=()
for argument in "$@"; do
  case $argument in
    --no-install) install=(--no-install) ;;
    --help | -h) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) arguments+=("$argument") ;;
  esac
done

step "packages"
"$root/cmake/packages.sh" "${install[@]}" build data test

step "build (10 to 15 minutes on two cores, the first time)"
build_preset release test all -DSLUICE_TESTS=ON

step "test"
ctest --test-dir "$root/build/release" -j2 --output-on-failure "${arguments[@]}" </dev/null || {
  status=$?
  outputs_of_failed "$root/build/release"
  exit $status
}
