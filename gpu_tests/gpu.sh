#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# gpu_tests/gpu.sh COMMAND...: tests and benchmarks that need a GPU. `build` compiles the programs
# into .gpu/, for a machine with a GPU and without a compiler; every other command runs them there.
# Results are Markdown files in $OUT (default build/gpu-results), and their tables CSV files in
# $OUT/data. The output ends with one line per command.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs=$root/.gpu
gpu_test=$programs/vmm-gpu-test
results=${OUT:-$root/build/gpu-results}
log=$results/log.txt

help() {
  cat <<'TEXT'
usage: gpu_tests/gpu.sh [build] [COMMAND...]

  build        compile and put the programs into .gpu/ (needs clang++-19 and lld-19)
  all          every command below, in this order
  check        the device and the driver; the unit tests of opening
  fidelity     more than 100 invalid and boundary calls, the device beside the fake
  random       1,000 random call sequences, equal codes and contents
  conformance  the conformance suite
  resize       doubling a buffer with its data: by copying, by hand, by vmm
  vector       a vector that grows while kernels run on another stream
  leak         1,000,000 cycles of create, map, access, unmap, release
  oom          100 rounds of real out of memory
  sanitizer    compute-sanitizer memcheck and initcheck over the conformance suite
  demo         ./run demo on the device
  replay       the traces on the device: its own peak of memory, and time beside the fake's
  growable     growing a cache in place, by hand, and by copying
  suspend      suspend and resume beside the driver's calls and plain copies; 1,000 cycles
  pool [TRACE...]
               sixteen traces, or those named, through the pool, cuMemAllocAsync and PyTorch's:
               the peak of forty passes and the time of warm ones (VMM_POOL_ROUNDS rounds, 3)
  sharing      1 to 16 threads on one allocator: the pool and the same others
  rounds       10,000 rounds of free, reuse and defragment while kernels run
  streams      the traces with real work on four streams
  prove        a million random schedules of the pool and a million of threads (VMM_PROVE_COUNT) on
               all cores, under checks; not part of all
  watched      compute-sanitizer over short forms of rounds and streams
  graph        calls forbidden during a capture; a graph with the pool's memory among other work
  everything   10,000 device-wide frees under kernels on 16 streams, and their cost
  predict      driver time of the traces, predicted by the fake and taken
  overflow     compute-sanitizer detects a byte written past the end of a block of the pool
  c            libvmm.so from nvcc: ten streams, CCCL, Thrust, a graph; RMM if VMM_RMM names it
  preload      PyTorch, CuPy, JAX, Numba and nvcc programs with the preload library (9 minutes)
  special      one memory at two addresses: each rule of docs/multi_device.md, tried by kernels
  suites F...  libraries' own tests in folder F, with and without vmm; not part of all. Further
               arguments go to gpu_tests/suites/run.py, whose head describes F
  one_variable [PART...]
               unmodified programs under VMM=1, with the wheel in .gpu or build/wheel; not part of
               all. gpu_tests/python/one_variable.py has the parts, of 250 s each
  market [PART...]
               memory that goes between tenants of vmm-owner, kills, three programs; not part
               of all. gpu_tests/market/market.cpp has the parts; the last is `programs`, with the
               wheel in .gpu or build/wheel
  pair         two GPUs of one host, not part of all: rights by trial, copies, imports, aliases,
               NCCL, and VMM_KILL_ROUNDS (500) kills

Without a command: build if there is a compiler, and then all if there is a GPU.
TEXT
}

say() { printf '%s\n' "$*" >&2; }

# ---- build --------------------------------------------------------------------------------------

targets=(vmm-fidelity bench_resize conformance_cuda cuda_open_test example_gpu_vector vmm-demo
         vmm-replay vmm-gpu-test bench_growable bench_pool bench_sharing
         bench_suspend bench_threads bench_stream vmm-trace prove_schedules
         vmm_preload vmm-gpu-market vmm-owner)

build() {
  cmake --preset gpu -S "$root" >/dev/null || return 1
  ninja -C "$root/build/gpu" "${targets[@]}" || return 1
  mkdir -p "$programs"
  find_commit >"$programs/commit"
  local name found
  for name in "${targets[@]}"; do
    [[ $name != vmm_preload ]] || name=libvmm_preload.so
    found=$(find "$root/build/gpu" -type f -name "$name" -perm -u+x | head -n 1)
    cp "$found" "$programs/$name" || return 1
  done
  strip "$programs/libvmm_preload.so" || return 1
  build_c || return 1
  cmake --preset dev -S "$root" >/dev/null || return 1
  ninja -C "$root/build/dev" schedule_threads || return 1
  strip -o "$programs/schedule_threads" "$root/build/dev/tests/threads/schedule_threads" || return 1
  du -sh "$programs" >&2
}

