# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: the PyTorch class compiles and runs with each minor version, and forwards all that it has
"""Method: c10's headers of every minor version from 2.7 to the newest, of their wheels on the
package index, with checksums (torch_headers.txt). For each version each virtual function of the
headers is one that adapters/python/src/libvmm/torch/allocator.cpp overrides; the compiler checks
that file; and adapters/python/tests/torch_class runs it with the version's own libc10_cuda.so,
without a GPU, where libvmm.so is built. --update writes the checksums of what is there now."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from _packages import KEPT, ROOT, skip
from _wheels import find_wheel, read_members

SOURCE = os.path.join(ROOT, "adapters", "python", "src", "libvmm", "torch", "allocator.cpp")
PINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_headers.txt")
# The smallest wheels that have c10/cuda. They lack this one header, which a build makes.
PLATFORMS = ("macosx_11_0_arm64", "macosx_14_0_arm64")
GENERATED = ("c10/cuda/impl/cuda_cmake_macros.h", "#define C10_CUDA_BUILD_SHARED_LIBS\n")
HEADERS = ("torch/include/c10/", "torch/include/torch/headeronly/")
LIBRARIES = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so")
TESTS = os.path.join(ROOT, "adapters", "python", "tests", "torch_class")
LIBVMM = os.environ.get("LIBVMM") or os.path.join(ROOT, "build", "release", "c", "libvmm.so.1")

_spec = importlib.util.spec_from_file_location(
    "_headers", os.path.join(os.path.dirname(SOURCE), "_headers.py")
)
assert _spec and _spec.loader
headers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(headers)


def checksum(folder: str) -> str:
    """Of the names and contents of all files."""
    what = hashlib.sha256()
    for path in sorted(
        os.path.relpath(os.path.join(at, name), folder)
        for at, _, names in os.walk(folder)
        for name in names
    ):
        with open(os.path.join(folder, path), "rb") as file:
            what.update(path.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return what.hexdigest()


def pins() -> dict[str, str]:
    with open(PINS, encoding="utf-8") as file:
        return dict(line.split() for line in file if line.strip() and not line.startswith("#"))


def torch_headers(requirement: str) -> tuple[str, str, str]:
    """The version, the folder to include and the checksum of a PyTorch's headers."""
    version, url = find_wheel(requirement, *PLATFORMS)
    folder = os.path.join(KEPT, "torch", version)
    if not os.path.isdir(folder):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as beside:
            read_members(url, HEADERS, beside)
            os.rename(os.path.join(beside, "torch", "include"), folder)
    return version, folder, checksum(folder)


def cuda_headers() -> list[str]:
    """Folders with cuda_runtime_api.h and crt/: of the toolkit, else of NVIDIA's packages."""
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root and os.path.exists(os.path.join(root, "include", "crt", "host_config.h")):
            return [os.path.join(root, "include")]
    folder = os.path.join(KEPT, "cuda")
    if not os.path.isdir(folder):
        _, url = find_wheel(
            "nvidia-cuda-runtime==13.*", "manylinux2014_x86_64", "manylinux_2_17_x86_64"
        )
        read_members(url, ("nvidia/",), folder)
    found = [at for at, _, names in os.walk(folder) if "cuda_runtime_api.h" in names]
    return [*found, os.path.join(os.path.dirname(SOURCE), "host")]


def compile_against(version: str, folders: list[str], *words: str) -> str:
    """What the compiler says where it refuses."""
    minor = int(version.split(".")[1])
    with tempfile.TemporaryDirectory() as made:
        name, text = GENERATED
        os.makedirs(os.path.join(made, os.path.dirname(name)))
        with open(os.path.join(made, name), "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run(
            [
                os.environ.get("CXX", "g++"),
                "-Wall",
                "-Werror",
                "-fPIC",
                "-std=c++20" if minor >= 12 else "-std=c++17",
                f"-DVMM_TORCH=2{minor:02}",
                "-D_GLIBCXX_USE_CXX11_ABI=1",
                "-I",
                os.path.join(ROOT, "adapters", "c", "include"),
                *(word for each in (*folders, made) for word in ("-isystem", each)),
                *words,
            ],
            capture_output=True,
            text=True,
        )
    return "" if done.returncode == 0 else done.stderr[-3000:]


