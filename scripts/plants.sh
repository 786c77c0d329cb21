#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# plants.sh [NAME...]: puts each bug of tests/plants into a copy of the sources, builds the one test
# that its header names, and expects that test to fail within 60 seconds, or LIMIT_S where that is
# set, for a machine that does other work. A plant that does not apply, does not compile or is not
# found fails the run; so does a test that fails without a plant.
# What each test said is kept in build/plants/PLANT.log.
# plants.sh --check: only sees that there are enough plants, that each has a whole header and that
# each still applies. No build.
#
# Header of a plant, a line each: What, Peer (the kind of bug, and an allocator that had it where
# one is known), Test, Filter (GoogleTest's), Flavour (debug; address, which also looks at what
# pointers are subtracted; or thread).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
plants=$root/tests/plants
work=$root/build/plants
src=$work/src
plants_min=25
limit_s=${LIMIT_S:-60}

say() { printf '%s\n' "$*" >&2; }
die() { say "plants: $1"; exit "${2:-1}"; }
field() { sed -n "s/^$1: *//p;/^--- /q" "$2"; }

sources() {
  if [[ -e $root/.git ]]; then
    git -C "$root" ls-files -co --exclude-standard
  else
    (cd "$root" && find . -name build -prune -o -type f -print | sed 's|^\./||')
  fi | grep -vE '^(traces|fuzz/corpus|build)/' || true
}

# Copies what differs, so that ninja builds little, and deletes what is gone.
copy_sources() {
  local list=$work/sources file
  mkdir -p "$src"
  sources | sort -u >"$list"
  while IFS= read -r file; do
    [[ -f $root/$file ]] || continue
    cmp -s "$root/$file" "$src/$file" && continue
    mkdir -p "$src/$(dirname "$file")"
    cp "$root/$file" "$src/$file"
  done <"$list"
  (cd "$src" && find . -type f | sed 's|^\./||' | sort) | comm -13 "$list" - |
    while IFS= read -r file; do rm -f "$src/$file"; done
}

configure() {
  local sanitize='' level=3 extra=''
  case $1 in
    debug) ;;
    address)
      sanitize=address,undefined
      extra='-mllvm -asan-detect-invalid-pointer-sub' ;;
    thread) sanitize=thread level=2 ;;
    *) die "there is no flavour '$1': debug, address or thread" ;;
  esac
  [[ -e $work/$1/build.ninja ]] && return
  # Warnings are off: a plant is no good code. Tests of threads need the schedule points.
  cmake -S "$src" -B "$work/$1" -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_CXX_FLAGS="-w $extra" \
    -DVMM_BUILD_TOOLS=OFF -DVMM_INSTALL=OFF -DVMM_CHECK_LEVEL=$level \
    -DVMM_SCHEDULE_POINTS=ON -DVMM_SANITIZE="$sanitize" >"$work/$1.configure.log" 2>&1 ||
    { tail -20 "$work/$1.configure.log" >&2; die "cmake could not configure the copy"; }
}

# build FLAVOUR TEST: false, with a log in $work/build.log, when it does not build.
build() { ninja -C "$work/$1" ${JOBS:+-j$JOBS} "$2" >"$work/build.log" 2>&1; }

# run_test FLAVOUR TEST FILTER: the test's exit status; 124 when it ran out of time.
run_test() {
  local program
  program=$(find "$work/$1/tests" -name "$2" -type f -perm -u+x | head -1)
  [[ -n $program ]] || die "there is no test program $2"
  ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_invalid_pointer_pairs=2 \
    timeout "$limit_s" "$program" --gtest_brief=1 --gtest_fail_fast \
    --gtest_filter="$3" >"$work/test.log" 2>&1
}

apply() { patch -p1 --batch --forward --fuzz=0 "$@"; }

