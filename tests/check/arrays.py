# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: arrays of the newest NumPy over blocks, and how they end, under each Python of this machine
"""Method: installs NumPy and pytest from the package index below build/packages for each python3.N
that is found, from 3.10 on, and runs the tests of DLPack, of growable ranges and of lifetimes with
them, and the fuzzer of lifetimes for --steps (20,000), over the libvmm.so of build/release (LIBVMM
names another). No GPU is needed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _packages import KEPT, ROOT, pip, skip

TESTS = os.path.join(ROOT, "adapters", "python", "tests")
FILES = (
    "test_copies.py",
    "test_dlpack.py",
    "test_growable.py",
    "test_lifetimes.py",
    "test_package.py",
)
NEWEST = 20


def interpreters() -> list[str]:
    """One for each version, and those without the global lock."""
    found = []
    for minor in range(10, NEWEST):
        for name in (f"python3.{minor}", f"python3.{minor}t"):
            path = shutil.which(name)
            works = (
                path
                and subprocess.run(
                    [path, "-c", "import venv, ensurepip"], capture_output=True, check=False
                ).returncode
                == 0
            )
            if path and works:
                found.append(path)
    return found


def environment_of(interpreter: str) -> str:
    """A virtual environment with NumPy and pytest."""
    folder = os.path.join(KEPT, "arrays-" + os.path.basename(interpreter))
    made = os.path.join(folder, "bin", "python")
    if not os.path.exists(made):
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    pip("install", "--quiet", "--only-binary=:all:", "numpy", "pytest", python=made)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=20000)
    options = parser.parse_args()
    library = os.environ.get("LIBVMM", os.path.join(ROOT, "build", "release", "c", "libvmm.so.1"))
    if not os.path.exists(library):
        skip(f"{library} is not built: ./run wheel builds it, and LIBVMM names another one")
    known = interpreters()
    if not known:
        skip("no python3.10 or newer with venv and ensurepip is on PATH (python3-venv)")
    environment = {
        **os.environ,
        "LIBVMM": library,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.path.join(ROOT, "adapters", "python", "src"),
    }
    failed = []
    for each in known:
        made = environment_of(each)
        versions = subprocess.run(
            [
                made,
                "-c",
                "import numpy, sys; print(sys.version.split()[0], 'NumPy', numpy.__version__)",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        print(f"== Python {versions}", flush=True)
        runs = (
            [
                made,
                "-m",
                "pytest",
                "-q",
                "-rs",
                "-p",
                "no:cacheprovider",
                *(os.path.join(TESTS, name) for name in FILES),
            ],
            [
                made,
                "-W",
                "ignore",
                os.path.join(TESTS, "fuzz_lifetimes.py"),
                "--steps",
                str(options.steps),
            ],
        )
        failed += [
            versions.strip()
            for run in runs
            if subprocess.run(run, env=environment, check=False).returncode != 0
        ]
    if failed:
        print(f"failed under Python {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
