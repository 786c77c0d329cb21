# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: CuPy, cuda.core, Numba, RMM, torch_memory_saver and vLLM themselves take libvmm's adapters
"""Method: installs the libraries from the package index below build/check, and runs
adapters/python/tests/libraries with them over the libvmm.so of build/release (LIBVMM names
another). No GPU is needed. Arguments go to pytest."""

from __future__ import annotations

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _packages import KEPT, ROOT, pip, skip
from _wheels import attempt, find_wheel, python, read_members

PACKAGES = "numpy pytest cuda-core cupy-cuda13x numba-cuda rmm-cu13 warp-lang".split()
# Files of libraries that need PyTorch: read without it.
SOURCES = (
    (
        "vllm",
        ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64"),
        "vllm/device_allocator/sleep_mode_backend.py",
    ),
    ("torch_memory_saver", ("manylinux2014_x86_64",), "torch_memory_saver/entrypoint.py"),
)


def library() -> str:
    named = os.environ.get("LIBVMM")
    found = named or os.path.join(ROOT, "build", "release", "c", "libvmm.so.1")
    if not os.path.exists(found):
        skip(f"{found} is not built: ./run wheel builds it, and LIBVMM names another one")
    return found


def get_source(name: str, platforms: tuple[str, ...], path: str, into: str) -> None:
    version, url = find_wheel(name, *platforms)
    read_members(url, (path,), into)
    print(f"{name} {version}: {path}", flush=True)


def install(name: str) -> None:
    pip("install", "--quiet", "--only-binary=:all:", name, python=python("adapters"))


def main() -> int:
    found = library()
    sources = os.path.join(KEPT, "sources")
    missing = [attempt(each, install, each) for each in PACKAGES]
    missing += [attempt(each[0], get_source, *each, sources) for each in SOURCES]
    print(pip("list", "--format=freeze", python=python("adapters")), flush=True)
    environment = {
        **os.environ,
        "LIBVMM": found,
        "LIBVMM_CHECK_SOURCES": sources,
        "PYTHONPATH": os.path.join(ROOT, "adapters", "python", "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [
            *(python("adapters"), *"-m pytest -q -rs -p no:cacheprovider".split(), *sys.argv[1:]),
            os.path.join(ROOT, "adapters", "python", "tests", "libraries"),
        ],
        env=environment,
    )
    for line in filter(None, missing):
        print(f"not checked: {line}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
