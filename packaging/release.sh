#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# release.sh check [TAG]     that the version is the same wherever it stands, and the tag's
# release.sh build FOLDER    wheels, Debian packages, pages and their checksums, into FOLDER
# release.sh try FOLDER ROOT installs FOLDER's packages into a bare Debian in ROOT, and uses them
#
# CONTRIBUTING.md describes a release. Nothing is published here.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
die() { printf 'release: %s\n' "$1" >&2; exit "${2:-1}"; }

version() { sed -n 's/^project(vmm VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt"; }

# same WHAT VALUE: ends with an error where the value is not the version.
same() { [[ $2 == "$(version)" ]] || die "$1 says '$2', CMakeLists.txt '$(version)'"; }

# The headings of the changelog that name a version.
released() { sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' "$root/CHANGELOG.md"; }

check() {
  local tag=${1:-} header=$root/adapters/c/include/vmm.h part number=''
  [[ $(version) =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "CMakeLists.txt has no version"
  for part in MAJOR MINOR PATCH; do
    number+=.$(sed -n "s/^#define VMM_VERSION_$part \([0-9]*\).*/\1/p" "$header")
  done
  same adapters/c/include/vmm.h "${number#.}"
  same packaging/ports/vmm/vcpkg.json \
    "$(sed -n 's/.*"version": "\([^"]*\)".*/\1/p' "$root/packaging/ports/vmm/vcpkg.json")"
  ! grep -Eq '^version = ' "$root/adapters/python/pyproject.toml" ||
    die "adapters/python/pyproject.toml has a version of its own; it takes that of CMakeLists.txt"
  grep -q '^## Unreleased' "$root/CHANGELOG.md" || [[ -n $(released) ]] ||
    die "CHANGELOG.md has no heading"
  [[ -n $tag ]] || return 0
  [[ $tag =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] ||
    die "'$tag' is no tag of a release: vMAJOR.MINOR.PATCH" 2
  same "the tag" "${tag#v}"
  released | grep -Fx -- "${tag#v}" >/dev/null || die "CHANGELOG.md has no heading for ${tag#v}"
  local at
  at=$(git -C "$root" rev-parse --verify -q "$tag^{commit}") || die "there is no tag $tag here"
  [[ $(git -C "$root" rev-parse HEAD) == "$at" ]] ||
    die "this checkout is not at $tag"
  [[ -z $(git -C "$root" status --porcelain) ]] || die "this checkout has changes"
}

build() {
  [[ $# -eq 1 ]] || die "usage: release.sh build FOLDER" 2
  local out tag work
  out=$(mkdir -p "$1" && readlink -f "$1")
  tag=$(git -C "$root" describe --exact-match --match 'v*' 2>/dev/null) || tag=''
  check "$tag"
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  wheels "$work/made"
  ninja -C "$root/build/release" vmm vmm_c vmm_preload vmm-fit vmm-replay vmm-trace \
    vmm-history vmm-top vmm-owner >&2
  cpack --config "$root/build/release/CPackConfig.cmake" -G DEB -B "$work/cpack" >&2
  mv "$work"/cpack/*.deb "$work/made/"
  "$root/run" docs "$work/docs" >&2
  tar -C "$work/docs" -czf "$work/made/vmm-docs.tar.gz" html
  (cd "$work/made" && sha256sum ./*.deb ./*.whl ./*.tar.gz >SHA256SUMS)
  put "$work/made" "$out"
}

# wheels FOLDER: of this machine, and on Debian of AArch64.
wheels() {
  local arch
  for arch in $(printf '%s\n' "$(uname -m)" aarch64 | sort -u); do
    [[ $arch == "$(uname -m)" || $(. /etc/os-release && printf '%s' "${ID:-}") == debian ]] ||
      continue
    "$root/run" wheel --arch "$arch" "$1"
  done
}

# put MADE OUT: replaces a release's files in OUT by those of MADE. The files of an earlier release
# are those that its SHA256SUMS names with their sums; others stay, and are not replaced.
put() {
  local sum name earlier=()
  if [[ -f $2/SHA256SUMS ]]; then
    while read -r sum name; do
      [[ $name == ./* && ${name#./} != */* && -f $2/$name ]] || continue
      [[ $(sha256sum <"$2/$name") != "$sum "* ]] || earlier+=("${name#./}")
    done <"$2/SHA256SUMS"
    [[ ${#earlier[@]} -eq 0 ]] || earlier+=(SHA256SUMS)
  fi
  for name in "$1"/*; do
    name=${name##*/}
    [[ ! -e $2/$name || " ${earlier[*]} " == *" $name "* ]] ||
      die "$2/$name is not of an earlier release: remove it, or name another folder"
  done
  for name in ${earlier[@]+"${earlier[@]}"}; do rm "$2/$name"; done
  mv "$1"/* "$2/"
  (cd "$2" && ls)
}

# What is done inside the bare system, where nothing but the packages' own needs is installed.
inside='set -e
apt-get install -yq --no-install-recommends /packages/*.deb gcc libc6-dev pkg-config >/dev/null
cc -std=c11 /packages/first.c -o /tmp/first $(pkg-config --cflags --libs vmm) && /tmp/first
python3 -c "import libvmm
with libvmm.Driver(\"host\") as driver, libvmm.Pool(driver) as pool:
    print(pool.allocate(3 << 20), libvmm.__version__)"
vmm-trace pictures 1 >/tmp/pictures.trace
vmm-replay /tmp/pictures.trace --backend fake --history /tmp/pictures.history
vmm-history summary /tmp/pictures.history
vmm-fit /tmp/pictures.trace --device H100-80
vmm-top --once
VMM_MODE=monitor LD_PRELOAD=libvmm_preload.so true
vmm-top --once
printf "import os; print(os.environ[\"LD_PRELOAD\"])\n" >/tmp/preloaded.py
python3 -m libvmm run --mode monitor /tmp/preloaded.py
apt-get remove -yq libvmm1 >/dev/null
! test -e /usr/include/vmm.h
echo "release: the packages were installed, used and removed"'

try() {
  [[ $# -eq 2 ]] || die "usage: release.sh try FOLDER ROOT" 2
  [[ $(id -u) -eq 0 ]] || die "a bare system needs root: debootstrap and chroot"
  command -v debootstrap >/dev/null || die "there is no debootstrap (the package of that name)"
  local suite mirror bare=$2
  suite=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' \
    "Codename: $suite" | sed -n 1p)
  [[ -e $bare/etc/debian_version ]] || debootstrap --variant=minbase "$suite" "$bare" "$mirror" >&2
  mkdir -p "$bare/packages"
  cp "$1"/*.deb "$root/tests/c/samples/first.c" "$bare/packages/"
  cp /etc/apt/apt.conf.d/*proxy* "$bare/etc/apt/apt.conf.d/" 2>/dev/null || true
  chroot "$bare" apt-get update -q >/dev/null
  # /proc in a mount namespace of its own: the host driver reads the size of memory there.
  DEBIAN_FRONTEND=noninteractive unshare --mount bash -c \
    'mount -t proc proc "$0/proc" && exec chroot "$0" bash -c "$1"' "$bare" "$inside"
}

case ${1:-} in
  check | build | try) "$@" ;;
  -h | --help | help) sed -n '5,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" ;;
  *) die "usage: release.sh check [TAG] | build FOLDER | try FOLDER ROOT" 2 ;;
esac
