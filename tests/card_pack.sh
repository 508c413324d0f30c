#!/usr/bin/env bash
# Packs what a machine with a card needs to run the tests and benchmarks of the CUDA backend, where nothing can be built
# or installed: programs, the libraries that they load (but CUDA's own), a part of the data, and card_run.sh.
#
#   tests/card_pack.sh FILE.txz [ARCHITECTURE]      90, an H100 or H200, if nothing else is said; about 50 MB
#   tests/card_pack.sh FILE.txz double              the same programs on the double of CUDA, for a run without a card
#
# There:  tar xJf FILE.txz -C FOLDER && FOLDER/card_run.sh           with the double: card_run.sh --dry
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source cmake/steps.sh
if [ $# -lt 1 ] || [[ $1 == -* ]]; then sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; fi
file=$1 architecture=${2:-90}

# NAME:TARGET of each program; the backend is a library beside them, or the double within them.
programs=() samples=12800
if [ "$architecture" = double ]; then
  samples=640
  for test in ndarray autograd operators nn parallel; do programs+=("${test}_test:tests/${test}_on_gpu_test"); done
  for program in tests/cuda_card_test tests/push_to_gpu bench/bench_gpu bench/bench_train tests/fashion_mnist; do
    programs+=("${program#*/}:${program}_on_double")
  done
else
  for test in cuda_card_test ndarray_test autograd_test operators_test nn_test parallel_test push_to_gpu; do
    programs+=("$test:tests/$test")
  done
  programs+=(bench_gpu:bench/bench_gpu bench_train:bench/bench_train fashion_mnist:examples/fashion_mnist)
  CUDACXX=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)} \
    build_preset cuda card-cuda sluice_cuda -DSLUICE_TESTS=OFF "-DSLUICE_CUDA_ARCHITECTURES=$architecture-real"
fi
for program in "${programs[@]}"; do
  build_preset release card-release "${program##*/}" -DSLUICE_TESTS=ON -DSLUICE_BENCH=ON
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin" "$folder/lib" "$folder/data"
for program in "${programs[@]}"; do strip -o "$folder/bin/${program%%:*}" "build/release/${program#*:}"; done
if [ "$architecture" != double ]; then strip -o "$folder/libsluice_cuda.so" build/cuda/libsluice_cuda.so; fi
ldd "$folder"/bin/* | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u |
  grep -vE '/(libc|libm|libstdc\+\+|libgcc_s|libz|ld-linux[^/]*)\.so' |
  while read -r library; do strip -o "$folder/lib/$(basename "$library")" "$(readlink -f "$library")"; done
cp tests/card_run.sh bench/peers/gpu_torch.py "$folder"
git describe --always --dirty >"$folder/commit"
# The first samples of the data, so that all fits into what may be carried.
python3 - /usr/share/datasets/fashion-mnist "$folder/data" "$samples" <<'DATA'
import gzip, pathlib, struct, sys
source, target = map(pathlib.Path, sys.argv[1:3])
for name, samples in (("train", int(sys.argv[3])), ("t10k", int(sys.argv[3]) // 6)):
    for kind, head in (("images-idx3", 16), ("labels-idx1", 8)):
        data = gzip.open(source / f"{name}-{kind}-ubyte.gz").read()
        size = 784 if head == 16 else 1
        part = data[:4] + struct.pack(">I", samples) + data[8 : head + samples * size]
        gzip.open(target / f"{name}-{kind}-ubyte.gz", "wb").write(part)
DATA
tar c -C "$folder" . | xz -T2 -3 >"$file"
ls -lh "$file"
