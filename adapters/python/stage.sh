#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# stage.sh BUILD OUT: the wheel of the libraries built in BUILD, in the folder OUT, for whatever
# processor they are. A wheel has no links, so libvmm.so.1 is the file itself and libvmm.so a
# linker's script that names it.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
build=$(readlink -f "$1")
mkdir -p "$2"
out=$(readlink -f "$2")
python=${VMM_WHEEL_PYTHON:-python3}
strip='strip'  # the toolchain's for another processor
! grep -q '^CMAKE_TOOLCHAIN_FILE:.*=.' "$build/CMakeCache.txt" ||
  strip=$(sed -n 's/^CMAKE_STRIP:FILEPATH=//p' "$build/CMakeCache.txt")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage

cmake --install "$build" --component c --strip --prefix "$stage" >/dev/null
lib=$stage/lib
# A distribution's own folder of libraries does not exist in a wheel.
[[ -e $lib/libvmm.so ]] || { echo "stage.sh: no libvmm.so in $lib" >&2; exit 1; }
real=$(basename "$(readlink -f "$lib/libvmm.so")")
rm "$lib/libvmm.so" "$lib/libvmm.so.1"
mv "$lib/$real" "$lib/libvmm.so.1"
echo 'INPUT(libvmm.so.1)' >"$lib/libvmm.so"
sed -i "s/${real//./\\.}/libvmm.so.1/g" "$lib"/cmake/vmm_c/*.cmake
if [[ -e $build/preload/libvmm_preload.so ]]; then
  cp "$build/preload/libvmm_preload.so" "$lib/"
  "$strip" --strip-unneeded "$lib/libvmm_preload.so"
fi
if [[ -d $build/torch_classes ]]; then  # of `./run check torch --classes`
  mkdir "$lib/torch"
  cp "$build"/torch_classes/2.*.{so,headers} "$lib/torch/"
fi
for program in vmm-fit owner/vmm-owner; do
  [[ -e $build/tools/$program ]] || continue
  install -D -s --strip-program="$strip" "$build/tools/$program" "$stage/bin/${program##*/}"
done

mkdir "$work/source"
cp -R "$here"/{pyproject.toml,hatch_build.py,README.md,src} "$work/source/"
cp "$here/../../LICENSE" "$work/source/"
cp "$here/../../CMakeLists.txt" "$work/"  # has the version
find "$work/source" -name __pycache__ -prune -exec rm -rf {} +
cd "$work/source"
VMM_WHEEL_STAGE=$stage SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1577836800} \
  "$python" -B -m hatchling build -t wheel -d "$work/made" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
for wheel in "$work"/made/*.whl; do
  install -m 644 "$wheel" "$out/"
  printf '%s\n' "$out/${wheel##*/}"
done
