#!/bin/sh
# What a program costs the compiler: an empty main with sluice.h, and a net of 15 structs that is initialised, trained,
# clipped, copied and saved. Prints the least user time of several runs and the memory, for each compiler.
#
#   bench/compile_times.sh [RUNS] [COMPILER ...]       default: 5 g++ clang++-19
set -eu
cd "$(dirname "$0")/.."
runs=${1:-5}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- g++ clang++-19
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/include"
ln -s "$PWD" "$folder/include/sluice"
printf '#include "sluice/sluice.h"\nint main() {}\n' > "$folder/empty.cc"
{
  printf '#include "sluice/sluice.h"\nusing namespace sluice;\n'
  for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do
    printf 'struct Block%s {\n  nn::LayerNorm norm{64};\n  nn::Linear up{64, 256}, down{256, 64};\n' "$i"
    printf '  nn::Dropout drop{0.1};\n'
    printf '  NDArray operator()(const NDArray& x) const { return x + drop(down(relu(up(norm(x))))); }\n};\n'
  done
  printf 'struct Net {\n'
  for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do printf '  Block%s b%s;\n' "$i" "$i"; done
  printf '  NDArray operator()(NDArray x) const {\n'
  for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do printf '    x = b%s(x);\n' "$i"; done
  cat << 'EOF'
    return x;
  }
};
int main() {
  Net net;
  nn::initialise(net, 1);
  nn::Optimizer opt(net, nn::AdamW{.lr = 1e-3});
  RandomStream stream(1);
  {
    const nn::Training on(stream);
    const NDArray loss = mean(net(ones({8, 64})));
    loss.backward();
  }
  nn::clip_gradients(net, 1);
  opt.step();
  Net average = nn::clone(net);
  nn::blend(average, net, 0.99);
  nn::save("net.safetensors", {{"net", net}, {"opt", opt}});
}
EOF
} > "$folder/net.cc"
for compiler in "$@"; do
  for program in empty net; do
    "$compiler" -std=c++20 -fsyntax-only -I "$folder/include" "$folder/$program.cc"
    for _ in $(seq "$runs"); do
      /usr/bin/time -f '%U %M' "$compiler" -std=c++20 -c -o "$folder/out.o" -I "$folder/include" "$folder/$program.cc" 2>&1
    done | sort -n | awk -v what="$compiler, $program" '
      NR == 1 { least = $1 } { if ($2 > most) most = $2 }
      END { printf "%-20s %.2f s  %.0f MB\n", what, least, most / 1024 }'
  done
done
