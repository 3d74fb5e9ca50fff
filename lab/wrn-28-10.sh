#!/bin/sh
# The runs on the WRN-28-10 behind results/cifar10-c and docs/bee.md, by part, one seed:
#
#   WEIGHTS="shard1 shard2" DATA=cifar10-c SOURCE=cifar10 OUT=runs SEED=1 \
#     sh lab/wrn-28-10.sh PART...
#
# (DOUBLE: a folder made by lab/double.py; CLEAN: clean test images, for forgetting; PART=0/2 and
# PART=1/2: half of a sweep each, side by side). How many minutes a part takes on an H200, where it
# was measured; what another part has run is not run again:
#
#   rates    what adapts and how fast, on pairs of extra corruptions   7
#   long     the same and replay, three longer visits                  10
#   gentle   kinds of replay and cheaper steps, as long                8
#   mild     the queue and replay on a stream of mild and hard domains 4
#   oracle   whether any merge could help, on that stream, three visits 3
#   preparations  other ways to prepare, without adaptation            4
#   replay   kinds of replay on the extra corruptions, three visits    4
#   visits   the 15 domains three times over, with and without replay  12 (REPLAY=off: half)
#   views    bee prepared without noise in its view                    3
#   rivals   rates of the rivals on this network, on the stream of `mild`, half as long   5
#            (REST=1: those that the first sitting left)                6
#   drift    bee's rate and replay on the demo's WRN-16-1, five visits of that stream   2 a setting
#   teacher  its teacher, with that                                    2 a setting
#   width    the same on a network twice as wide (WIDER: the WRN-16-2's file)
#   momentum the teacher on the WRN-28-10, two visits of that stream   3 a setting
#   rehearsal  settings of bee-rehearsal, two visits of that stream, half as long   1.5 a setting
#   rehearsal-steps  more of its settings, there: R, the view, and both
#   rehearsed  bee-rehearsal on the 15 domains (SET="lr=1e-4": with settings of our own)   2
#   alone    a tenth of that, for its time on a GPU of its own   1.5 with its preparation
#   small-rehearsal  its rate on the demo's WRN-16-1, five visits of that stream
#   small-rehearsal-steps  the settings of rehearsal-steps there, two visits
#   relative bee's preparation and steps by relative-adam, on the stream of `mild`, half as long   6
#   even     the same with Adam; WEIGHTS: the rescaled network         5
#   literal  bee-paper at its own rate and at a fifth of it (RATES)    6
#   prepare  bee's preparation, as the other parts make it             1
#   blocks   which blocks may adapt                                    2
#   memory   what a replay with 50 anchors leaves behind               0.2
#   cifar-cnn, ablation, ...: an experiment of `bombus paper` (METHODS="tent roid": some of its
#            methods; ROWS="every-40 none": some of its rows; SET="tent.lr=3e-3": with settings of
#            our own; WARMUP="warmup_lr=5e-4": bee prepared with them)
set -e
SEED=${SEED:-1}
PYTHON=${PYTHON:-python3}
CLEAN=${CLEAN:-$SOURCE}
mkdir -p "$OUT"
# The extra corruptions and their pairs: mild and hard domains, as the test has.
MILD="speckle_noise spatter+gaussian_blur saturate saturate+speckle_noise gaussian_blur \
  spatter+saturate spatter gaussian_blur+saturate speckle_noise+gaussian_blur spatter+speckle_noise"

paper() { # NAME
  name=$1
  # shellcheck disable=SC2086
  $PYTHON -m bombus paper "$name" --scale full --weights $WEIGHTS --data "$DATA" --precision bf16 \
    --source "$SOURCE" --warmup "$OUT/prepared-seed{seed}.safetensors" --clean "$CLEAN" \
    --first-seed "$SEED" --out "$OUT/$name${LANE:+-lane$LANE}" --runs "$OUT/runs" \
    ${METHODS:+--methods $METHODS} ${ROWS:+--rows $ROWS} ${SET:+--set $SET}
}

