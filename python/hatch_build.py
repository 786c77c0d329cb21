# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Puts what was staged for the wheel into it, and names the oldest C library that it runs with.

VMM_WHEEL_STAGE is a folder with lib/ and include/ as `cmake --install` made them. The tag says what
the libraries need: the newest GLIBC version among their symbols.
"""
import os
import platform
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def glibc_needed(path):
    """The minor of the newest version GLIBC_2.x that the file names."""
    with open(path, "rb") as file:
        return max((int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", file.read())),
                   default=17)


class Hook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        if version == "editable":
            return
        stage = os.environ.get("VMM_WHEEL_STAGE")
        if not stage:
            raise SystemExit("libvmm: the C library is built by CMake: ./run wheel makes the wheel")
        minor = 17
        for folder, _, files in os.walk(stage):
            for name in sorted(files):
                path = os.path.join(folder, name)
                build_data["force_include"][path] = os.path.join(
                    "libvmm", os.path.relpath(path, stage))
                if ".so" in name:
                    minor = max(minor, glibc_needed(path))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{minor}_{platform.machine()}"
