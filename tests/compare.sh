#!/bin/sh
# Layers, gradients, optimisers, schedules, and a net on meshes beside PyTorch, in f64: outputs, gradients, 50 steps and
# 60 rates within 1e-8, and files that go to Python and back; a log's event files, where there is TensorBoard. Prints a
# table; fails where something differs.
# Needs a Python with torch, numpy and safetensors, and may have tensorboard (from PyPI, say in a virtual environment);
# outside of ctest and CI, which have no network.
#
#   tests/compare.sh [--python PYTHON] [--seed N] [--build DIR]
set -eu
cd "$(dirname "$0")/.."
python=python3 seed=1 build=build/release
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
"$python" -c 'import numpy, safetensors, torch' 2> /dev/null || {
  echo "compare.sh: $python has no torch, numpy or safetensors: python3 -m venv v; v/bin/pip install torch numpy safetensors; $0 --python v/bin/python" >&2
  exit 2
}
cmake --preset release > /dev/null
cmake --build "$build" --target compare_nets > /dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$build/tests/compare_nets" "$folder" "$seed"
"$python" tests/compare/compare.py "$folder"
"$build/tests/compare_nets" "$folder" back