sweep() { # VARIANTS OPTIONS...
  variants=$1
  shift
  # shellcheck disable=SC2086
  $PYTHON lab/sweep.py "lab/variants/$variants.json" --benchmark cifar10-c --weights $WEIGHTS \
    --data "$DATA" --precision bf16 --seed "$SEED" --out "$OUT/$variants${LANE:+-lane$LANE}-seed$SEED.jsonl" \
    --part "${PART:-0/1}" "$@"
}

pairs() { # FILE VARIANTS OPTIONS... on pairs of extra corruptions, from a prepared file
  (
    DATA=$DOUBLE file=$1
    shift
    sweep "$@" --source "$file" --domains ${DOMAINS:-speckle_noise+gaussian_blur \
      spatter+gaussian_blur saturate+speckle_noise gaussian_blur+saturate spatter+speckle_noise \
      spatter+saturate}
  )
}

prepared() { # NAME SETTINGS...
  file="$OUT/${1:-prepared}-seed$SEED.safetensors"
  [ $# -gt 0 ] && shift
  # shellcheck disable=SC2086
  [ $# -gt 0 ] || set -- $WARMUP
  if [ ! -e "$file" ] && mkdir "$file.begun" 2>/dev/null; then
    # shellcheck disable=SC2086
    $PYTHON -m bombus warmup "${METHOD:-bee}" --weights $WEIGHTS --data "$SOURCE" --precision bf16 \
      ${BACKBONE:+--backbone $BACKBONE} --seed "$SEED" --out "$file" ${1:+--set} "$@" >&2
  fi
  until [ -e "$file" ]; do sleep 1; done # another lane is at it
  echo "$file"
}

for part in "$@"; do
  case $part in
    rates) pairs "$(prepared)" rates --cycles 2 --samples 5000 ;;
    long | gentle) pairs "$(prepared)" "$part" --cycles 3 --samples 6000 ;;
    mild) DOMAINS=$MILD pairs "$(prepared)" mild --samples 10000 ;;
    momentum) DOMAINS=$MILD pairs "$(prepared)" momentum --cycles 2 --samples 10000 ;;
    oracle)
      # shellcheck disable=SC2086
      $PYTHON lab/replay_oracle.py --weights $WEIGHTS --data "$DOUBLE" --source "$(prepared)" \
        --domains $MILD --cycles 3 --samples 6000 --precision bf16 --seed "$SEED" \
        --out "$OUT/oracle-seed$SEED.jsonl"
      ;;
    preparations)
      still() { pairs "$(prepared "$@")" still --cycles 2 --samples 5000; }
      still one-view views=one warmup_rounds=6
      still faster warmup_lr=2e-4
      still faster-one-view views=one warmup_rounds=6 warmup_lr=2e-4
      ;;
    views)
      # shellcheck disable=SC2086
      $PYTHON -m bombus run bee --benchmark cifar10-c --weights $WEIGHTS --data "$DATA" \
        --source "$SOURCE" --precision bf16 --seed "$SEED" --out "$OUT/bee-without-noise-seed$SEED" \
        --set warmup_view=turned
      ;;
    replay) sweep replay --domains extra --cycles 3 --samples 5000 --source "$(prepared)" ;;
    visits)
      for replay in ${REPLAY:-weighted off}; do
        # shellcheck disable=SC2086
        $PYTHON -m bombus run bee --benchmark cifar10-c --weights $WEIGHTS --data "$DATA" \
          --source "$(prepared)" --precision bf16 --seed "$SEED" --stream recurring --visits 3 \
          --out "$OUT/visits-$replay-seed$SEED" --resume --set replay="$replay"
      done
      ;;
    rivals)
      # The published rates belong to a network whose weights are of another size: docs/rivals.md.
      DOMAINS=$MILD pairs "$SOURCE" rivals${REST:+-rest} --samples 5000
      ;;
    relative)
      DOMAINS=$MILD pairs "$(prepared)" relative --samples 5000
      for rate in plain 0.015 0.005 0.04; do
        if [ $rate = plain ]; then file=$(prepared)
        else file=$(prepared "relative-$rate" warmup_optimizer=relative-adam warmup_lr=$rate); fi
        DOMAINS=$MILD pairs "$file" still --samples 5000
      done
      ;;
    drift | teacher)
      (
        WEIGHTS=src/bombus/demo/wrn-16-1.safetensors DOMAINS=$MILD
        pairs src/bombus/demo/bee-warmup.safetensors "$part" --backbone wrn-16-1 --precision fp32 \
          --cycles 5 --samples 2000
      )
      ;;
    width)
      (
        WEIGHTS=$WIDER BACKBONE=wrn-16-2 OUT=$OUT/width DOMAINS=$MILD
        mkdir -p "$OUT"
        file=$(prepared prepared warmup_lr=3e-4)
        pairs "$file" momentum --backbone wrn-16-2 --precision fp32 --cycles 5 --samples 2000
      )
      ;;
    rehearsal | rehearsal-steps)
      file=$(METHOD=bee-rehearsal prepared rehearsing)
      DOMAINS=$MILD pairs "$file" "$part" --method bee-rehearsal --cycles 2 --samples 5000
      ;;
    rehearsed | alone)
      few=""
      [ "$part" = rehearsed ] || few="--samples 1000"
      # shellcheck disable=SC2086
      $PYTHON -m bombus run bee-rehearsal --benchmark cifar10-c --weights $WEIGHTS --data "$DATA" \
        --source "$(METHOD=bee-rehearsal prepared rehearsing)" --precision bf16 --seed "$SEED" \
        --resume --out "$OUT/$part-seed$SEED" $few ${SET:+--set $SET}
      ;;
    small-rehearsal | small-rehearsal-steps)
      (
        WEIGHTS=src/bombus/demo/wrn-16-1.safetensors BACKBONE=wrn-16-1 OUT=$OUT/small DOMAINS=$MILD
        mkdir -p "$OUT"
        file=$(METHOD=bee-rehearsal prepared rehearsing)
        visits=5 variants=$part
        [ "$part" = small-rehearsal ] || visits=2 variants=rehearsal-steps
        pairs "$file" $variants --method bee-rehearsal --backbone wrn-16-1 --precision fp32 \
          --cycles $visits --samples 2000
      )
      ;;
    even)
      for rate in 1.5e-4 5e-4; do
        file=$(prepared "even-$rate" warmup_lr=$rate)
        DOMAINS=$MILD pairs "$file" still --samples 5000
      done
      DOMAINS=$MILD pairs "$file" even --samples 5000
      ;;
    literal)
      for rate in ${RATES:-1e-3 2e-4}; do
        # shellcheck disable=SC2086
        $PYTHON -m bombus run bee-paper --benchmark cifar10-c --weights $WEIGHTS --data "$DATA" \
          --source "$SOURCE" --precision bf16 --seed "$SEED" --resume \
          --out "$OUT/bee-paper-$rate-seed$SEED" --set lr="$rate" warmup_lr="$rate"
      done
      ;;
    prepare) prepared ;;
    blocks)
      # shellcheck disable=SC2086
      $PYTHON -m bombus blocks --data "$SOURCE" --backbone wrn-28-10 --weights $WEIGHTS \
        --precision bf16 --out "$OUT/blocks.json"
      ;;
    memory) $PYTHON lab/replay_memory.py | tee "$OUT/replay-memory.json" ;;
    cifar-cnn | ablation | ablation-car | queue-on-baselines | forgetting | sensitivity | trigger | efficiency)
      case " ${METHODS:-bee} " in *" bee "*) prepared ;; esac
      paper "$part"
      ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
done
