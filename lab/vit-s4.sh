#!/bin/sh
# The runs on the ViT-S/4 behind results/cifar10-c/vit-s4-32, by part, one seed:
#
#   WEIGHTS=cifar10-vit-s4.safetensors DATA=cifar10-c EXTRA=extras SOURCE=cifar10 OUT=runs SEED=1 \
#     sh lab/vit-s4.sh PART...
#
# (PART=0/2 and PART=1/2: half of a sweep each, side by side; METHODS: some of `all`)
#
#   still    ways to prepare bee, without adaptation, on the extra corruptions, two visits of 10 batches
#   choose   settings of bee, there, from the preparation PREPARED names
#   rivals   settings of the others, there
#   try      the preparation PREPARED, made with WARMUP="warmup_lr=3e-4": not adapted, then with VARIANTS
#   rest     settings of CoTTA and Continual-MAE, there
#   all      every method; SET_tent="lr=1e-4" and the like: what was chosen; bee from PREPARED, by WARMUP
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
    --out "$OUT/vit${LANE:+-lane$LANE}-seed$SEED.jsonl" --part "${PART:-0/1}" "$@"
}

prepared() { # NAME SETTINGS...
  file="$OUT/vit-$1-seed$SEED.safetensors"
  shift
  if [ ! -e "$file" ] && mkdir "$file.begun" 2>/dev/null; then
    # shellcheck disable=SC2086
    $PYTHON -m bombus warmup bee --benchmark cifar10-c --backbone vit-s4-32 --weights $WEIGHTS \
      --data "$SOURCE" --precision bf16 --seed "$SEED" --out "$file" ${1:+--set} "$@" >&2
  fi
  until [ -e "$file" ]; do sleep 1; done # another lane is at it
  echo "$file"
}

for part in "$@"; do
  case $part in
    still)
      sweep still # the mirror pair alone
      sweep still --source "$(prepared plain)"
      sweep still --source "$(prepared slow warmup_lr=3e-5)"
      sweep still --source "$(prepared codes prediction_weight=0)"
      sweep still --source "$(prepared cross warmup_loss=cross-entropy prediction_weight=0)"
      ;;
    choose)
      sweep vit --source "$(prepared "${PREPARED:-plain}")"
      sweep vit-class-token --source "$(prepared class tokens=class)"
      ;;
    rivals) sweep vit-rivals --source "$SOURCE" ;;
    rest) sweep vit-rivals-rest --source "$SOURCE" ;;
    try)
      # shellcheck disable=SC2086
      file=$(prepared "$PREPARED" $WARMUP)
      sweep still --source "$file"
      sweep "${VARIANTS:-vit-image}" --source "$file"
      ;;
    all)
      for method in ${METHODS:-source tent sar vdp vida bee bee-paper continual-mae cotta}; do
        source=$SOURCE
        # shellcheck disable=SC2086
        [ "$method" = bee ] && source=$(prepared "${PREPARED:-plain}" $WARMUP)
        chosen=$(eval echo "\$SET_$(echo "$method" | tr - _)")
        # shellcheck disable=SC2086
        $PYTHON -m bombus run "$method" --benchmark cifar10-c --backbone vit-s4-32 \
          --weights $WEIGHTS --data "$DATA" --source "$source" --precision bf16 --seed "$SEED" \
          --out "$OUT/vit-$method-seed$SEED" --resume ${chosen:+--set $chosen}
      done
      ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
done
