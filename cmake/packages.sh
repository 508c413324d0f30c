#!/usr/bin/env bash
# The one list of Debian packages that Sluice needs, and the one place that installs them. The names are those of Debian
# 12 and of Debian 13.
#
#   cmake/packages.sh [--no-install] GROUP...        groups: build data test bench format peer_libomp
#                                                   peer_starpu clang cache debian13
#
# Installs what is missing, as root or through sudo. With --no-install it only says what is missing.
# Exit status: 0 all there, 2 something is missing and was not installed, 1 the installation failed.
set -euo pipefail

# docs/dependencies.md says why each one is here. The OpenCL headers are asked for by oneDNN's CMake package alone.
build="g++ cmake ninja-build libtbb-dev libconcurrentqueue-dev libopenblas-pthread-dev libdnnl-dev ocl-icd-opencl-dev
       zlib1g-dev libpng-dev libjpeg62-turbo-dev nlohmann-json3-dev libcli11-dev"
data="dataset-fashion-mnist"
test="libgtest-dev libgmock-dev spin python3-numpy pkg-config locales"
bench="libbenchmark-dev"
format="clang-format git"
peer_libomp="clang-19 libomp-19-dev"  # bench/engine.sh's peers; libomp-19-dev takes the place of another libomp
peer_starpu="libstarpu-dev pkg-config"
cache="ccache"  # what was compiled once, in any checkout, is not compiled again
clang="clang-19 libclang-rt-19-dev llvm-19"  # the presets asan-clang and tsan-clang
debian13="debootstrap git"  # tests/debian13.sh

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
log=$root/build/packages.log

install=yes
wanted=()
for argument in "$@"; do
  case $argument in
    --no-install) install=no ;;
    build | data | test | bench | format | peer_libomp | peer_starpu | clang | cache | debian13)
      read -r -d '' -a group <<<"${!argument}" || true; wanted+=("${group[@]}") ;;
    *) echo "packages.sh: unknown argument '$argument'" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  if [ "$install" = no ]; then
    echo "   no dpkg here, so packages are not checked; CMake will name what it does not find"
    exit 0
  fi
  echo "error: this is not a Debian system: install what corresponds to '${wanted[*]}', then use --no-install" >&2
  exit 2
fi

missing=()
present=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
for package in "${wanted[@]}"; do
  grep -qxF "$package installed" <<<"$present" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "   all ${#wanted[@]} are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi
if [ "$install" = no ] || { [ ${#as_root[@]} -gt 0 ] && ! command -v sudo >/dev/null; }; then
  reason=
  if [ "$install" = yes ]; then reason=" (neither root nor sudo here)"; fi
  echo "error: ${#missing[@]} packages are missing$reason: apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 2
fi

# Keeps what apt prints in the log, and turns its account of its progress into one line for each fifth of the way. No
# awk: Debian's keeps what it reads from a pipe until it has many lines.
progress() {
  local line what percent fifth last=0 before=
  while IFS= read -r line; do
    case $line in
      dlstatus:*) what=downloading ;;
      pmstatus:*) what=installing ;;
      *) printf '%s\n' "$line" >>"$log"; continue ;;
    esac
    IFS=: read -r _ _ percent _ <<<"$line"
    percent=${percent%%.*}
    [[ $percent =~ ^[0-9]+$ ]] || continue
    fifth=$((percent / 20))
    if [ "$what" != "$before" ]; then before=$what last=0; fi
    if ((fifth > last)); then
      last=$fifth
      printf '   %s: %d %%\n' "$what" $((fifth * 20))
    fi
  done
}

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

mkdir -p "$(dirname "$log")"
: >"$log"
echo "   missing: ${missing[*]}"
if [ ${#as_root[@]} -gt 0 ]; then sudo -v; fi  # asks for a password before the output goes to the log
echo "   reading the package lists"
# A broken foreign source must not stop us where the lists that we need are there.
apt update >>"$log" 2>&1 || echo "   warning: 'apt-get update' failed; trying with the lists that are here"
if ! apt install --no-install-recommends -o APT::Status-Fd=1 "${missing[@]}" 2>&1 | progress; then
  echo "error: apt-get could not install the packages; the end of $log:" >&2
  tail -n 12 "$log" >&2
  exit 1
fi
