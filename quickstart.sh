#!/usr/bin/env bash
# Installs what is missing, builds Sluice, and trains a network on Fashion-MNIST as a pipeline, or another example.
# ./quickstart.sh --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$root/cmake/steps.sh"
example=fashion_mnist
case ${1:-} in
  mlp | resnet18 | char_gpt | lstm | train_gpt) example=$1; shift ;;
esac
program=$root/build/release/examples/$example

help() {
  cat <<'TEXT'
usage: ./quickstart.sh [mlp | resnet18 | char_gpt | lstm | train_gpt] [--no-install] [ARGUMENT...]

Installs the Debian packages that are missing (as root or through sudo), builds the release preset, and trains a
convolutional network on Fashion-MNIST as a pipeline over logical CPU devices. Everything it makes lies in build/.

  mlp, resnet18   another example first: networks on Fashion-MNIST, without a pipeline
  char_gpt, lstm  language models of characters: by default of the licenses in /usr/share/common-licenses
  train_gpt       the first of these on a mesh of devices: --dp 2 --tp 2

  --no-install    install nothing: say what is missing (exit status 2), or build and train

All other arguments go to the training program.
TEXT
  if [ -x "$program" ]; then
    echo
    "$program" --help
  else
    echo "It tells them here once it is built."
  fi
}

install=()
arguments=()
for argument in "$@"; do
  case $argument in
    --no-install) install=(--no-install) ;;
    --help | -h) help; exit 0 ;;
    *) arguments+=("$argument") ;;
  esac
done

step "packages"
"$root/cmake/packages.sh" "${install[@]}" build data

step "build (about 2 minutes on two cores, the first time)"
# A build folder that is there keeps its tests; a fresh one needs no test packages.
configure=()
if [ ! -e "$root/build/release/build.ninja" ]; then configure=(-DSLUICE_TESTS=OFF); fi
build_preset release quickstart "$example" "${configure[@]}"

step "train"
output=$root/build/quickstart
if [ "$example" != fashion_mnist ]; then output=$root/build/$example; fi
if [ "$PWD" -ef "$root" ]; then output=${output#"$root"/}; fi
for argument in "${arguments[@]}"; do
  case $argument in --out | --out=*) exec "$program" "${arguments[@]}" ;; esac
done
exec "$program" --out "$output" "${arguments[@]}"
