# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""python -m libvmm doctor [--json] | run [--mode MODE] SCRIPT [ARGUMENTS] | version"""

import sys

import libvmm

from . import _doctor, _run


def main() -> int:
    word, arguments = (sys.argv[1:2] or ["help"])[0], sys.argv[2:]
    if word == "doctor":
        return _doctor.main(arguments)
    if word == "run":
        return _run.main(arguments)
    if word == "version":
        print(libvmm.__version__)
        return 0
    print(f"usage: {__doc__}", file=sys.stdout if word in ("help", "-h", "--help") else sys.stderr)
    return 0 if word in ("help", "-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())
