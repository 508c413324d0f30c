#!/usr/bin/env bash
# A command in a Debian 13 that has nothing but its base system and a clone of what is committed here: whether Sluice
# builds with that release's compiler and libraries, and whether cmake/packages.sh names all that it needs there.
#
#   tests/debian13.sh              ./test.sh, every test; then every installed header alone, in C++20 and 23
#   tests/debian13.sh --quick      the library and the tests of its operators, which meet most of what other releases of
#                                  the libraries do differently
#   tests/debian13.sh COMMAND...   something else, from the clone's root, such as ./quickstart.sh --epochs 1
#
# Wants root, and Debian's archive (DEBIAN_MIRROR, http_proxy). The base system is made once, in a minute, and kept in
# build/deep/debian13; a run has a copy of it, of which the logs of a build that failed remain. With --quick it has this
# machine's ccache, so that a second run compiles only what has changed.
# Exit status: that of the command; 77 if it cannot be run here.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=$root/build/deep/debian13
base=$dir/base

command=(bash -euo pipefail -c './test.sh
  cmake -DBUILD="$PWD/build/release" -DWORK="$PWD/build/deep/headers" -DSOURCE="$PWD" -DSLICE=1/1 -DCOMPILERS=g++ \
    -DSTANDARDS=20,23 -P tests/system/headers_test.cmake') cache=
case ${1-} in
  "") ;;
  --quick)
    cache=$(ccache --get-config cache_dir 2>/dev/null || true)
    command=(bash -euo pipefail -c 'root=$PWD; source cmake/steps.sh; cmake/packages.sh build test cache
      build_preset release quick operators_test -DSLUICE_TESTS=ON
      build/release/tests/operators_test --gtest_brief=1')
    ;;
  -*) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; [[ $1 = --help || $1 = -h ]] && exit 0 || exit 2 ;;
  *) command=("$@") ;;
esac

not_here() { echo "debian13.sh: not run: $1" >&2; exit 77; }
[ "$(id -u)" = 0 ] || not_here "a system of its own can only be made by root"
command -v dpkg >/dev/null || not_here "debootstrap wants a Debian system or one like it"
unshare --mount --pid --fork true 2>/dev/null || not_here "this machine lets nobody mount anything (a container?)"
"$root/cmake/packages.sh" debian13

mkdir -p "$dir"
if [ ! -e "$base" ]; then
  echo "== Debian 13's base system"
  rm -rf --one-file-system "$dir/new"
  if ! debootstrap --variant=minbase --include=ca-certificates trixie "$dir/new" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$dir/debootstrap.log" 2>&1; then
    tail -n 5 "$dir/debootstrap.log" >&2
    echo "error: debootstrap failed; all of its output is in $dir/debootstrap.log" >&2
    exit 1
  fi
  mv "$dir/new" "$base"
fi

# With sudo the checkout belongs to somebody else, from whom git clones nothing unless it is told so, by a file.
printf '[safe]\n\tdirectory = %s\n\tdirectory = %s/.git\n' "$root" "$root" >"$dir/gitconfig"
export GIT_CONFIG_GLOBAL=$dir/gitconfig
if [ -n "$(git -C "$root" status --porcelain)" ]; then
  echo "   note: what is not committed is not in the clone"
fi
system=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf --one-file-system "$system"' EXIT
cp -a "$base/." "$system"
for file in /etc/resolv.conf /etc/hosts; do
  if [ -e $file ]; then cp -L --remove-destination $file "$system$file"; fi
done
git clone -q "$root" "$system/root/project"

if [ -n "$cache" ] && [ -d "$cache" ]; then mkdir -p "$system/root/.cache/ccache"; else cache=; fi

# What is mounted is so for these processes alone and goes with them, as they go with the first of them.
status=0
unshare --mount --pid --fork --kill-child bash -euc '
  system=$1 cache=$2; shift 2
  if [ -n "$cache" ]; then mount --bind "$cache" "$system/root/.cache/ccache"; fi
  mount -t proc proc "$system/proc"
  mount --rbind /sys "$system/sys"
  mount --rbind /dev "$system/dev"
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    ${http_proxy:+http_proxy=$http_proxy} ${https_proxy:+https_proxy=$https_proxy} \
    chroot "$system" /bin/bash -c "cd /root/project && exec \"\$@\"" debian13 "$@"' \
  debian13 "$system" "$cache" "${command[@]}" </dev/null || status=$?
if [ $status != 0 ]; then
  cp "$system"/root/project/build/*.log "$dir/" 2>/dev/null || true
  echo "debian13.sh: exit status $status; the logs are in $dir" >&2
fi
exit $status
