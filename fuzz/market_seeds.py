# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_market to the folder given: programs of each kind from a fixed random
number, and whole messages of each kind."""

import pathlib
import random
import struct
import sys

MODES = {"peers": 1, "false-owner": 2, "owner": 3, "tenant": 4}


def message(kind: int, handles: int) -> bytes:
    """As modules/market/wire.cpp lays it out."""
    head = struct.pack("<HHBBBx", 1, kind, 0, 0, 0)
    head += struct.pack("<QQQQQQQQQ", 9, 1, 1 << 21, 1 << 21, 10**9, 0, 0, 0, 0)
    head += struct.pack("<II", handles, 0)
    table = b"".join(struct.pack("<QII", i + 1, 1, 1) for i in range(handles))
    return (head.ljust(256, b"\0") + table).ljust(4096, b"\0")


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(20)
    for name, mode in MODES.items():
        for i in range(6):
            # Small numbers are honest choices: most bytes are.
            program = [draw.choice((draw.randrange(256), draw.randrange(64))) for _ in range(300)]
            (folder / f"seed-{name}-{i}").write_bytes(bytes([mode, *program]))
    for kind in range(1, 21):
        handles = 3 if kind in (2, 5, 7, 11, 15) else 0
        (folder / f"seed-message-{kind}").write_bytes(b"\0" + message(kind, handles))


main()
