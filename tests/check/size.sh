#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: no measure of the tree (tests/tidiness/sizes.txt) gets worse; --update takes them down
set -euo pipefail
[[ $# -eq 0 || $* == --update ]] || { echo "usage: ./run check size [--update]" >&2; exit 2; }
program=build/dev/tests/tidiness/tidiness_test
[[ -x $program ]] || { echo "build/dev is not built"; exit 77; }
exec "$program" --gtest_filter=Tree.OnlyGetsBetter --gtest_brief=1 "$@"
