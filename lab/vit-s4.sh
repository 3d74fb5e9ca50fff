#!/bin/sh
# The runs on the ViT-S/4 behind results/cifar10-c/vit-s4-32, by part:
#
#   WEIGHTS=cifar10-vit-s4.safetensors DATA=cifar10-c EXTRA=extras SOURCE=cifar10 OUT=runs \
#     sh lab/vit-s4.sh PART...
#
#   choose   settings, on the extra corruptions, two visits of 10 batches
#   all      every method, one seed: SEED=1
set -e
SEED=${SEED:-1}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

for part in "$@"; do
  case $part in
    choose)
      for variants in vit vit-rivals; do
        # shellcheck disable=SC2086
        $PYTHON lab/sweep.py "lab/variants/$variants.json" --benchmark cifar10-c \
          --backbone vit-s4-32 --weights $WEIGHTS --data "$EXTRA" --source "$SOURCE" \
          --samples 2000 --cycles 2 --precision bf16 --seed "$SEED" \
          --out "$OUT/$variants-seed$SEED.jsonl"
      done
      ;;
    all)
      for method in source tent sar vdp vida continual-mae bee bee-paper cotta; do
        # shellcheck disable=SC2086
        $PYTHON -m bombus run "$method" --benchmark cifar10-c --backbone vit-s4-32 \
          --weights $WEIGHTS --data "$DATA" --source "$SOURCE" --precision bf16 --seed "$SEED" \
          --out "$OUT/vit-$method-seed$SEED"
      done
      ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
done
