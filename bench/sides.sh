# The sides of a comparison, for bench/*.sh; sourced after cmake/steps.sh, with $root set to the repository.

# build_ours TARGET LOG: builds build/bench/bench/TARGET.
build_ours() {
  local build=$root/build/bench
  mkdir -p "$build"
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSLUICE_BENCH=ON -DSLUICE_TESTS=OFF \
    -DSLUICE_EXAMPLES=OFF >"$2" 2>&1 || failed "configuring" "$2"
  cmake --build "$build" --target "$1" >>"$2" 2>&1 || failed "building" "$2"
}

# build_before DIR BUILD TARGET LOG: builds BUILD/TARGET, whose source is of this checkout, on the libraries of the one
# in DIR.
build_before() {
  local dir
  [ -e "$1/CMakeLists.txt" ] || { echo "error: --before $1: no checkout there" >&2; exit 2; }
  dir=$(cd "$1" && pwd)
  cmake -S "$root/bench/before" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBEFORE="$dir" >>"$4" 2>&1 ||
    failed "configuring $dir" "$4"
  cmake --build "$2" --target "$3" >>"$4" 2>&1 || failed "building $dir" "$4"
}

# torch_peer TORCH NAME LOG: compiles bench/peers/NAME.cc to build/bench/NAME against a libtorch.
torch_peer() {
  local torch library peer=$root/build/bench/$2 source=$root/bench/peers/$2.cc
  torch=$(cd "$1" && pwd)
  library=$torch/lib
  if [ ! -e "$library/libtorch_cpu.so" ]; then library=$library/$("${CXX:-g++}" -print-multiarch); fi
  if [ ! -e "$library/libtorch_cpu.so" ] || [ ! -e "$torch/include/torch" ]; then
    echo "error: no libtorch in $torch; give one with --torch DIR (see --help)" >&2
    exit 2
  fi
  if [ ! -x "$peer" ] || [ "$source" -nt "$peer" ] || [ "$(cat "$peer.from")" != "$torch" ]; then
    # An unpacked libtorch keeps its C++ API a level deeper than its headers; Debian's keeps both in one place.
    "${CXX:-g++}" -std=c++20 -O2 -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
      "$source" -o "$peer" -L"$library" -Wl,-rpath,"$library" -ltorch_cpu -lc10 >>"$3" 2>&1 ||
      failed "building the peer" "$3"
    echo "$torch" >"$peer.from"
  fi
}

# quartiles FILE FORMAT: median, lower and upper quartile of the numbers in a file, in one format.
quartiles() {
  sort -g "$1" | awk -v format="$2" '
    { value[NR] = $1 }
    function at(p, k, f) { k = 1 + p * (NR - 1); f = k - int(k); return (1 - f) * value[int(k)] + f * value[int(k) + (f > 0)] }
    END { printf format " " format " " format "\n", at(0.5), at(0.25), at(0.75) }'
}
