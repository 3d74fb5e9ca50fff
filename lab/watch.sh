#!/bin/sh
# Waits for a sitting that lab/bare.sh began, at most SECONDS, and fetches what it packed:
#
#   sh lab/watch.sh PIECES KEEP TO SECONDS
#
# It ends with the sitting, well or not, so that no machine is held for a sitting that broke.
out=$1/out keep=$2 to=$3
end=$(($(date +%s) + $4))
while [ ! -e "$keep/ended" ] && [ "$(date +%s)" -lt "$end" ]; do
  sleep 5
  if [ -e "$keep/keep.tgz" ]; then cp "$keep/keep.tgz" "$to/keep.part" && mv "$to/keep.part" "$to/keep.tgz"; fi
done
[ ! -e "$keep/keep.tgz" ] || cp "$keep/keep.tgz" "$to/keep.tgz"
if [ -e "$keep/ended" ]; then echo "== the sitting has ended"; else echo "== the sitting goes on"; fi
for log in "$keep"/log "$out"/log-*; do
  [ ! -e "$log" ] || { echo "== $(basename "$log")"; tail -n 6 "$log" | cut -c 1-400; }
done