# The commit that is checked out here, with a word where files differ from it.
find_commit() {
  local changed=''
  [[ -z $(git -C "$root" status --porcelain -uno 2>/dev/null) ]] || changed=' and changes'
  printf '%s%s\n' "$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)" "$changed"
}

# libvmm.so and the programs that nvcc compiles for it: left out, and said, where nvcc is not.
build_c() {
  if ! ninja -C "$root/build/gpu" -t query c_device_test >/dev/null 2>&1; then
    say 'no nvcc here: the word c has nothing to run'
    return 0
  fi
  local target
  for target in c_device_test c_containers_test; do
    ninja -C "$root/build/gpu" -t query $target >/dev/null 2>&1 || continue
    ninja -C "$root/build/gpu" $target || return 1
    cp "$root/build/gpu/tests/c/$target.bin" "$programs/$target" || return 1
  done
  cp -L "$root/build/gpu/c/libvmm.so.1" "$programs/" || return 1
  cp "$root"/build/gpu/tests/c/lib{rmm,rapids_logger}.so "$programs/" 2>/dev/null || true
}

# ---- the machine --------------------------------------------------------------------------------

find_driver_version() {
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1
}

# "NVIDIA H200" is h200, "NVIDIA H100 80GB HBM3" is h100: the end of every result's name.
device_slug() {
  local device model
  device=$("$programs/vmm-fidelity" about | sed -n 's/^device  *//p')
  model=$(grep -oE '\b[A-Z]+[0-9]+[A-Z]*' <<<"$device" | head -n 1)
  printf '%s' "${model:-${device##* }}" | tr '[:upper:]' '[:lower:]' | tr -cd 'a-z0-9'
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

# begin_page TITLE: the head of a page.
begin_page() { printf '# %s\n\n%s, %s.\n\n' "$1" "$(date +%F)" "$machine"; }

# show TITLE COMMAND FENCE FILTER PROGRAM WORD...: what the program prints, also as a section of the
# page of proofs, through FILTER and between lines of FENCE. COMMAND is what makes it again.
show() {
  local title=$1 command=$2 fence=$3 filter=$4 code=0 text=$scratch/shown.txt page=$scratch/shown.md
  shift 4
  "$@" >"$text" 2>>"$log" || code=$?
  cat "$text"
  {
    begin_page "$title"
    printf '%s' "$fence"
    $filter <"$text"
    printf '%s\nCommand: %s.\n' "$fence" "$command"
  } >"$page"
  add_proof "$page"
  return $code
}

# measure NAME WORD...: a benchmark, which writes a page of its own.
measure() {
  "$programs/bench_$1" "${@:2}" --head "$(date +%F), $machine" --markdown "$results/$1-$slug.md"
}

# compare WORD...: the device and the fake, as a section of the page of proofs.
compare() {
  local page=$scratch/compared.md code=0
  "$programs/vmm-fidelity" "$@" --markdown "$page" || code=$?
  add_proof "$page"
  return $code
}

check() { "$programs/vmm-fidelity" about && "$programs/cuda_open_test" | tail -n 1; }

fidelity() {
  "$programs/vmm-fidelity" probes --markdown "$results/fidelity-$slug.md" \
    --record "$results/recorded-$slug.txt" --differences "$root/tests/cuda/recorded/differences.txt"
}

random() { compare random --count 1000; }
leak() { compare leak; }
oom() { compare oom; }

resize() { measure resize; }

# 64 steps, as a cache grows; of VMM_GROWABLE_STEP bytes where it is set.
growable() {
  measure growable --backend cuda --steps 64 --step "${VMM_GROWABLE_STEP:-256MiB}" --rounds 11
}

suspend() {
  measure suspend --backend cuda --bytes 32GiB --keep 8GiB --cycle 1GiB --cycles 1000
}

lines=$'```\n'

counts_of_tests() { grep -E '^\[ *(PASSED|FAILED|SKIPPED|=+) *\]' | sort -u; }

conformance() {
  local code=0 text=$scratch/conformance.txt
  show 'Conformance suite' conformance_cuda "$lines" counts_of_tests \
    "$programs/conformance_cuda" >"$text" || code=$?
  cat "$text" >>"$log"
  grep -E -A 6 'Failure|FAILED' "$text"
  grep -E '^\[ *(PASSED|SKIPPED) *\] *[0-9]' "$text"
  return $code
}

vector() {
  show 'A vector that grows while a kernel reads it' example_gpu_vector "$lines" cat \
    "$programs/example_gpu_vector"
}

without_progress() { grep -v -e 'replaying:' -e 'as a picture:'; }

demo() {
  show 'The demo' '`./run demo`' "$lines" without_progress "$programs/vmm-demo" \
    --trace "$root/traces/maskrcnn_train.trace.gz" --svg "$scratch/demo.svg"
}

graph() { show 'Graph capture' 'vmm-gpu-test graph' '' cat "$gpu_test" graph; }

everything() {
  show 'Free after everything' 'vmm-gpu-test everything' '' cat "$gpu_test" everything
}

run_c_programs() {
  local program code=0
  for program in c_device_test c_containers_test; do
    [[ ! -x $programs/$program ]] || LD_LIBRARY_PATH=$programs "$programs/$program" || code=1
  done
  return $code
}

# The libraries and programs that nvcc made use libvmm.so.1 beside them.
c() {
  [[ -x $programs/c_device_test ]] || { printf 'built without nvcc\n'; return 2; }
  show 'libvmm.so from programs of nvcc' 'gpu_tests/gpu.sh c' "$lines" cat run_c_programs
}

# Sets tool, or fails.
find_sanitizer() {
  tool=$(command -v compute-sanitizer ||
    find /usr/local /opt -name compute-sanitizer -perm -u+x -type f 2>/dev/null | head -n 1)
  [[ -n $tool ]] || { printf 'compute-sanitizer is not on this machine\n'; return 2; }
}

# The suite makes calls that must be refused, so memcheck reports accesses and leaks, not refusals;
# and two tests read memory that was never written, because fresh memory is zero: not under
# initcheck.
sanitizer() {
  local tool code=0 kind text
  local -A options=(
    [memcheck]='--leak-check full --report-api-errors no'
    [initcheck]='--report-api-errors no --print-limit 20'
  )
  local -A left_out=(
    [memcheck]=''
    [initcheck]='*FreshMemoryIsZeroWhereItSaysSo/*:*RandomSequencesAgreeWithTheModel/*'
  )
  find_sanitizer || return
  begin_page 'compute-sanitizer over the conformance suite' >"$scratch/sanitizer.md"
  for kind in memcheck initcheck; do
    text=$scratch/$kind.txt
    # shellcheck disable=SC2086
    "$tool" --tool "$kind" --error-exitcode 9 ${options[$kind]} "$programs/conformance_cuda" \
      --gtest_filter="*-${left_out[$kind]}" >"$text" 2>&1 || code=$?
    cat "$text" >>"$log"
    printf '%s: %s, %s\n' "$kind" "$(grep 'ERROR SUMMARY' "$text" | tail -n 1)" \
      "$(grep -E '^\[ *PASSED' "$text")"
    printf -- '- `%s %s`, without `%s`: `%s`\n' "$kind" "${options[$kind]}" "${left_out[$kind]}" \
      "$(grep -E 'ERROR SUMMARY|LEAK SUMMARY|^\[ *PASSED' "$text" | paste -sd' ')" \
      >>"$scratch/sanitizer.md"
  done
  add_proof "$scratch/sanitizer.md"
  return $code
}

# predicted_row TRACE: the play whose ratio is the median, as a row of a table. The plays stand in
# the order of their ratios.
predicted_row() {
  local plays=() line
  mapfile -t plays <"$scratch/predicted-$1"
  line=${plays[$((${#plays[@]} / 2))]}
  awk -v trace="$1" -v told="$(member "$line" predicted_us)" \
    -v factor="$(member "$line" host_factor)" -v taken="$(member "$line" taken_us)" \
    -v ratio="$(member "$line" ratio)" -v lowest="$(member "${plays[0]}" ratio)" \
    -v highest="$(member "${plays[-1]}" ratio)" -v count="${#plays[@]}" 'BEGIN {
      printf "| %s | %d | %.2f | %.2f | %.2f | %.3f | %.3f, %.3f |\n", trace, count, told / 1e3,
        factor, taken / 1e3, ratio, lowest, highest
      exit ratio < 0.85 || ratio > 1.15 }'
}

# predicted_table NAME...: a row each; fails where one is more than 15 % off.
predicted_table() {
  local name code=0
  printf '| trace | plays | predicted ms | host factor | taken ms | '
  printf 'predicted for this host / taken | lowest, highest |\n'
  printf '| --- | --- | --- | --- | --- | --- | --- |\n'
  for name in "$@"; do predicted_row "$name" || code=1; done
  return $code
}

# play_predictions NAME...: one play of each, in a process of its own, added to its file.
play_predictions() {
  local name path
  for name in "$@"; do
    path=$scratch/$name.trace  # a program that was generated; else a recorded one
    [[ -f $path ]] || path=$root/traces/$name.trace.gz
    sleep 0.25
    "$programs/vmm-fidelity" predict --trace "$path" >>"$scratch/predicted-$name" || return 1
  done
}

# The four traces, five plays in turn; and, three times, programs that nothing was chosen on.
predict() {
  local name round code=0 page=$results/predicted-$slug.md
  local others=(pictures vision serving graphs scoring)
  for name in "${others[@]}"; do "$programs/vmm-trace" "$name" 1 >"$scratch/$name.trace"; done
  for round in 1 2 3 4 5; do
    play_predictions "${trace_names[@]}" || return 1
    [[ $round -gt 3 ]] || play_predictions "${others[@]}" || return 1
  done
  cat "$scratch"/predicted-* >>"$log"
  for name in "${trace_names[@]}" "${others[@]}"; do
    sed 's/.*"ratio": \([0-9.]*\).*/\1 &/' "$scratch/predicted-$name" | sort -n |
      cut -d' ' -f2- >"$scratch/sorted"
    mv "$scratch/sorted" "$scratch/predicted-$name"
  done
  {
    begin_page 'Driver time of the traces, predicted and taken'
    printf '%s\n' 'The pool on each trace, one play a process; the row is the play whose ratio is' \
      'the median. The host factor is what 128 handles of 16 MiB took just before, in the same' \
      'process, to be made, mapped and given access, over what the fake charges for them. The' \
      'time taken leaves out the question whether a stream is being captured, which the fake' \
      'does not charge.' ''
    predicted_table "${trace_names[@]}" || code=1
    printf '\nPrograms that nothing was chosen on (`vmm-trace KIND 1`):\n\n'
    predicted_table "${others[@]}"
    printf '\nCommand: `gpu_tests/gpu.sh predict`.\n'
  } >"$page"
  cat "$page"
  return $code
}

# The pool's policy was chosen on the first; later choices had the next in view; none had the last.
trace_names=(gpt_train llama_generate maskrcnn_train beam_kv)
later_names=(diffusion experts speech serving neighbours feedback)
unseen_names=(folding rays search recommend points video)

# trace_paths [NAME...]: of the first, and of those that are named.
trace_paths() { printf "$root/traces/%s.trace.gz\n" "${trace_names[@]}" "$@"; }

# member JSON KEY: the plain value of a key in one line of JSON.
member() { sed -n "s/.*\"$2\": \"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$1"; }

# One row: the trace on the device and, for the prediction, on the fake.
replay_row() {
  local trace=$root/traces/$1.trace.gz policy=$2 gpu fake factor
  factor=$("$programs/vmm-fidelity" yardstick) || return 1
  gpu=$("$programs/vmm-replay" "$trace" --backend cuda --policy "$policy" --json) || return 1
  fake=$("$programs/vmm-replay" "$trace" --policy "$policy" --json) || return 1
  awk -v trace="$1" -v policy="$policy" -v live="$(member "$gpu" peak_live_bytes)" \
    -v ours="$(member "$gpu" peak_reserved_bytes)" \
    -v device="$(member "$gpu" device_peak_bytes)" -v taken="$(member "$gpu" driver_us)" \
    -v told="$(member "$fake" driver_us)" -v told_peak="$(member "$fake" peak_reserved_bytes)" \
    -v ns="$(member "$gpu" ns_per_event)" -v factor="$factor" 'BEGIN {
      printf "| %s | %s | %.3f | %.3f | %.3f | %.3f | %.0f | %.2f | %.2f | %.2f | %.3f |\n", trace,
        policy, live / 2^30, ours / live, device / live, told_peak / live, ns, taken / 1e3,
        told / 1e3, factor, told * factor / taken }'
}

# keep_mapped would hold 128 GiB and more on two of the traces, and va_pool would take 20 s on one.
replay_rows() {
  local trace policy
  for trace in "${trace_names[@]}"; do
    for policy in pool vpmm virtual_caching va_pool keep_mapped; do
      case $trace/$policy in
        gpt_train/keep_mapped | maskrcnn_train/keep_mapped) continue ;;
        llama_generate/va_pool | gpt_train/va_pool) continue ;;
      esac
      replay_row "$trace" "$policy" || return 1
    done
  done
}

replay() {
  local page=$results/replay-$slug.md code=0
  {
    begin_page 'The traces on the device'
    printf '%s\n' 'No kernel runs; each row is one pass from nothing.' \
      'Live bytes are requests rounded up to 512. The peak is told three times: by our own count,' \
      'by how much the free memory of the device fell as its driver tells it, and by our own' \
      'count on the fake driver. Time in driver calls is taken on the device and predicted by the' \
      'fake, in milliseconds. The host factor is how much slower this host was just before than' \
      'the one of the prices that the fake charges (`vmm-fidelity yardstick`).' ''
    printf '| trace | policy | peak live GiB | our count / live | device / live | fake / live | '
    printf 'ns an event | driver ms, taken | predicted | host factor | '
    printf 'predicted for this host / taken |\n'
    printf '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n'
  } >"$page"
  replay_rows >"$scratch/rows" || code=1
  cat "$scratch/rows" >>"$page"
  printf '\nCommand: `gpu_tests/gpu.sh replay`, which runs `./run replay FILE --backend cuda`.\n' \
    >>"$page"
  cat "$scratch/rows"
  return $code
}

# PyTorch's allocators as a library of peers, built against the PyTorch that is installed here.
build_peers() {
  local torch cuda
  torch=$(python3 -c 'import importlib.util as u
print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) || return 1
  cuda=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
  cuda=${cuda%/bin/nvcc}
  g++ -shared -fPIC -std=c++20 -O2 -w "$root/benchmarks/peers/torch.cpp" -I"$torch/include" \
    -I"$cuda/include" -L"$torch/lib" -Wl,-rpath,"$torch/lib" -lc10_cuda -lc10 -o "$1"
}

# beside_peers PROGRAM ARGUMENTS...: with PyTorch's allocators, and as a failure without them.
beside_peers() {
  local peers=() code=0
  if build_peers "$scratch/peers.so"; then
    peers=(--peers "$scratch/peers.so")
  else
    printf 'PyTorch is not here or does not build: its allocators are left out\n'
    code=1
  fi
  "$@" ${peers[@]+"${peers[@]}"} --head "$(date +%F), $machine" || code=$?
  return $code
}

pool() {
  local traces
  mapfile -t traces < <(trace_paths "${later_names[@]}" "${unseen_names[@]}")
  [[ ${#pool_paths[@]} -eq 0 ]] || traces=("${pool_paths[@]}")
  beside_peers "$programs/bench_pool" "${traces[@]}" --rounds "${VMM_POOL_ROUNDS:-3}" \
    --csv "$results/data/pool-$slug.csv" --markdown "$results/pool-$slug.md"
}

sharing() { beside_peers "$programs/bench_sharing" --markdown "$results/sharing-$slug.md"; }

# add_streams TITLE COMMAND...: the command's table as a section of one page.
add_streams() {
  local title=$1 page=$results/streams-$slug.md code=0
  shift
  [[ -s $page ]] || begin_page 'The pool while kernels run in its memory' >"$page"
  printf '## %s\n\n' "$title" >>"$page"
  "$@" --markdown "$page" || code=$?
  printf 'Command: `%s`, exit code %s.\n\n' "$(basename "$1") ${*:2}" "$code" |
    sed "s|$root/||g" >>"$page"
  return $code
}

rounds() {
  local code=0
  add_streams 'Rounds of free, reuse and defragment' "$gpu_test" rounds || code=1
  add_streams 'The same with the policy vpmm' "$gpu_test" rounds --policy vpmm || code=1
  add_streams 'A planted fault, which the checks must find' \
    "$gpu_test" rounds --planted --count 1000 || code=1
  return $code
}

streams() {
  mapfile -t traces < <(trace_paths)
  add_streams 'Traces with real work on four streams' "$gpu_test" trace "${traces[@]}"
}

# in_parts COUNT FILE PROGRAM WORD...: COUNT schedules in a process for each core; what they print
# goes to FILE. Threads of one process would wait for each other to map memory.
in_parts() {
  local count=$1 file=$2 cores part per running=() code=0 each
  shift 2
  cores=$(nproc)
  per=$(((count + cores - 1) / cores))
  for ((part = 0; part < cores; ++part)); do
    "$@" "$per" --first $((1 + part * per)) >"$file.$part" 2>>"$log" &
    running+=($!)
  done
  for each in "${running[@]}"; do wait "$each" || code=1; done
  cat "$file".*
  return $code
}

# sum_of PATTERN FILE...: the sum of the numbers before a word.
sum_of() { grep -ohE "[0-9]+ $1" "${@:2}" | awk '{ sum += $1 } END { print sum + 0 }'; }

# Needs no GPU, but machines with one have cores to spare.
prove() {
  local code=0 kind page=$results/prove.md what begin=$SECONDS
  local count=${VMM_PROVE_COUNT:-1000000}
  local -A shares=([pool]=50 [pool_unordered]=15 [manager]=35)  # in a hundred
  local -x ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=10:max_uar_stack_size_log=16
  in_parts "$count" "$scratch/prove" "$programs/prove_schedules" --threads 1 >>"$log" || code=1
  {
    printf '# Schedules\n\n%s, the host of %s: %s cores.\n\n| what | count |\n| --- | --- |\n' \
      "$(date +%F)" "$machine" "$(nproc)"
    for what in 'schedules,' operations 'of them refused' 'faults injected' \
      'frees after everything' 'requests prepared' suspensions histories 'captured graphs'; do
      printf '| %s | %s |\n' "${what%,}" "$(sum_of "$what" "$scratch"/prove.*)"
    done
    printf '| seconds | %s |\n' $((SECONDS - begin))
  } >"$page"
  grep -h 'schedule ' "$scratch"/prove.* | grep -v ' 0 hazards' | head -n 5
  for kind in pool pool_unordered manager; do
    begin=$SECONDS
    in_parts $((count * shares[$kind] / 100)) "$scratch/$kind" "$programs/schedule_threads" \
      "$kind" >>"$log" || code=1
    printf '| of threads, %s: all good | %s in %s s |\n' "$kind" \
      "$(sum_of 'schedules, .* all good' "$scratch/$kind".*)" $((SECONDS - begin)) >>"$page"
    grep -h -A 1 -E 'choices|wrong|deadlock' "$scratch/$kind".* | head -n 5
  done
  printf '\nCommand: `gpu_tests/gpu.sh prove`, which ended with %s.\n' $code >>"$page"
  cat "$page"
  return $code
}

watched() {
  local tool code=0 kind text=$scratch/watched.txt page=$results/streams-$slug.md
  find_sanitizer || return
  printf '## compute-sanitizer\n\n' >>"$page"
  for kind in memcheck initcheck; do
    for words in 'rounds --count 100' "trace $root/traces/beam_kv.trace.gz --count 3000"; do
      # Word splitting is wanted: the words of one command line.
      # shellcheck disable=SC2086
      "$tool" --tool $kind --error-exitcode 9 "$gpu_test" $words >"$text" 2>&1 || code=$?
      cat "$text" >>"$log"
      printf -- '- %s, vmm-gpu-test %s: `%s`\n' "$kind" "${words//$root\//}" \
        "$(grep 'ERROR SUMMARY' "$text" | tail -n 1)" | tee -a "$page"
    done
  done
  printf '\n' >>"$page"
  return $code
}

# overflow_row NVTX EXPECTED [WORD...]: vmm-gpu-test overflow under memcheck, as a row of a table.
# It must count EXPECTED errors and, if that is one, name the byte that the program says it wrote.
overflow_row() {
  local nvtx=$1 expected=$2 text=$scratch/overflow.txt errors aimed seen
  shift 2
  "$tool" --tool memcheck --report-api-errors no --nvtx "$nvtx" "$gpu_test" overflow "$@" \
    >"$text" 2>&1
  cat "$text" >>"$log"
  errors=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' "$text" | tail -n 1)
  aimed=$(sed -n 's/^a byte at \(0x[0-9a-f]*\):.*/\1/p' "$text")
  seen=$(sed -n 's/^=* *Access to \(0x[0-9a-f]*\) is out of bounds.*/\1/p' "$text")
  printf '| `%s` | %s | %s | %s |\n' "${*:-(no word)}" "$nvtx" "${errors:-?}" \
    "$(grep -E 'Invalid|Access to|nearest|wrong words' "$text" | sed 's/^=* *//' | paste -sd' ')"
  [[ $errors == "$expected" && ( $expected -eq 0 || ( -n $seen && $seen == "$aimed" ) ) ]]
}

# A byte where no block is makes one error, which only the declarations show; blocks that come and
# go make none. Then the contract, in the memory that this takes.
overflow() {
  local tool code=0 page=$scratch/overflow.md nvtx expected words
  find_sanitizer || return
  nvtx=$("$tool" --version | sed -n 's/^Version \([0-9.]*\).*/\1/p')
  local machine="$machine, compute-sanitizer $nvtx"
  {
    begin_page 'A byte over the end of a block'
    printf 'Two blocks of 1,000 bytes, 1,024 apart, in a pool on plain memory.\n\n'
    printf '| vmm-gpu-test overflow | --nvtx | errors | what memcheck says |\n'
    printf '| --- | --- | --- | --- |\n'
  } >"$page"
  while read -r -u 3 nvtx expected words; do
    # Word splitting is wanted: the words of one command line.
    # shellcheck disable=SC2086
    overflow_row "$nvtx" "$expected" $words >>"$page" || code=1
  done 3<<'CASES'
yes 0
yes 1 --planted
no 0 --planted
yes 1 --gap
yes 1 --freed
yes 1 --trimmed
yes 0 --workload 2000
CASES
  VMM_CUDA_MEMORY=plain "$programs/conformance_cuda" >"$scratch/plain.txt" 2>&1 || code=1
  {
    printf '\nConformance suite in plain memory: %s\n\n' \
      "$(grep -E '^\[ *(PASSED|SKIPPED|FAILED) *\] *[0-9]' "$scratch/plain.txt" |
        sed 's/, listed below:$//' | paste -sd' ')"
    printf 'Command: gpu_tests/gpu.sh overflow, which runs `compute-sanitizer --tool memcheck '
    printf -- '--report-api-errors no --nvtx yes vmm-gpu-test overflow --planted` and so on.\n'
  } >>"$page"
  cat "$page"
  add_proof "$page"
  return $code
}

# Every program that it starts has NVLink multicast switched off; run.py looks before it starts one.
preload() {
  local out=$scratch/preload code=0
  python3 "$root/gpu_tests/preload/run.py" "$programs/libvmm_preload.so" --out "$out" \
    --name "preload-$slug" --head "$(date +%F), $machine" || code=$?
  cp "$out"/preload-* "$results/"
  cp "$out/logs.tar.gz" "$results/preload-logs.tar.gz"
  return $code
}

# NCCL as PyTorch's packages bring it, or the system's; nothing where there is neither.
find_nccl() {
  python3 - <<'FIND' 2>/dev/null || ldconfig -p | awk '/libnccl[.]so[.]2/ { print $NF; exit }'
import glob, importlib.util, sys
for base in importlib.util.find_spec("nvidia").submodule_search_locations:
    for found in glob.glob(base + "/nccl/lib/libnccl.so.2"):
        print(found)
        sys.exit(0)
sys.exit(1)
FIND
}

special() {
  local page=$results/special-$slug.md text=$scratch/special.txt ended=0
  "$gpu_test" aliases >"$text" 2>>"$log" || ended=$?
  cat "$text"
  {
    begin_page 'One memory at two addresses'
    sed 's/^### /## /' "$text"
    printf '\nCommand: `vmm-gpu-test aliases`, which ended with %d.\n' "$ended"
  } >"$page"
  return $ended
}

# Two GPUs. NVLink multicast is switched off by name before anything is started that might use it;
# vmm-gpu-test looks again before it loads NCCL. Each part has its own process and time limit.
pair() {
  export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
  local name
  for name in NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1; do
    [[ $(printenv "${name%%=*}") == "${name#*=}" ]] || { say "pair: $name is not set"; return 2; }
  done
  local page=$results/pair-$slug.md code=0 ended=0 text=$scratch/pair.txt nccl
  local words=(pair --kills "${VMM_KILL_ROUNDS:-500}")
  nccl=$(find_nccl)
  [[ -z $nccl ]] || words+=(--nccl "$nccl")
  "$gpu_test" "${words[@]}" >"$text" 2>>"$log" || ended=$?
  cat "$text"
  [[ $ended -ne 77 ]] || { say 'pair: there are not two devices'; return 77; }
  [[ $ended -eq 0 ]] || code=1
  {
    begin_page 'Two GPUs of one host'
    sed 's/^### /## /' "$text"
    printf '\nCommand: `vmm-gpu-test %s`, which ended with %d.\n' "${words[*]:0:3}" "$ended"
  } >"$page"
  return $code
}

# suites FOLDER OPTION...: the libraries' own tests. The last word of a command.
suites() { python3 -B "$root/gpu_tests/suites/run.py" "${suite_words[@]}" --out "$results/suites"; }

# one_variable PART...: the last word of a command, too.
one_variable() {
  local wheel page=$scratch/one_variable.md code=0
  wheel=$(find "$programs" "$root/build/wheel" -name "libvmm-*_$(uname -m).whl" 2>/dev/null |
    head -n 1)
  [[ -n $wheel ]] || { printf 'there is no wheel: ./run wheel .gpu makes it\n'; return 2; }
  python3 -B "$root/gpu_tests/python/one_variable.py" "$wheel" "${part_words[@]}" |
    tee "$scratch/shown.txt"
  [[ ${PIPESTATUS[0]} -eq 0 ]] || code=1
  {
    begin_page 'One variable'
    sed -n '/^## /,$p' "$scratch/shown.txt"
    printf '\nCommand: `gpu_tests/gpu.sh one_variable %s`.\n' "${part_words[*]}"
  } >"$page"
  add_proof "$page"
  return $code
}

# market PART...: the last word of a command, too.
market() {
  local parts=() each code=0 page=$scratch/market.md
  for each in "${part_words[@]}"; do [[ $each == programs ]] || parts+=("$each"); done
  if [[ ${#part_words[@]} -eq 0 || ${#parts[@]} -gt 0 ]]; then
    "$programs/vmm-gpu-market" "$programs/vmm-owner" "${parts[@]}" | tee "$scratch/market.txt"
    [[ ${PIPESTATUS[0]} -eq 0 ]] || code=1
    {
      begin_page 'The market'
      printf '%s' "$lines"
      cat "$scratch/market.txt"
      printf '%s\nCommand: `gpu_tests/gpu.sh market`.\n' "$lines"
    } >"$page"
    add_proof "$page"
  fi
  [[ ${#part_words[@]} -eq 0 || " ${part_words[*]} " == *' programs '* ]] || return $code
  part_words=(market)
  one_variable || code=1
  return $code
}

# ---- running ------------------------------------------------------------------------------------

all_words=(check fidelity random conformance resize vector leak oom sanitizer demo replay growable
           special suspend pool sharing rounds streams watched
           overflow graph everything predict c preload)

other_words='market one_variable pair prove suites'

declare -a summary=() suite_words=() part_words=() pool_paths=()
failures=0

run_word() {
  local word=$1 begin=$SECONDS code=0
  printf '\n== %s\n' "$word"
  "$word" 2>&1 | tee -a "$log"
  code=${PIPESTATUS[0]}
  [[ $code -eq 0 ]] || failures=$((failures + 1))
  summary+=("$(printf '%-12s %-4s %4d s' "$word" "$([[ $code -eq 0 ]] && echo ok || echo "$code")" \
    $((SECONDS - begin)))")
}

# The tables of the pages as files for docs/results/data; bench_pool writes its own.
write_tables() {
  local page
  for page in "$results"/*-"$slug".md; do
    [[ -e $page && $page != */pool-"$slug".md ]] || continue
    python3 -B "$root/benchmarks/results.py" --out "$results/data" "$page" >>"$log" 2>&1 ||
      say "gpu: the tables of $page are not in a file: see $log"
  done
}

main() {
  if [[ ${1:-} == suites ]]; then
    [[ -d ${2:-} ]] || { say 'gpu: suites takes a folder with the tests'; exit 2; }
    suite_words=("${@:2}")
    set -- suites
  fi
  if [[ ${1:-} == one_variable || ${1:-} == market ]]; then
    part_words=("${@:2}")
    set -- "$1"
  fi
  if [[ ${1:-} == pool && -e $root/traces/${2:-}.trace.gz ]]; then
    mapfile -t pool_paths < <(trace_names=() && trace_paths "${@:2}")
    set -- pool
  fi
  local words=("$@") word
  case ${1:-} in help | --help | -h) help; exit ;; esac
  for word in "$@"; do
    [[ " build all $other_words ${all_words[*]} " == *" $word "* ]] ||
      { say "gpu: unknown command '$word'"; help >&2; exit 2; }
  done
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
    [[ " $other_words ${all_words[*]} " == *" $word "* ]] || { help >&2; exit 2; }
  done
  VMM_DRIVER_VERSION=$(find_driver_version)
  export VMM_DRIVER_VERSION
  "$programs/vmm-fidelity" about >/dev/null || exit 2
  mkdir -p "$results/data"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  slug=$(device_slug)
  machine=$("$programs/vmm-fidelity" about | sed -n 's/^device  *//p; s/^driver  */driver /p' |
    paste -sd, | sed 's/,/, /')
  machine+=", commit $(cat "$programs/commit" 2>/dev/null || echo unknown)"
  for word in "${words[@]}"; do run_word "$word"; done
  write_tables
  printf '\n== %s\n' "$machine"
  printf '%s\n' "${summary[@]}"
  printf 'results in %s\n' "$results"
  [[ $failures -eq 0 ]]
}

main "$@"