def run_class(version: str, folders: list[str]) -> str:
    """Runs the class with this version's libraries, over a runtime of CUDA that needs no device."""
    libraries = os.path.join(KEPT, "torch", version + "-libraries")
    if not os.path.isdir(libraries):
        machine = platform.machine()
        _, url = find_wheel(
            f"torch=={version}", f"manylinux_2_28_{machine}", f"manylinux2014_{machine}"
        )
        read_members(url, LIBRARIES, libraries)
    lib = os.path.join(libraries, "torch", "lib")
    with open(os.path.join(lib, "libc10_cuda.so"), "rb") as file:
        name = re.findall(rb"libcudart\.so\.\d+", file.read())[0].decode()
    with tempfile.TemporaryDirectory() as made:
        runtime, program = os.path.join(made, name), os.path.join(made, "class_test")
        with open(os.path.join(made, "map"), "w", encoding="utf-8") as file:
            file.write(f"{name} {{ global: cuda*; }};\n")
        done = subprocess.run(
            [
                os.environ.get("CC", "gcc"),
                "-shared",
                "-fPIC",
                "-o",
                runtime,
                f"-Wl,-soname,{name}",
                f"-Wl,--version-script={made}/map",
                os.path.join(TESTS, "cudart.c"),
            ],
            capture_output=True,
            text=True,
        )
        wrong = done.stderr or compile_against(
            version,
            folders,
            "-O0",
            SOURCE,
            os.path.join(TESTS, "class_test.cpp"),
            "-o",
            program,
            "-L",
            lib,
            "-lc10",
            "-lc10_cuda",
            runtime,
            LIBVMM,
            "-Wl,--allow-shlib-undefined",
        )
        if wrong:
            return wrong
        paths = ":".join((made, lib, os.path.dirname(LIBVMM)))
        done = subprocess.run(
            [program], capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": paths}
        )
    return "" if done.returncode == 0 else f"class_test: {done.returncode}: {done.stderr[-3000:]}"


def check(requirement: str, cuda: list[str], known: dict[str, str]) -> tuple[str, str, str]:
    """The version, the checksum of its headers, and what is wrong."""
    version, include, found = torch_headers(requirement)
    if known.get(version, found) != found:
        return version, found, f"the headers have another checksum than torch_headers.txt: {found}"
    count = len(headers.virtual_functions(include))
    unknown = headers.unknown_functions(include, SOURCE)
    wrong = compile_against(version, [include, *cuda], "-fsyntax-only", SOURCE)
    if unknown:
        wrong += f"the class does not override {', '.join(unknown)}"
    if count < 30:
        wrong += f"only {count} virtual functions were found in the headers"
    if not wrong and version not in known:
        wrong = "no checksum is in torch_headers.txt: --update"
    runs = os.path.exists(LIBVMM)
    if not wrong and runs:
        wrong = run_class(version, [include, *cuda])
    print(
        f"torch {version}: {count} virtual functions, compiled{', run' if runs else ''}: "
        f"{'WRONG' if wrong else 'fine'}",
        flush=True,
    )
    return version, found, wrong


def main() -> int:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        skip("there is no C++ compiler (CXX, else g++)")
    known = {} if "--update" in sys.argv else pins()
    rows = []
    cuda = cuda_headers()
    newest, _ = find_wheel("torch", *PLATFORMS)
    last = int(re.sub(r"^2\.(\d+).*", r"\1", newest))
    pinned = {version.split(".")[1]: version for version in known}
    for minor in range(headers.MINORS[0], max(last, headers.MINORS[-1]) + 1):
        rows.append(check(f"torch=={pinned.get(str(minor), f'2.{minor}.*')}", cuda, known))
    if "--update" in sys.argv:
        with open(PINS, "w", encoding="utf-8") as file:
            file.write(
                "# SHA-256 of c10's and headeronly's headers: ./run check torch --update\n"
                + "".join(f"{row[0]} {row[1]}\n" for row in rows)
            )
        return 0
    if not os.path.exists(LIBVMM):
        print(f"not run: {LIBVMM} is not built (./run wheel)")
    for version, _, wrong in rows:
        if wrong:
            print(f"torch {version}: {wrong}", file=sys.stderr)
    return 1 if any(wrong for _, _, wrong in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
