#!/usr/bin/env bash
# Packs what a machine with a card needs to run the tests and benchmarks of the CUDA backend, where nothing can be built
# or installed: programs, the libraries that they load (but CUDA's own), a part of the data, and card_run.sh.
#
#   tests/card_pack.sh FILE.txz [ARCHITECTURE]      90, an H100 or H200, if nothing else is said; about 50 MB
#
# There:  tar xJf FILE.txz -C FOLDER && FOLDER/card_run.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source cmake/steps.sh
if [ $# -lt 1 ] || [[ $1 == -* ]]; then sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; fi
file=$1 architecture=${2:-90}

tests="cuda_card_test ndarray_test autograd_test operators_test nn_test parallel_test push_to_gpu"
CUDACXX=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)} \
  build_preset cuda card-cuda sluice_cuda -DSLUICE_TESTS=OFF "-DSLUICE_CUDA_ARCHITECTURES=$architecture-real"
for target in $tests bench_gpu bench_train fashion_mnist; do
  build_preset release card-release "$target" -DSLUICE_TESTS=ON -DSLUICE_BENCH=ON
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin" "$folder/lib" "$folder/data"
for program in $tests; do strip -o "$folder/bin/$program" "build/release/tests/$program"; done
for program in bench_gpu bench_train; do strip -o "$folder/bin/$program" "build/release/bench/$program"; done
strip -o "$folder/bin/fashion_mnist" build/release/examples/fashion_mnist
strip -o "$folder/libsluice_cuda.so" build/cuda/libsluice_cuda.so
ldd "$folder"/bin/* | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u |
  grep -vE '/(libc|libm|libstdc\+\+|libgcc_s|libz|ld-linux[^/]*)\.so' |
  while read -r library; do strip -o "$folder/lib/$(basename "$library")" "$(readlink -f "$library")"; done
cp tests/card_run.sh bench/peers/gpu_torch.py "$folder"
git describe --always --dirty >"$folder/commit"
# The first samples of the data, so that all fits into what may be carried.
python3 - /usr/share/datasets/fashion-mnist "$folder/data" <<'DATA'
import gzip, pathlib, struct, sys
source, target = map(pathlib.Path, sys.argv[1:])
for name, samples in (("train", 12800), ("t10k", 2000)):
    for kind, head in (("images-idx3", 16), ("labels-idx1", 8)):
        data = gzip.open(source / f"{name}-{kind}-ubyte.gz").read()
        size = 784 if head == 16 else 1
        part = data[:4] + struct.pack(">I", samples) + data[8 : head + samples * size]
        gzip.open(target / f"{name}-{kind}-ubyte.gz", "wb").write(part)
DATA
tar c -C "$folder" . | xz -T2 -3 >"$file"
ls -lh "$file"