names() {
  local each
  if [[ $# -eq 0 ]]; then
    for each in "$plants"/[0-9]*.patch; do basename "$each" .patch; done
    return
  fi
  local wanted
  for wanted in "$@"; do
    compgen -G "$plants/*$wanted*.patch" >/dev/null || die "there is no plant '$wanted'" 2
    for each in "$plants/"*"$wanted"*.patch; do basename "$each" .patch; done
  done
}

check() {
  local each name count=0 bad=0
  for each in "$plants"/[0-9]*.patch; do
    count=$((count + 1))
    for name in What Peer Test Filter Flavour; do
      [[ -n $(field $name "$each") ]] && continue
      say "$(basename "$each"): the header has no $name"
      bad=1
    done
    (cd "$root" && apply --dry-run --silent <"$each") >&2 && continue
    say "$(basename "$each"): does not apply any more"
    bad=1
  done
  [[ $count -ge $plants_min ]] || die "$count plants; there are to be $plants_min"
  [[ $bad -eq 0 ]] || exit 1
  echo "$count plants, each applies"
}

# Everything that this run needs is built and passes without a plant.
see_clean() {
  local name test filter flavour targets
  for flavour in debug address thread; do
    targets=$(for name in "$@"; do
      [[ $(field Flavour "$plants/$name.patch") != "$flavour" ]] || field Test "$plants/$name.patch"
    done | sort -u)
    [[ -n $targets ]] || continue
    configure "$flavour"
    # shellcheck disable=SC2086
    ninja -C "$work/$flavour" ${JOBS:+-j$JOBS} $targets >&2 || die "the copy does not build"
  done
  for name in "$@"; do
    printf '%s|%s|%s\n' "$(field Flavour "$plants/$name.patch")" \
      "$(field Test "$plants/$name.patch")" "$(field Filter "$plants/$name.patch")"
  done | sort -u >"$work/clean"
  while IFS='|' read -r flavour test filter; do
    run_test "$flavour" "$test" "$filter" && continue
    tail -20 "$work/test.log" >&2
    die "$test --gtest_filter=$filter ($flavour) fails or takes $limit_s s without a plant"
  done <"$work/clean"
}

restore() {
  local file
  while IFS= read -r file; do cp "$root/$file" "$src/$file"; done < <(sed -n 's|^+++ b/||p' "$1")
}

# One plant: sets `outcome`, `seconds` of the caller.
try_plant() {
  local patch=$plants/$1.patch flavour test start
  flavour=$(field Flavour "$patch") test=$(field Test "$patch") seconds=-
  if ! (cd "$src" && apply --silent <"$patch") >&2; then outcome='does not apply'; return; fi
  if build "$flavour" "$test"; then
    start=$(date +%s)
    local rc=0
    run_test "$flavour" "$test" "$(field Filter "$patch")" || rc=$?
    seconds=$(($(date +%s) - start))
    cp "$work/test.log" "$work/$1.log"
    case $rc in
      0) outcome='NOT FOUND' ;;
      124) outcome='NOT FOUND in time' ;;
      *) outcome=found ;;
    esac
  else
    tail -20 "$work/build.log" >&2
    outcome='does not build'
  fi
  restore "$patch"
}

main() {
  [[ ${1:-} != --check ]] || { check; return; }
  local chosen name outcome seconds missed=0
  mapfile -t chosen < <(names "$@")
  [[ ${#chosen[@]} -gt 0 ]] || exit 2
  copy_sources
  see_clean "${chosen[@]}"
  printf '%-32s %-24s %-18s %3s  %s\n' plant 'test' outcome s what
  for name in "${chosen[@]}"; do
    try_plant "$name"
    [[ $outcome == found ]] || missed=$((missed + 1))
    printf '%-32s %-24s %-18s %3s  %s\n' "$name" "$(field Test "$plants/$name.patch")" \
      "$outcome" "$seconds" "$(field What "$plants/$name.patch")"
  done
  echo "${#chosen[@]} plants, $((${#chosen[@]} - missed)) found, $missed not"
  [[ $missed -eq 0 ]]
}

main "$@"
