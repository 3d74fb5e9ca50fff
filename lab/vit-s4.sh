#!/bin/sh
# The runs on the ViT-S/4 behind results/cifar10-c/vit-s4-32, by part, one seed:
#
#   WEIGHTS=cifar10-vit-s4.safetensors DATA=cifar10-c EXTRA=extras SOURCE=cifar10 OUT=runs SEED=1 \
#     sh lab/vit-s4.sh PART...
#
#   choose   settings of bee, on the extra corruptions, two visits of 10 batches
#   rivals   settings of the others, there
#   all      every method
set -e
SEED=${SEED:-1}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

sweep() { # VARIANTS OPTIONS...
  variants=$1
  shift
  # shellcheck disable=SC2086
  $PYTHON lab/sweep.py "lab/variants/$variants.json" --benchmark cifar10-c --backbone vit-s4-32 \
    --weights $WEIGHTS --data "$EXTRA" --samples 2000 --cycles 2 --precision bf16 --seed "$SEED" \
    --out "$OUT/vit-seed$SEED.jsonl" "$@"
}

prepared() { # NAME SETTINGS...
  file="$OUT/vit-$1-seed$SEED.safetensors"
  shift
  # shellcheck disable=SC2086
  [ -e "$file" ] || $PYTHON -m bombus warmup bee --benchmark cifar10-c --backbone vit-s4-32 \
    --weights $WEIGHTS --data "$SOURCE" --precision bf16 --seed "$SEED" --out "$file" ${1:+--set} "$@" >&2
  echo "$file"
}

for part in "$@"; do
  case $part in
    choose)
      sweep still # the mirror pair alone
      sweep still --source "$(prepared slow warmup_lr=1e-5)"
      sweep still --source "$(prepared fast)"
      sweep vit --source "$(prepared fast)"
      sweep vit-class-token --source "$(prepared class tokens=class)"
      ;;
    rivals) sweep vit-rivals --source "$SOURCE" ;;
    all)
      for method in source tent sar vdp vida continual-mae bee bee-paper cotta; do
        # shellcheck disable=SC2086
        $PYTHON -m bombus run "$method" --benchmark cifar10-c --backbone vit-s4-32 \
          --weights $WEIGHTS --data "$DATA" --source "$SOURCE" --precision bf16 --seed "$SEED" \
          --out "$OUT/vit-$method-seed$SEED" --resume
      done
      ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
done
