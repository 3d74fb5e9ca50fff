#!/bin/sh
# The table of README.md's "Real benchmark", from the network's file alone: CIFAR-10 is fetched, CIFAR10-C
# made, every method of the paper's table run with three seeds, and the table printed with its costs.
# About 80 minutes on an H200; called again, it goes on where it stopped.
#
#   sh lab/benchmark.sh WEIGHTS...
#
# OUT: where all of it goes (benchmark). AS_GIVEN=1: the weights as they are, for RobustBench's own; else in
# the numbers that the published rates were made for (docs/rivals.md). OPTIONS="--methods tent roid --samples
# 2000": a part of it.
set -e
[ $# -gt 0 ] || { echo "Name the WRN-28-10's file or shards: sh lab/benchmark.sh WEIGHTS..." >&2; exit 2; }
out=${OUT:-benchmark}
mkdir -p "$out"
BOMBUS_CACHE=$(cd "$out" && pwd)/data
export BOMBUS_CACHE

bombus data get cifar10
[ -e "$out/made" ] || { bombus data make cifar10-c --severities 5 && touch "$out/made"; }
if [ -z "$AS_GIVEN" ]; then
  weights=$out/rescaled.safetensors
  [ -e "$weights" ] || python lab/rescale.py "$@" --as-begun --norms 0.33 --out "$weights"
  set -- "$weights"
fi
# shellcheck disable=SC2086
bombus paper cifar-cnn --scale full --seeds 3 --weights "$@" --source "$BOMBUS_CACHE/cifar10" \
  --precision "${PRECISION:-bf16}" --out "$out/table" --runs "$out/runs" $OPTIONS
bombus compare "$out/runs" --cost
