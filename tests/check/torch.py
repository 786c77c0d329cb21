# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: the PyTorch class compiles and runs with each minor version, and forwards all that it has
"""Method: c10's headers of every minor version from 2.7 to the newest, of their wheels on the
package index, with checksums (torch_headers.txt). For each version each virtual function of the
headers is one that adapters/python/src/libvmm/torch/allocator.cpp overrides; the compiler checks
that file; and adapters/python/tests/torch_class runs it with the version's own libc10_cuda.so,
without a GPU, where libvmm.so is built. --update writes the checksums of what is there now.
--classes FOLDER builds the class of each version into FOLDER, for the wheel. --arch aarch64: by
Clang for that machine, with the libraries of build/sysroot-aarch64 (packaging/sysroot.sh); what is
run is run by qemu-aarch64, with the versions whose wheels for that machine have CUDA."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from types import ModuleType

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
MACHINE = sys.argv[sys.argv.index("--arch") + 1] if "--arch" in sys.argv else platform.machine()
IS_OTHER = platform.machine() != MACHINE
BUILD = os.path.join(ROOT, "build", MACHINE if IS_OTHER else "release")
LIBVMM = os.environ.get("LIBVMM") or os.path.join(BUILD, "c", "libvmm.so.1")
SYSROOT = os.path.join(ROOT, "build", f"sysroot-{MACHINE}")
CLANG = (
    f"--target={MACHINE}-linux-gnu",
    f"--sysroot={SYSROOT}",
    "--ld-path=ld.lld-19",
    "-Wno-unused-command-line-argument",
    "-Wno-deprecated-declarations",  # in libstdc++ 12's own std::stable_sort
)
CXX = ["clang++-19", *CLANG] if IS_OTHER else shlex.split(os.environ.get("CXX", "g++"))
CC = ["clang-19", *CLANG] if IS_OTHER else shlex.split(os.environ.get("CC", "gcc"))
EMULATOR = next(filter(shutil.which, (f"qemu-{MACHINE}-static", f"qemu-{MACHINE}")), "")
CUDA_SINCE = {"aarch64": 11}  # the first 2.N whose wheel for the machine has libc10_cuda.so


def module(name: str) -> ModuleType:
    """One of the package that imports nothing else of it when it is loaded so."""
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(os.path.dirname(SOURCE), f"{name}.py")
    )
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


headers, ahead = module("_headers"), module("_ahead")
# The newest versions of symbols that a class may need: those of the oldest PyTorch's own libraries.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
OLDER_LIBC = os.path.join(ROOT, "adapters", "c", "src", "older_libc.cpp")
# The streams' newest functions become the class's own.
OWN_STREAMS = """
#include <bits/c++config.h>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
"""
OLDER_CXX = """
#include <new>
namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}
"""
EXPORTS = "{ global: vmm_torch_*; local: *; };"


def checksum(folder: str) -> str:
    """Of the names and contents of all files."""
    what = hashlib.sha256()
    for path in sorted(
        os.path.relpath(os.path.join(at, name), folder)
        for at, _, names in os.walk(folder)
        for name in names
    ):
        content = pathlib.Path(folder, path).read_bytes()
        what.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return what.hexdigest()


def pins() -> dict[str, str]:
    lines = pathlib.Path(PINS).read_text().splitlines()
    return dict(line.split() for line in lines if line.strip() and not line.startswith("#"))


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


def ran(*words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=check)


def compile_against(version: str, folders: list[str], *words: str) -> str:
    """What the compiler says where it refuses."""
    minor = int(version.split(".")[1])
    with tempfile.TemporaryDirectory() as made:
        generated = pathlib.Path(made, GENERATED[0])
        generated.parent.mkdir(parents=True)
        generated.write_text(GENERATED[1])
        done = ran(
            *(*CXX, "-Wall", "-Werror", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1"),
            *("-std=c++20" if minor >= 12 else "-std=c++17", f"-DVMM_TORCH=2{minor:02}"),
            *("-I", os.path.join(ROOT, "adapters", "c", "include")),
            *(word for each in (*folders, made) for word in ("-isystem", each)),
            *words,
        )
    return "" if done.returncode == 0 else done.stderr[-3000:]


def runtime_of(version: str, into: str) -> tuple[str, str, str]:
    """The folder of this version's libraries, and in `into` a runtime of CUDA for them that needs
    no device; what the compiler says where it refuses."""
    suffix = f"-libraries-{MACHINE}" if IS_OTHER else "-libraries"
    libraries = os.path.join(KEPT, "torch", version + suffix)
    if not os.path.isdir(libraries):
        _, url = find_wheel(
            f"torch=={version}", f"manylinux_2_28_{MACHINE}", f"manylinux2014_{MACHINE}"
        )
        read_members(url, LIBRARIES, libraries)
    lib = os.path.join(libraries, "torch", "lib")
    library = pathlib.Path(lib, "libc10_cuda.so").read_bytes()
    name = re.findall(rb"libcudart\.so\.\d+", library)[0].decode()
    pathlib.Path(into, "map").write_text(f"{name} {{ global: cuda*; }};\n")
    there = set(re.findall(r"\b(cuda\w+)\(", pathlib.Path(TESTS, "cudart.c").read_text()))
    listed = ran("readelf", "--dyn-syms", "--wide", f"{lib}/libc10_cuda.so", check=True).stdout
    rest = os.path.join(into, "rest.c")  # what a library needs to be loaded, and nothing calls
    needed = sorted({*re.findall(r"\bUND (cuda\w+)@", listed)} - there)
    pathlib.Path(rest).write_text("".join(f"int {x}(void) {{ return 999; }}\n" for x in needed))
    runtime = os.path.join(into, name)
    done = ran(
        *(*CC, "-shared", "-fPIC", "-o", runtime, os.path.join(TESTS, "cudart.c"), rest),
        *(f"-Wl,-soname,{name}", f"-Wl,--version-script={into}/map"),
    )
    return lib, runtime, done.stderr


def run_class(version: str, folders: list[str]) -> str:
    """Runs the class with this version's libraries."""
    with tempfile.TemporaryDirectory() as made:
        lib, runtime, wrong = runtime_of(version, made)
        program = os.path.join(made, "class_test")
        wrong = wrong or compile_against(
            version,
            folders,
            *("-O0", SOURCE, os.path.join(TESTS, "class_test.cpp"), "-o", program, "-L", lib),
            *("-lc10", "-lc10_cuda", runtime, LIBVMM, "-Wl,--allow-shlib-undefined"),
        )
        if wrong:
            return wrong
        paths = ":".join((made, lib, os.path.dirname(LIBVMM)))
        for words in ([program], [program, "refused"], [program, "shared"]):
            done = run_program(words, paths)
            if done.returncode != 0:
                return f"class_test: {done.returncode}: {done.stderr[-3000:]}"
    return ""


