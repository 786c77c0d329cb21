#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# scripts/gpu.sh WORD...: what needs a GPU. `build` makes the programs here and puts them into
# .gpu/, from where they run on a machine with a GPU and without a compiler; every other word runs
# them there. Results are Markdown files in $OUT (default build/gpu-results), and the last thing
# printed is one line a word.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs=$root/.gpu
results=${OUT:-$root/build/gpu-results}
log=$results/log.txt

help() {
  cat <<'TEXT'
usage: scripts/gpu.sh [build] [WORD...]

  build        compile and put the programs into .gpu/ (needs clang++-19 and lld-19)
  all          every word below, in this order
  check        what the device and the driver are; the unit tests of opening
  fidelity     more than 100 invalid and boundary calls, the device beside the fake
  random       1,000 random call sequences, equal codes and contents
  time         driver time of 20 call sequences, predicted by the fake and taken
  conformance  the conformance suite
  resize       doubling a buffer with its data: by copying, by hand, by vmm
  vector       a vector that grows while kernels run on another stream
  leak         1,000,000 cycles of create, map, access, unmap, release
  oom          100 rounds of real out of memory
  sanitizer    compute-sanitizer memcheck and initcheck over the conformance suite

Without a word: build where there is a compiler, and then all where there is a GPU.
TEXT
}

say() { printf '%s\n' "$*" >&2; }

# ---- build --------------------------------------------------------------------------------------

targets=(vmm-fidelity bench_resize conformance_cuda cuda_open_test example_gpu_vector)

build() {
  cmake --preset gpu -S "$root" >/dev/null || return 1
  ninja -C "$root/build/gpu" "${targets[@]}" || return 1
  mkdir -p "$programs"
  local name found
  for name in "${targets[@]}"; do
    found=$(find "$root/build/gpu" -type f -name "$name" -perm -u+x | head -n 1)
    cp "$found" "$programs/$name" || return 1
  done
  du -sh "$programs" >&2
}

# ---- the machine --------------------------------------------------------------------------------

find_driver_version() {
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1
}

# "NVIDIA H200" is h200: the end of every result's name.
device_slug() {
  local device
  device=$("$programs/vmm-fidelity" about | sed -n 's/^device  *//p')
  printf '%s' "${device##* }" | tr '[:upper:]' '[:lower:]' | tr -cd 'a-z0-9'
}

# ---- words: each writes its files and says one line on stdout -----------------------------------

# A page becomes a section of the page of proofs.
add_proof() {
  local page=$1
  [[ -s $page ]] || return 0
  [[ -s $results/proofs-$slug.md ]] || printf '# Proofs on a GPU\n\n' >"$results/proofs-$slug.md"
  sed 's/^# /## /' "$page" >>"$results/proofs-$slug.md"
  printf '\n' >>"$results/proofs-$slug.md"
  rm -f "$page"
}

check() { "$programs/vmm-fidelity" about && "$programs/cuda_open_test" | tail -n 1; }

fidelity() {
  "$programs/vmm-fidelity" probes --markdown "$results/fidelity-$slug.md" \
    --record "$results/recorded-$slug.txt" --differences "$root/tests/cuda/recorded/differences.txt"
}

random() {
  local page=$scratch/random.md
  "$programs/vmm-fidelity" random --count 1000 --markdown "$page"
  local code=$?
  add_proof "$page"
  return $code
}

time_() { "$programs/vmm-fidelity" time --markdown "$results/driver-time-$slug.md"; }

conformance() {
  local code=0 text=$scratch/conformance.txt
  "$programs/conformance_cuda" >"$text" 2>&1 || code=$?
  cat "$text" >>"$log"
  grep -E -A 6 'Failure|FAILED' "$text"
  grep -E '^\[ *(PASSED|SKIPPED) *\] *[0-9]' "$text"
  {
    printf '# Conformance suite\n\n%s, %s.\n\n' "$(date +%F)" "$machine"
    echo '```'
    grep -E '^\[ *(PASSED|FAILED|SKIPPED|=+) *\]' "$text" | sort -u
    echo '```'
    printf '\nCommand: conformance_cuda.\n'
  } >"$scratch/conformance.md"
  add_proof "$scratch/conformance.md"
  return $code
}

