#!/bin/sh
# Whole training beside PyTorch: examples mlp, resnet18, char_gpt and lstm and the same programs in Python (peers/
# nets_torch.py), five seeds each. Prints the loss at five points and the final figure, means and deviations of both
# sides, and whether the means differ by at most 2 sqrt(s1^2 / n + s2^2 / n).
#
#   bench/nets.sh [--python PYTHON] [--models "mlp char_gpt"] [--seeds 5] [--images 12800] [--out DIR]
set -eu
cd "$(dirname "$0")/.."
python=python3 models="mlp char_gpt lstm resnet18" seeds=5 images=12800 out=build/bench/nets
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2 ;;
    --models) models=$2 ;;
    --seeds) seeds=$2 ;;
    --images) images=$2 ;;
    --out) out=$2 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
cmake --preset release > /dev/null
for model in $models; do
  cmake --build build/release --target "$model" > /dev/null
  options="" limit=""
  if [ "$model" = resnet18 ]; then options="--epochs 1 --limit $images" limit=$images; fi
  for seed in $(seq "$seeds"); do
    for side in sluice torch; do
      folder=$out/$model.$side.$seed
      if [ -e "$folder/final" ]; then continue; fi
      rm -rf "$folder"
      mkdir -p "$folder"
      begin=$(date +%s.%N)
      if [ $side = sluice ]; then
        build/release/examples/"$model" --seed "$seed" --out "$folder" $options > "$folder/log"
      else
        "$python" bench/peers/nets_torch.py "$model" "$seed" "$folder" $limit > "$folder/log"
      fi
      grep -Eo '(perplexity|images:) [0-9.]+' "$folder/log" | grep -Eo '[0-9.]+$' > "$folder/figure"
      echo "$(date +%s.%N) $begin" | awk '{print $1 - $2}' > "$folder/seconds"
      mv "$folder/figure" "$folder/final"
    done
  done
done
"$python" bench/peers/nets_table.py "$out" $models
