#!/bin/sh
# The table of README.md's "Real benchmark", from the network's file alone: CIFAR-10 is fetched, CIFAR10-C
# made, every method of the paper's table run with three seeds, and the table printed with its costs.
# About an hour and a half on an H200 (reckoned); called again, it goes on where it stopped.
#
#   sh lab/benchmark.sh WEIGHTS...
#
# OUT: where all of it goes (benchmark). AS_GIVEN=1: the weights as they are, which published ones always are;
# else in the numbers that the published rates were made for (docs/rivals.md). OPTIONS="--methods tent roid --samples
# 2000": a part of it.
set -e
stop() {
  echo "$1; give the file (or shards) of a WRN-28-10 in RobustBench's layout:" \
    'make benchmark WEIGHTS="wrn-28-10.safetensors"' >&2
  exit 2
}
[ $# -gt 0 ] || stop "No weights were named"
for file in "$@"; do
  case $file in
    *:*) AS_GIVEN=1 ;; # a published name: the rates are its own
    *) [ -f "$file" ] || stop "There is no file $file" ;;
  esac
done
out=${OUT:-benchmark}
data=$out/data
mkdir -p "$data"

bombus data get cifar10 --cache "$data"
if [ ! -e "$data/made" ]; then
  bombus data make cifar10-c --severities 5 --clean "$data/cifar10" --out "$data/cifar10-c"
  touch "$data/made"
fi
if [ -z "$AS_GIVEN" ]; then
  weights=$out/rescaled.safetensors
  [ -e "$weights" ] || python lab/rescale.py "$@" --as-begun --norms 0.33 --out "$weights"
  set -- "$weights"
fi
# shellcheck disable=SC2086
bombus paper cifar-cnn --scale full --seeds 3 --weights "$@" --data "$data/cifar10-c" \
  --source "$data/cifar10" --precision "${PRECISION:-bf16}" --out "$out/table" --runs "$out/runs" $OPTIONS
bombus compare "$out/runs" --cost
