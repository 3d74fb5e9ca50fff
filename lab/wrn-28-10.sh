#!/bin/sh
# The runs on the WRN-28-10 behind results/cifar10-c and docs/bee.md, by part:
#
#   WEIGHTS="shard1 shard2" DATA=cifar10-c SOURCE=cifar10 OUT=runs sh lab/wrn-28-10.sh PART...
#   (DOUBLE: a folder made by lab/double.py)
#
# and how many minutes a part takes on an H200:
#
#   rates    what adapts and how fast, on pairs of extra corruptions   6
#   long     the same and replay, three longer visits                  8
#   gentle   kinds of replay and cheaper steps, as long                8
#   bee      bee, one seed: SEED=1                                     2.5 and 1 to prepare it
#   views    bee prepared without noise in its view                    2.5
#   ladder   bee put together step by step, one seed: SEED=1           6
#   car      when and how to replay, one seed: SEED=1                  18
#   replay   kinds of replay on the extra corruptions, three visits    4
#   visits   the 15 domains three times over, with and without replay  10
#   blocks   which blocks may adapt                                    2
#   memory   what a replay with 50 anchors leaves behind               0.2
#   rivals   every other method, one seed: SEED=1                      9
set -e
SEED=${SEED:-1}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

run() { # METHOD NAME SEED SETTINGS...
  method=$1 name=$2 seed=$3
  shift 3
  set_=""
  [ $# -gt 0 ] && set_="--set"
  # shellcheck disable=SC2086
  $PYTHON -m bombus run "$method" --benchmark cifar10-c --weights $WEIGHTS --data "$DATA" \
    --source "$SOURCE" --precision bf16 --seed "$seed" --out "$OUT/$name-seed$seed" $set_ "$@"
}

paper() { # NAME OPTIONS...
  name=$1
  shift
  # shellcheck disable=SC2086
  $PYTHON -m bombus paper "$name" --scale full --weights $WEIGHTS --data "$DATA" --precision bf16 \
    --first-seed "$SEED" --out "$OUT/$name" "$@"
}

sweep() { # VARIANTS OPTIONS...
  variants=$1
  shift
  # shellcheck disable=SC2086
  $PYTHON lab/sweep.py "lab/variants/$variants.json" --benchmark cifar10-c --weights $WEIGHTS \
    --data "$DATA" --precision bf16 --seed "$SEED" --out "$OUT/$variants-seed$SEED.jsonl" "$@"
}

pairs() { # VARIANTS OPTIONS... on pairs of extra corruptions
  (
    DATA=$DOUBLE
    sweep "$@" --source "$(prepared)" --domains speckle_noise+gaussian_blur \
      spatter+gaussian_blur saturate+speckle_noise gaussian_blur+saturate spatter+speckle_noise \
      spatter+saturate
  )
}

prepared() { # one file for all variants of a sweep: every level has codes, the last one counts
  file="$OUT/prepared-seed$SEED.safetensors"
  # shellcheck disable=SC2086
  [ -e "$file" ] || $PYTHON -m bombus warmup bee --weights $WEIGHTS --data "$SOURCE" \
    --precision bf16 --seed "$SEED" --set levels=1,2,3 level_weights=0,0,1 --out "$file" >&2
  echo "$file"
}

for part in "$@"; do
  case $part in
    rates) pairs rates --cycles 2 --samples 5000 ;;
    long | gentle) pairs "$part" --cycles 3 --samples 6000 ;;
    bee) (SOURCE=$(prepared) && run bee bee "$SEED") ;;
    views) run bee bee-without-noise "$SEED" warmup_view=turned ;;
    ladder) paper ablation --source "$(prepared)" ;;
    car) paper ablation-car --source "$(prepared)" ;;
    replay) sweep replay --domains extra --cycles 3 --samples 5000 --source "$(prepared)" ;;
    visits) sweep visits --domains standard --cycles 3 --source "$(prepared)" ;;
    blocks)
      # shellcheck disable=SC2086
      $PYTHON -m bombus blocks --data "$SOURCE" --backbone wrn-28-10 --weights $WEIGHTS \
        --precision bf16 --out "$OUT/blocks.json"
      ;;
    memory) $PYTHON lab/replay_memory.py | tee "$OUT/replay-memory.json" ;;
    rivals)
      for method in eata sar roid rdumb adacontrast rmt rmt-free dplot obao cotta; do
        run "$method" "$method" "$SEED"
      done
      ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
done
