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
#   prepare  the preparation PREPARED, made with WARMUP="warmup_lr=3e-4"
#   try      that preparation, not adapted, then with VARIANTS
#   refine   the best of all that was tried so far (lab/best.py), and one thing changed at a time
#   rest     settings of CoTTA and Continual-MAE, there
#   all      every method, with its best setting in these sweeps and in CHOSEN, an older one's results
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
  file="$OUT/vit-$1-seed$SEED.safetensors" known="$OUT/vit-$1.warmup"
  shift
  if [ -e "$known" ]; then # shellcheck disable=SC2046
    set -- $(cat "$known")
  else
    echo "$@" >"$known"
  fi
  if [ ! -e "$file" ] && mkdir "$file.begun" 2>/dev/null; then
    # shellcheck disable=SC2086
    $PYTHON -m bombus warmup bee --benchmark cifar10-c --backbone vit-s4-32 --weights $WEIGHTS \
      --data "$SOURCE" --precision bf16 --seed "$SEED" --out "$file" ${1:+--set} "$@" >&2
  fi
  until [ -e "$file" ]; do sleep 1; done # another lane is at it
  echo "$file"
}

best() { # METHOD: SET, PREPARED
  variable=$(echo "$1" | tr - _)
  eval "$($PYTHON lab/best.py $CHOSEN $(ls "$OUT"/vit-*seed1.jsonl 2>/dev/null))"
  eval "SET=\$SET_$variable PREPARED=\$PREPARED_$variable"
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
    prepare) # shellcheck disable=SC2086
      prepared "$PREPARED" $WARMUP
      ;;
    try)
      file=$(prepared "$PREPARED")
      sweep still --source "$file"
      sweep "${VARIANTS:-vit-rates}" --source "$file"
      ;;
    refine)
      best bee
      # shellcheck disable=SC2086
      sweep vit-refine --source "$(prepared "$PREPARED")" --common $SET
      ;;
    all)
      for method in ${METHODS:-source tent sar vdp vida bee bee-paper continual-mae cotta}; do
        source=$SOURCE SET=
        [ "$method" = bee-paper ] || best "$method"
        [ "$method" = bee ] && source=$(prepared "$PREPARED")
        # shellcheck disable=SC2086
        $PYTHON -m bombus run "$method" --benchmark cifar10-c --backbone vit-s4-32 \
          --weights $WEIGHTS --data "$DATA" --source "$source" --precision bf16 --seed "$SEED" \
          --out "$OUT/vit-$method-seed$SEED" --resume ${SET:+--set $SET}
      done
      ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
done
