#!/usr/bin/env bash
# The engine under long loads: 10^7 pushes of 20 us ops at caps of 10,000 ops and 256 MB, whose memory must stay within
# the start + the cap + 10%; the same without the ops' own memory, which leaves the engine's (two records of 480 bytes
# for each op in flight, and their places in queues); and 10^9 small ops over counters that come round, whose memory
# must stay flat.
#
#   tests/soak.sh            about 5 minutes on two cores
#   tests/soak.sh --quick    a fiftieth of it
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/steps.sh"
pushes=10000000 ops=1000000000
case ${1-} in
  "") ;;
  --quick) pushes=200000 ops=20000000 ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
build_preset release soak engine_soak -DSLUICE_TESTS=ON
soak=$root/build/release/tests/engine_soak
status=0
"$soak" flood "$pushes" || status=1
"$soak" bare 60000 || status=1
"$soak" wrap "$ops" || status=1
exit $status