def runs(version: str) -> bool:
    """Whether programs with this version's libraries can be run here."""
    if not os.path.exists(LIBVMM) or (IS_OTHER and not EMULATOR):
        return False
    return int(version.split(".")[1]) >= (CUDA_SINCE.get(MACHINE, 0) if IS_OTHER else 0)


def run_program(words: list[str], paths: str) -> subprocess.CompletedProcess[str]:
    """Of the machine; `paths`: where the loader looks first."""
    variables = {**os.environ, "LD_LIBRARY_PATH": paths}
    if IS_OTHER:
        words = [EMULATOR, "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={paths}", *words]
        variables = dict(os.environ)
    return subprocess.run(words, capture_output=True, text=True, env=variables, check=False)


def load_class(version: str, library: str) -> str:
    """What a class that was built ahead says where it is installed in this version's libraries."""
    with tempfile.TemporaryDirectory() as made:
        lib, runtime, wrong = runtime_of(version, made)
        names = [os.path.join(lib, name) for name in ("libc10.so", "libc10_cuda.so")]
        load = os.path.join(made, "load")
        words = [*CC, "-Wall", "-Werror", os.path.join(TESTS, "load.c"), "-o", load, "-ldl"]
        compiled = ran(*words)
        wrong = wrong or compiled.stderr
        if wrong:
            return wrong
        done = run_program([load, runtime, *names, LIBVMM, library], lib)
    return done.stdout.strip() if done.returncode == 0 else done.stderr[-2000:]


