#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# sysroot.sh ARCHITECTURE FOLDER PACKAGE...: unpacks this Debian's packages of another architecture
# (arm64) into FOLDER, with all that they depend on: what a cross build compiles and links against
# (cmake/AArch64.cmake). The system's own packages and its apt stay as they are; root is not needed.
set -euo pipefail
die() { printf 'sysroot: %s\n' "$1" >&2; exit "${2:-1}"; }
[[ $# -ge 3 && $1 =~ ^[a-z0-9]+$ ]] ||
  die 'usage: sysroot.sh ARCHITECTURE FOLDER PACKAGE...' 2
arch=$1
mkdir -p "$2"
root=$(readlink -f "$2")
[[ $(. /etc/os-release && printf '%s' "$ID") == debian ]] ||
  die "packages of another architecture come from the same archive on Debian only"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,archives/partial}
touch "$work/status"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
apt-get indextargets --format "deb [signed-by=$keyring] \$(REPO_URI) \$(CODENAME) main" \
  'Created-By: Packages' 'Component: main' 'Origin: Debian' >"$work/sources.list"
[[ -s $work/sources.list ]] || die 'apt has no list of packages: apt-get update'

# An apt of its own, to which nothing is installed.
apt() {
  apt-get -q -o APT::Architecture="$arch" -o APT::Architectures::="$arch" \
    -o Dir::State="$work" -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" \
    -o Dir::Cache="$work" -o Dir::Cache::archives="$work/archives" \
    -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
    -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" "$@" </dev/null >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; die "apt-get ${1} failed"; }
}
apt update
apt install --yes --download-only --no-install-recommends "${@:3}"

# As on an installed system, /lib is a part of /usr.
mkdir -p "$root"/usr/{bin,lib,sbin}
for each in bin lib sbin; do
  [[ -e $root/$each ]] || ln -s "usr/$each" "$root/$each"
done
for each in "$work"/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$each" |
    tar -x -C "$root" --keep-directory-symlink --no-same-owner
done
printf '%s packages in %s\n' "$(find "$work/archives" -name '*.deb' | wc -l)" "$root"
