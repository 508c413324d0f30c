#!/usr/bin/env bash
# The engine under long loads: 10^7 pushes of 20 us ops at caps of 10,000 ops and 256 MB, whose memory must stay within
# the start + the cap + 10%; the same without the ops' own memory, which leaves the engine's (two records of 480 bytes
# for each op in flight, and their places in queues); and 10^9 small ops over counters that come round, whose memory
# must stay flat.
#
#   tests/soak.sh            about 5 minutes on two cores
#   tests/soak.sh --quick    a fiftieth of it
#   tests/soak.sh [--quick] LOAD...    some of the loads: flood, bare, wrap
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
pushes=10000000 ops=1000000000
loads=()
for word in "$@"; do
  case $word in
    --quick) pushes=200000 ops=20000000 ;;
    flood | bare | wrap) loads+=("$word") ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
done
if [ ${#loads[@]} = 0 ]; then loads=(flood bare wrap); fi
build_preset release soak engine_soak -DSLUICE_TESTS=ON
soak=$root/build/release/tests/engine_soak
declare -A size=([flood]=$pushes [bare]=60000 [wrap]=$ops)
status=0
for load in "${loads[@]}"; do "$soak" "$load" "${size[$load]}" || status=1; done
exit $status
