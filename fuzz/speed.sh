#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# fuzz/speed.sh FOLDER...: inputs a second of processor time, user and system, of the fuzz
# programs in each FOLDER (build/fuzz/fuzz, and another tree's for a comparison), in turns: 4,000
# runs from the corpus, with five seeds; the median, the lowest and the highest. Then operations a
# second, where the program counts them. FLAGS: libFuzzer's; not set, those of ./run fuzz.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
run_count=${RUNS:-4000}
seed_count=${SEEDS:-5}
read -ra flags <<<"${FLAGS--use_counters=0}"
[[ $# -ge 1 ]] || { echo "usage: fuzz/speed.sh FOLDER..." >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for target in va manager stream; do
  for ((seed = 1; seed <= seed_count; ++seed)); do
    for folder in "$@"; do
      mkdir -p "$work/inputs"
      TIMEFORMAT='%U %S'
      times=$({ time "$folder/fuzz_$target" "${flags[@]}" -seed="$seed" -runs="$run_count" \
        -artifact_prefix="$work/" "$work/inputs" "$root/fuzz/corpus/$target" \
        >"$work/log" 2>&1; } 2>&1) || { tail -n 20 "$work/log" >&2; exit 1; }
      rm -rf "$work/inputs"
      operations=$(sed -n 's/^stat::operations: //p' "$work/log")
      awk -v folder="$folder" -v count="$run_count" -v operations="${operations:-0}" \
        '{ printf "%s %d %d\n", folder, count / ($1 + $2), operations / ($1 + $2) }' \
        <<<"$times" >>"$work/$target"
    done
  done
  for folder in "$@"; do
    for column in 2 3; do
      awk -v folder="$folder" -v column="$column" '$1 == folder { print $column }' "$work/$target" |
        sort -n | awk -v name="$target, $folder" -v what="$((column == 2))" '{ all[NR] = $1 }
          END { printf "%s: %d (%d to %d) %s a second\n", name, all[int((NR + 1) / 2)], all[1],
                all[NR], what ? "inputs" : "operations" }'
    done
  done
done
