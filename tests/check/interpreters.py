# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: the Python package passes its tests with each interpreter that is here, from 3.10 on
"""Method: python3.10 and later of PATH, of pyenv, and those that VMM_PYTHONS names (separated by
colons), also free-threaded builds, run adapters/python/tests over the libvmm.so of build/release
(LIBVMM names another), each in an environment with pytest, and the newest NumPy where it has a
wheel; with NumPy also the fuzzer of lifetimes, for 20,000 steps. Arguments go to pytest, instead of
the files of FILES. A free-threaded interpreter must stay so."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _packages import KEPT, ROOT, pip, skip

OLDEST = (3, 10)
TESTS = os.path.join(ROOT, "adapters", "python")
RELEASE = os.path.join(ROOT, "build", "release")
FILES = [
    f"tests/test_{name}.py"
    for name in (
        "allocator boundary copies dlpack growable interrupts lifetimes one_variable package "
        "queues values"
    ).split()
]
ABOUT = (
    "import sys, sysconfig; print(*sys.version_info[:3], "
    "int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))), sys.implementation.name)"
)
FUZZ = ["-W", "ignore", "tests/fuzz_lifetimes.py", "--steps", "20000"]
STAYS = "import sys, libvmm; libvmm.Pool; sys.exit(getattr(sys, '_is_gil_enabled', bool)())"


def about(python: str) -> tuple[tuple[int, ...], bool] | None:
    """The version, and whether it is a free-threaded build; None: this is no CPython."""
    done = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True, check=False)
    *numbers, free, name = done.stdout.split() or ["0", ""]
    if done.returncode != 0 or name != "cpython":
        return None
    return tuple(map(int, numbers)), free == "1"


def interpreters() -> dict[str, str]:
    """By version, "t" at the end of a free-threaded one: the newest of each minor version."""
    found: dict[tuple[int, int, bool], tuple[tuple[int, ...], str]] = {}
    named = [each for each in os.environ.get("VMM_PYTHONS", "").split(":") if each]
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    paths = [*named, *glob.glob(os.path.join(pyenv, "versions", "*", "bin", "python3"))]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        paths += [
            each
            for each in glob.glob(os.path.join(folder, "python3.*"))
            if re.fullmatch(r"python3\.\d+t?", os.path.basename(each))
        ]
    for path in paths:
        known = about(path) if shutil.which(path) else None
        if known is None and path in named:
            sys.exit(f"VMM_PYTHONS names {path}, which is not a CPython")
        if known is not None and known[0] >= OLDEST:
            key = known[0][0], known[0][1], known[1]
            found[key] = max(found.get(key, ((), "")), (known[0], path))
    return {
        ".".join(map(str, version)) + "t" * free: path
        for (_, _, free), (version, path) in sorted(found.items())
    }


def environment(version: str, path: str) -> str:
    """The Python of an environment with pytest."""
    folder = os.path.join(KEPT, f"python-{version}")
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(folder, "bin", "pytest")):
        subprocess.run([path, "-m", "venv", "--clear", folder], check=True)
        pip("install", "--quiet", "pytest", python=python)
        numpy = ["install", "--quiet", "--only-binary=:all:", "numpy"]
        subprocess.run([python, "-m", "pip", *numpy], capture_output=True, check=False)
    return python


def numpy_of(python: str) -> str:
    """The version of NumPy; empty without it."""
    words = [python, "-c", "import numpy; print(numpy.__version__)"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def variables() -> dict[str, str]:
    library = os.environ.get("LIBVMM") or os.path.join(RELEASE, "c", "libvmm.so.1")
    if not os.path.exists(library):
        skip(f"{library} is not built: ./run wheel builds it, and LIBVMM names another one")
    made = {**os.environ, "LIBVMM": library, "PYTHONPATH": os.path.join(TESTS, "src")}
    made.setdefault("LIBVMM_TEST_STRIDE", "3")
    for name, path in (
        ("LIBVMM_TEST_PRELOAD", "preload/libvmm_preload.so"),
        ("LIBVMM_TEST_DRIVER", "tests/preload/standin/driver/libcuda.so.1"),
    ):
        made.setdefault(name, os.path.join(RELEASE, path))
    return made


def main() -> int:
    given, wrong, rows = sys.argv[1:] or FILES, 0, []
    found, given_variables = interpreters(), variables()
    if not found:
        skip("there is no CPython 3.10 or later")
    for version, path in found.items():
        python = environment(version, path)
        words = [python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", *given]
        done = subprocess.run(
            words, cwd=TESTS, env=given_variables, capture_output=True, text=True, check=False
        )
        last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
        stays = subprocess.run([python, "-c", STAYS], env=given_variables, check=False).returncode
        if done.returncode != 0:
            print(done.stdout[-6000:], done.stderr[-2000:])
        is_wrong = done.returncode != 0
        if version.endswith("t") and stays != 0:
            last, is_wrong = last + "; its lock is on", True
        numpy = numpy_of(python)
        if given == FILES and numpy:
            code = subprocess.run([python, *FUZZ], cwd=TESTS, env=given_variables).returncode
            last += f"; NumPy {numpy}, the fuzzer ends with {code}"
            is_wrong = is_wrong or code != 0
        wrong += is_wrong
        rows.append(f"{version:9} {last}")
        print(rows[-1], flush=True)
    print(f"{len(rows) - wrong} of {len(rows)} interpreters pass")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
