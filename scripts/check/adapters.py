#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: CuPy, Numba, RMM, torch_memory_saver and vLLM themselves take libvmm's adapters
"""Method: installs the libraries from the package index below build/check, and runs
python/tests/libraries with them over the libvmm.so of build/release (LIBVMM names another). No GPU
is needed. Arguments go to pytest."""

from __future__ import annotations

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _packages import (FOLDER, ROOT, Unavailable, find_wheel, pip, python,  # noqa: E402
                       read_members, skip)

PACKAGES = ("numpy", "pytest", "cupy-cuda13x", "numba-cuda", "rmm-cu13")
# Files of libraries that need PyTorch: read without it.
SOURCES = (("vllm", ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64"),
            "vllm/device_allocator/sleep_mode_backend.py"),
           ("torch_memory_saver", ("manylinux2014_x86_64",), "torch_memory_saver/entrypoint.py"))


def library() -> str:
    named = os.environ.get("LIBVMM")
    found = named or os.path.join(ROOT, "build", "release", "c", "libvmm.so.1")
    if not os.path.exists(found):
        skip(f"{found} is not built: ./run wheel builds it, and LIBVMM names another one")
    return found


def get_sources(into: str) -> list[str]:
    """Unpacks the single files. Answers what could not be had."""
    missing = []
    for name, platforms, path in SOURCES:
        try:
            version, url = find_wheel(name, *platforms)
            read_members(url, (path,), into)
            print(f"{name} {version}: {path}", flush=True)
        except Unavailable as why:
            missing.append(f"{name}: {why}")
    return missing


def install() -> list[str]:
    """Installs what can be had of PACKAGES. Answers what could not."""
    missing = []
    for each in PACKAGES:
        try:
            pip("install", "--quiet", "--only-binary=:all:", each, environment="adapters")
        except Unavailable as why:
            missing.append(f"{each}: {why}")
    if any(line.startswith(("numpy", "pytest")) for line in missing):
        raise Unavailable("; ".join(missing))
    return missing


def main() -> int:
    found = library()
    sources = os.path.join(FOLDER, "sources")
    try:
        missing = install() + get_sources(sources)
        print(pip("list", "--format=freeze", environment="adapters"), flush=True)
    except Unavailable as why:
        skip(str(why))
    environment = {**os.environ, "LIBVMM": found, "LIBVMM_CHECK_SOURCES": sources,
                   "PYTHONPATH": os.path.join(ROOT, "python", "src"),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python("adapters"), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:],
         os.path.join(ROOT, "python", "tests", "libraries")], env=environment)
    for line in missing:
        print(f"not checked: {line}")
    if done.returncode == 0 and len(missing) >= len(PACKAGES) - 2 + len(SOURCES):
        skip("none of the libraries could be had")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
