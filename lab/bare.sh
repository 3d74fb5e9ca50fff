#!/bin/sh
# A sitting on a bare GPU machine, where data arrives in pieces and may go at any moment:
#
#   sh lab/bare.sh PIECES KEEP STAGE...
#
# All of it runs from a copy of the working tree: one that is sent again between commands is written file by file,
# under a program that may just be importing it. Give the copy three seconds before the command that begins it ends.
# KEEP/ended appears when it is through or broken; lab/watch.sh waits for that.
#
# PIECES holds the two shards of the WRN-28-10 (w1, w2), the ViT-S/4 (vit), the WRN-16-2 (wider), CIFAR-10
# as PNG strips (clean, train1, train2, train3) and, for a Python without them, rich and tyro (site). All that is
# made goes to PIECES/out; what belongs into results/ is put into KEEP/keep.tgz every 15 seconds.
#
#   data          the test stream, the extras and their pairs, begun in the background; `wait` waits
#   wrnN-PART     a part of lab/wrn-28-10.sh, seed N; METHODS and SET as there
#   rescaledN-PART  the same on the network with the published strides (docs/rivals.md)
#   vitN-PART     a part of lab/vit-s4.sh, seed N
#   severities    all five of the test stream, begun in the background; `small` waits for them
#   small         bee and CoTTA on the streams of docs/streams.md, on the WRN-16-1; METHODS=bee-rehearsal: that alone
#   timed:COMMAND a command and its seconds (spaces as commas)
#   done:NAME, after:NAME  what one lane is through with, and what another waits for
#   lanes:FILE    a line of stages a lane, side by side (the plans in lab/lanes)
#   NAME=VALUE    for the stages that follow in its lane
set -e
mkdir -p "$2" "$1/out"
pieces=$(cd "$1" && pwd) keep=$(cd "$2" && pwd)
shift 2
if [ -z "$CODE" ]; then
  rm -f "$keep/ended"
  CODE=$(mktemp -d)
  export CODE
  cp -R src lab "$CODE"
  cd "$CODE"
  exec sh lab/bare.sh "$pieces" "$keep" "$@"
fi
export PYTHONPATH="$CODE/src:$pieces/site" PYTHON=python3 PYTHONUNBUFFERED=1 TQDM_DISABLE=1
export TERM=dumb COLUMNS=160
out=$pieces/out
mkdir -p "$out/cifar10" "$out/weights"
for file in "$pieces"/w1/* "$pieces"/w2/*; do
  [ -e "$file" ] && ln -sf "$file" "$out/weights/"
done
for file in "$pieces"/clean/* "$pieces"/train*/*; do
  [ -e "$file" ] && ln -sf "$file" "$out/cifar10/"
