# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Puts what was staged for the wheel into it, and names the oldest C library that it runs with.

VMM_WHEEL_STAGE is a folder with lib/ and include/ as `cmake --install` made them. The tag says what
the libraries need: their processor, and the newest GLIBC version among their symbols.
"""

import os
import re
import struct

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MINOR_LEAST = 28  # below it, tags have other rules; nothing older is needed
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF file


def needed_versions(image):
    """The versions that a 64-bit ELF file needs of others: those in DT_VERNEED, and not those that
    it defines."""
    if image[:6] != b"\x7fELF\x02\x01":
        return set()
    (sections,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    found = set()
    for number in range(count):
        head = struct.unpack_from("<IIQQQQIIQQ", image, sections + number * size)
        if head[1] != 0x6FFFFFFE:  # SHT_GNU_verneed
            continue
        names = struct.unpack_from("<IIQQQQIIQQ", image, sections + head[6] * size)[4]
        at, of = head[4], head[7]
        for _ in range(of):
            _, auxiliary, _, first, following = struct.unpack_from("<HHIII", image, at)
            entry = at + first
            for _ in range(auxiliary):
                _, _, _, name, further = struct.unpack_from("<IHHII", image, entry)
                text = image[names + name : image.index(b"\0", names + name)]
                found.add(text.decode())
                entry += further
            at += following
    return found


def glibc_needed(image):
    """The minor of the newest version GLIBC_2.x that the file needs."""
    versions = needed_versions(image)
    minors = [re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", each) for each in versions]
    return max((int(each[1]) for each in minors if each), default=0)


def machine_of(image):
    """The processor of a 64-bit ELF file; None for another file."""
    if image[:6] != b"\x7fELF\x02\x01":
        return None
    (number,) = struct.unpack_from("<H", image, 18)
    return MACHINES.get(number, f"machine {number}")


class Hook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        if version == "editable":
            return
        stage = os.environ.get("VMM_WHEEL_STAGE")
        if not stage:
            raise SystemExit("libvmm: the C library is built by CMake: ./run wheel makes the wheel")
        minor, machines = MINOR_LEAST, set()
        for folder, _, files in os.walk(stage):
            for name in sorted(files):
                path = os.path.join(folder, name)
                build_data["force_include"][path] = os.path.join(
                    "libvmm", os.path.relpath(path, stage)
                )
                with open(path, "rb") as file:
                    image = file.read()
                machines.add(machine_of(image))
                if ".so" in name:
                    minor = max(minor, glibc_needed(image))
        machines.discard(None)
        if len(machines) != 1 or not machines <= set(MACHINES.values()):
            raise SystemExit(f"libvmm: libraries of one processor, not {sorted(machines)}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{minor}_{machines.pop()}"