def too_new(library: str) -> list[str]:
    """The versions of symbols that the library needs and that an older system lacks."""
    listed = ran("readelf", "--version-info", "--wide", library, check=True).stdout
    found = set(re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", listed))
    return sorted(
        f"{name}_{number}"
        for name, number in found
        if tuple(map(int, number.split("."))) > NEWEST[name]
    )


def included(version: str, folders: list[str]) -> list[str]:
    """PyTorch's headers that the class is compiled from, but for the generated one."""
    with tempfile.TemporaryDirectory() as made:
        listed = os.path.join(made, "list")
        wrong = compile_against(version, folders, "-M", "-MF", listed, SOURCE)
        if wrong:
            sys.exit(wrong)
        names = pathlib.Path(listed).read_text().replace("\\\n", " ").split()
    prefix = folders[0] + "/"
    return sorted({each[len(prefix) :] for each in names if each.startswith(prefix)})


def build_class(requirement: str, cuda: list[str], known: dict[str, str], into: str) -> str:
    """Builds one version's class, and the list of its headers with their hash. Returns what is
    wrong."""
    version, include, found = torch_headers(requirement)
    if known.get(version) != found:
        return f"torch {version}: its headers have another checksum than torch_headers.txt"
    minor, folders = ".".join(version.split(".")[:2]), [include, *cuda]
    library = os.path.join(into, f"{minor}.so")
    with tempfile.TemporaryDirectory() as made:
        stubs = ("libc10.so", "libc10_cuda.so", "libvmm.so.1")
        for name in stubs:  # what the class needs by name, and the process has
            words = ("-shared", "-x", "c", os.devnull, f"-Wl,-soname,{name}")
            subprocess.run([*CC, *words, "-o", os.path.join(made, name)], check=True)
        for name, text in (("own.hpp", OWN_STREAMS), ("older.cpp", OLDER_CXX), ("map", EXPORTS)):
            pathlib.Path(made, name).write_text(text)
        wrong = compile_against(
            version,
            folders,
            *("-O2", "-shared", "-fvisibility=hidden", "-ffunction-sections", "-s"),
            *("-include", os.path.join(made, "own.hpp")),
            *(SOURCE, OLDER_LIBC, os.path.join(made, "older.cpp"), "-o", library),
            *(f"-Wl,--version-script={made}/map", "-Wl,--gc-sections", "-Wl,--no-as-needed"),
            *(os.path.join(made, name) for name in stubs),
            *("-l:libpthread.so.0", "-l:libdl.so.2"),
        )
    if wrong:
        return f"torch {version}: {wrong}"
    names = included(version, folders)
    text = "\n".join([ahead.hash_of(include, names), *names]) + "\n"
    pathlib.Path(into, f"{minor}.headers").write_text(text)
    newer = too_new(library)
    print(f"torch {version}: {os.path.getsize(library)} bytes, {len(names)} headers", flush=True)
    return f"torch {version}: the class needs {', '.join(newer)}" if newer else ""


def check_loading(into: str, known: dict[str, str]) -> list[str]:
    """Each class is installed in its own version, and refuses one that has another table."""
    versions = {".".join(each.split(".")[:2]): each for each in known if runs(each)}
    wrong = []
    for minor, version in versions.items():
        said = load_class(version, os.path.join(into, f"{minor}.so"))
        print(f"torch {version}: {said or 'installed'}", flush=True)
        wrong += [f"torch {version}: {said}"] if said else []
    said = load_class(versions["2.12"], os.path.join(into, "2.11.so"))
    if "52 virtual functions, and 50 are expected" not in said:
        wrong.append(f"the class of 2.11 in 2.12: {said}")
    return wrong


def build_classes(into: str) -> int:
    os.makedirs(into, exist_ok=True)
    known, cuda = pins(), cuda_headers()
    wrong = [build_class(f"torch=={version}", cuda, known, into) for version in known]
    if runs("2.11") and not any(wrong):
        wrong = check_loading(into, known)
    print("\n".join(filter(None, wrong)), file=sys.stderr)
    return 1 if any(wrong) else 0


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
    if not wrong and runs(version):
        wrong = run_class(version, [include, *cuda])
    print(
        f"torch {version}: {count} virtual functions, compiled{', run' if runs(version) else ''}: "
        f"{'WRONG' if wrong else 'fine'}",
        flush=True,
    )
    return version, found, wrong


def main() -> int:
    if shutil.which(CXX[0]) is None:
        skip("there is no C++ compiler (CXX, else g++)")
    if IS_OTHER and not os.path.isdir(SYSROOT):
        skip(f"there is no {SYSROOT}: ./run wheel --arch {MACHINE} makes it")
    if "--classes" in sys.argv:
        return build_classes(sys.argv[sys.argv.index("--classes") + 1])
    known = {} if "--update" in sys.argv else pins()
    rows = []
    cuda = cuda_headers()
    newest, _ = find_wheel("torch", *PLATFORMS)
    last = int(re.sub(r"^2\.(\d+).*", r"\1", newest))
    pinned = {version.split(".")[1]: version for version in known}
    for minor in range(headers.MINORS[0], max(last, headers.MINORS[-1]) + 1):
        rows.append(check(f"torch=={pinned.get(str(minor), f'2.{minor}.*')}", cuda, known))
    if "--update" in sys.argv:
        head = "# SHA-256 of c10's and headeronly's headers: ./run check torch --update\n"
        text = head + "".join(f"{row[0]} {row[1]}\n" for row in rows)
        pathlib.Path(PINS).write_text(text)
        return 0
    if not os.path.exists(LIBVMM):
        print(f"not run: {LIBVMM} is not built (./run wheel)")
    for version, _, wrong in rows:
        if wrong:
            print(f"torch {version}: {wrong}", file=sys.stderr)
    return 1 if any(wrong for _, _, wrong in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