resize() {
  "$programs/bench_resize" --head "$(date +%F), $machine" --markdown "$results/resize-$slug.md"
}

vector() {
  local text=$scratch/vector.txt code=0
  "$programs/example_gpu_vector" >"$text" 2>&1 || code=$?
  cat "$text"
  {
    printf '# A vector that grows while a kernel reads it\n\n%s, %s.\n\n' "$(date +%F)" "$machine"
    echo '```'
    cat "$text"
    echo '```'
    printf '\nCommand: example_gpu_vector.\n'
  } >"$scratch/vector.md"
  add_proof "$scratch/vector.md"
  return $code
}

leak() {
  local page=$scratch/leak.md
  "$programs/vmm-fidelity" leak --markdown "$page"
  local code=$?
  add_proof "$page"
  return $code
}

oom() {
  local page=$scratch/oom.md
  "$programs/vmm-fidelity" oom --markdown "$page"
  local code=$?
  add_proof "$page"
  return $code
}

sanitizer() {
  local tool code=0 kind text
  tool=$(command -v compute-sanitizer ||
    find /usr/local /opt -name compute-sanitizer -perm -u+x -type f 2>/dev/null | head -n 1)
  if [[ -z $tool ]]; then
    printf 'compute-sanitizer is not on this machine\n'
    return 2
  fi
  printf '# compute-sanitizer over the conformance suite\n\n%s, %s.\n\n' "$(date +%F)" "$machine" \
    >"$scratch/sanitizer.md"
  for kind in memcheck initcheck; do
    text=$scratch/$kind.txt
    local options=(--tool "$kind" --error-exitcode 9)
    [[ $kind == memcheck ]] && options+=(--leak-check full)
    "$tool" "${options[@]}" "$programs/conformance_cuda" >"$text" 2>&1 || code=$?
    cat "$text" >>"$log"
    printf '%s: %s\n' "$kind" "$(grep 'ERROR SUMMARY' "$text" | tail -n 1)"
    printf -- '- %s: `%s`\n' "$kind" "$(grep 'ERROR SUMMARY' "$text" | tail -n 1)" \
      >>"$scratch/sanitizer.md"
  done
  add_proof "$scratch/sanitizer.md"
  return $code
}

# ---- running ------------------------------------------------------------------------------------

all_words=(check fidelity random time conformance resize vector leak oom sanitizer)

declare -a summary=()
failures=0

run_word() {
  local word=$1 function=$1 begin=$SECONDS code=0
  [[ $word == time ]] && function=time_
  printf '\n== %s\n' "$word"
  "$function" 2>&1 | tee -a "$log"
  code=${PIPESTATUS[0]}
  [[ $code -eq 0 ]] || failures=$((failures + 1))
  summary+=("$(printf '%-12s %-4s %4d s' "$word" "$([[ $code -eq 0 ]] && echo ok || echo "$code")" \
    $((SECONDS - begin)))")
}

main() {
  local words=("$@") word
  if [[ ${#words[@]} -eq 0 ]]; then
    words=(all)
    command -v clang++-19 >/dev/null && words=(build all)
  fi
  if [[ ${words[0]} == build ]]; then
    build || { say 'gpu: the build failed'; exit 1; }
    words=("${words[@]:1}")
  fi
  [[ ${#words[@]} -gt 0 ]] || exit 0
  [[ ${words[0]} == all ]] && words=("${all_words[@]}")
  for word in "${words[@]}"; do
    [[ " ${all_words[*]} " == *" $word "* ]] || { help >&2; exit 2; }
  done
  VMM_DRIVER_VERSION=$(find_driver_version)
  export VMM_DRIVER_VERSION
  if ! "$programs/vmm-fidelity" about >/dev/null; then
    "$programs/vmm-fidelity" about
    exit 2
  fi
  mkdir -p "$results"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  slug=$(device_slug)
  machine=$("$programs/vmm-fidelity" about | sed -n 's/^device  *//p; s/^driver  */driver /p' |
    paste -sd, | sed 's/,/, /')
  for word in "${words[@]}"; do run_word "$word"; done
  printf '\n== %s\n' "$machine"
  printf '%s\n' "${summary[@]}"
  printf 'results in %s\n' "$results"
  [[ $failures -eq 0 ]]
}

main "$@"