done
WEIGHTS=$(echo "$out"/weights/*.safetensors)
export WEIGHTS DATA=$out/cifar10-c DOUBLE=$out/double EXTRA=$out/extra SOURCE=$out/cifar10 OUT=$out/runs
export CLEAN=$out/cifar10 WIDER=$pieces/wider/cifar10-wrn-16-2.safetensors

pack() {
  (cd "$out" && find . \( -name 'run.json' -o -name 'settings.json' -o -name 'batches.jsonl' \
    -o -name '*.jsonl' -o -name 'results.json' -o -name 'log-*' \) -print | tar czf keep.part -T - &&
    mv keep.part "$keep/keep.tgz") 2>/dev/null || true
}
if [ -z "$LANE" ]; then
  (while sleep 15; do pack; done) &
  keeper=$!
  trap 'kill $keeper; pack; touch "$keep/ended"' EXIT
fi

lanes() { # FILE: a line a lane, side by side
  # A network of this size alone leaves an H200 half idle; through MPS processes share it, not its time.
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d 2>&1 || echo "without MPS, or it is running already"
  name=$(basename "$1" .txt) n=0 begun_lanes=""
  while read -r line; do
    case $line in "#"* | "") continue ;; esac
    n=$((n + 1))
    (export LANE=$n && eval exec sh lab/bare.sh "$pieces" "$keep" "$line") >"$out/log-$name-$n" 2>&1 &
    begun_lanes="$begun_lanes $!"
  done <"$1"
  for lane in $begun_lanes; do wait "$lane" || echo "a lane of $name failed; see log-$name-*"; done
}

make_data() {
  python3 -m bombus data make cifar10-c --clean "$CLEAN" --severities 5 --out "$DATA" &&
    python3 -m bombus data make cifar10-c --clean "$CLEAN" --severities 5 --out "$out/extra" \
      --corruptions speckle_noise gaussian_blur spatter saturate &&
    python3 lab/double.py "$out/extra" "$DOUBLE" &&
    touch "$out/data-ready"
}

for stage in "$@"; do
  case $stage in
    timed:* | lanes:*) ;;
    *=*) export "${stage?}" && continue ;;
  esac
  begun=$(date +%s)
  number=$(echo "$stage" | sed 's/^[a-z]*\([0-9]*\).*/\1/') part=${stage#*-}
  export SEED=${number:-1}
  case $stage in
    data)
      rm -f "$out/data-failed"
      (make_data || touch "$out/data-failed") >"$out/log-data" 2>&1 &
      ;;
    severities)
      (
        nice python3 -m bombus data make cifar10-c --clean "$CLEAN" --out "$out/all" &&
          touch "$out/all-ready"
      ) >"$out/log-severities" 2>&1 &
      ;;
    wait)
      while [ ! -e "$out/data-ready" ]; do
        [ ! -e "$out/data-failed" ] || { cat "$out/log-data"; exit 1; }
        sleep 1
      done
      ;;
    wrn*-*) sh lab/wrn-28-10.sh "$part" || echo "$stage failed" ;;
    rescaled*-*)
      file=$out/rescaled.safetensors
      if mkdir "$file.begun" 2>/dev/null; then
        python3 lab/rescale.py $WEIGHTS --as-begun --norms 0.33 --out "$file.part"
        mv "$file.part" "$file"
      fi
      until [ -e "$file" ]; do sleep 1; done # another lane is at it
      WEIGHTS=$file OUT=$out/rescaled sh lab/wrn-28-10.sh "$part" || echo "$stage failed"
      ;;
    vit*-*) WEIGHTS=$(echo "$pieces"/vit/*.safetensors) sh lab/vit-s4.sh "$part" || echo "$stage failed" ;;
    small)
      (
        export WEIGHTS=src/bombus/demo/wrn-16-1.safetensors BACKBONE=wrn-16-1 PRECISION=fp32
        export WARMUP=src/bombus/demo/bee-warmup.safetensors OUT=$out/streams
        if [ "$METHODS" = bee-rehearsal ]; then # which has no embedded file
          export WARMUP=$out/small.safetensors
          python3 -m bombus warmup "$METHODS" --benchmark demo --data "$SOURCE" --out "$WARMUP"
        else
          METHODS=bee
          METHODS=cotta sh lab/streams.sh recurring &
          METHODS=cotta sh lab/streams.sh mixed correlated &
        fi
        export METHODS
        sh lab/streams.sh continual mixed correlated &
        sh lab/streams.sh recurring &
        while [ ! -e "$out/all-ready" ]; do sleep 1; done
        export DATA="$out/all"
        sh lab/streams.sh gradual &
        [ "$METHODS" = bee-rehearsal ] || METHODS=cotta sh lab/streams.sh gradual &
        wait
      ) >"$out/log-small" 2>&1
      ;;
    done:*) touch "$out/done-${stage#done:}" ;;
    after:*) until [ -e "$out/done-${stage#after:}" ]; do sleep 1; done ;;
    lanes:*) lanes "${stage#lanes:}" ;;
    timed:*) eval "$(echo "${stage#timed:}" | tr , ' ')" || echo "$stage failed" ;;
    *) echo "unknown stage $stage" >&2; exit 2 ;;
  esac
  echo "== $stage: $(($(date +%s) - begun)) s"
done
