#!/bin/sh
# The worlds the paper did not test, behind docs/streams.md: one seed, 2,000 images a domain (600 at
# each severity of the gradual stream).
#
#   WEIGHTS="shard1 shard2" DATA=cifar10-c SOURCE=cifar10 WARMUP=prepared.safetensors OUT=runs \
#     sh lab/streams.sh STREAM...
#
# DATA holds severities 1 to 5 for the gradual stream; WARMUP is bee's (or bee-rehearsal's), made by
# `bombus warmup bee`. METHODS="tent bee" takes some of them, SET="lr=1e-4" gives them settings. On a CPU:
# BACKBONE=wrn-16-1 PRECISION=fp32.
set -e
SEED=${SEED:-1}
PYTHON=${PYTHON:-python3}
METHODS=${METHODS:-source bn tent roid rmt bee cotta}

for stream in "$@"; do
  samples=2000 options=""
  case $stream in
    recurring) options="--visits 5" ;;
    gradual) samples=600 ;;
    mixed | correlated | continual) ;;
    *) echo "unknown stream $stream" >&2; exit 2 ;;
  esac
  for method in $METHODS; do
    source=$SOURCE
    case $method in bee | bee-rehearsal) source=$WARMUP ;; esac
    # shellcheck disable=SC2086
    $PYTHON -m bombus run "$method" --benchmark cifar10-c --weights $WEIGHTS --data "$DATA" \
      --source "$source" ${BACKBONE:+--backbone $BACKBONE} --precision ${PRECISION:-bf16} \
      --seed "$SEED" --samples $samples --stream "$stream" $options \
      --out "$OUT/$stream/$method-seed$SEED" --resume ${SET:+--set $SET}
  done
done
