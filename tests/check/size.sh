#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: no measure of the tree (tests/tidiness/sizes.txt) gets worse; --update takes them down
set -euo pipefail
[[ $# -eq 0 || $* == --update ]] || { echo "usage: ./run check size [--update]" >&2; exit 2; }
exec python3 -B tests/tidiness/tidiness_test.py "${1:-Tree.test_only_gets_better}"
