# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: our declarations of the CUDA driver's interface are those of CUDA's headers, 12.9 and 13.
# Method: each type, number, field and function of backends/cuda/abi.h, and each symbol of
# tests/cuda/standin/symbols.h, becomes an assertion of a unit that includes the headers, too. They
# are those of NVIDIA's packages, and those of a toolkit where this machine has one.
from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from _packages import ROOT, fetch_wheel, skip, unpack

PACKAGES = (
    (
        "nvidia-cuda-runtime-cu12==12.9.79 "
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3"
    ),
    "nvidia-cuda-runtime==13.5.37 df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
)
ABI = os.path.join(ROOT, "backends", "cuda", "abi.h")
SYMBOLS = os.path.join(ROOT, "tests", "cuda", "standin", "symbols.h")

HEAD = """\
#include <cstddef>
#include <cstdint>
#include <type_traits>
namespace ours {
#include "%s"
}
#include <cuda.h>
#include <cudaTypedefs.h>
// A type of CUDA's headers with each type of theirs that we have replaced by ours.
template <class T> struct translated { using type = T; };
template <class T> using ours_of = typename translated<T>::type;
template <class T> struct translated<T*> { using type = ours_of<T>*; };
template <class T> struct translated<const T> { using type = const ours_of<T>; };
template <class R, class... P>
struct translated<R(P...)> { using type = ours_of<R>(ours_of<P>...); };
template <class Theirs, class Ours> constexpr bool same = std::is_same_v<ours_of<Theirs>, Ours>;
"""


def enumerations(text: str) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """(type, [(name, first version or 0)])"""
    for name, body in re.findall(
        r"^enum (\w+) : unsigned \{(.*?)\};", text, re.MULTILINE | re.DOTALL
    ):
        rows = re.findall(r"(\w+) = \d+,?(?:  // (\d+)\.(\d+))?", body)
        yield (
            name,
            [(row, int(major or 0) * 1000 + int(minor or 0) * 10) for row, major, minor in rows],
        )


def structures(text: str) -> Iterator[tuple[str, list[str]]]:
    """(type, [field]), those of a structure without a name as OUTER.INNER."""
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        fields: list[str] = []
        inner: list[str] = []
        for line in body.splitlines():
            if line.strip() == "struct {":
                inner = [""]
            elif closed := re.match(r"\s*\} (\w+);", line):
                fields += [closed[1]] + [f"{closed[1]}.{each}" for each in inner[1:]]
                inner = []
            else:
                (inner or fields).extend(re.findall(r"(\w+)(?:\[\d+\])?;$", line))
        yield name, fields


def assertions(text: str, symbols: str) -> tuple[list[str], int]:
    """The lines of the unit, and how many things they compare."""
    lines = []
    translated = [tag for _, tag in re.findall(r"using (\w+) = struct (\w+)\*;", text)]
    aliases = re.findall(r"using (\w+) = struct \w+\*;", text)
    aliases += re.findall(r"^using (CU\w+|cuuint\w+) = (?!struct)", text, re.MULTILINE)
    aliases += re.findall(r"^using (PFN_\w+) =", text, re.MULTILINE)
    lines += [f"static_assert(same<::{alias}, ours::{alias}>);" for alias in aliases]
    for name, rows in enumerations(text):
        if not name.endswith("_flags") or f"{name})" in text or f"{name}," in text:
            translated.append(name)
        for row, version in rows:
            asserted = (
                f"static_assert(sizeof(::{row}) == sizeof(ours::{row}) && "
                f"static_cast<unsigned>(::{row}) == ours::{row});"
            )
            lines.append(
                f"#if CUDA_VERSION >= {version}\n{asserted}\n#endif" if version else asserted
            )
    for name, fields in structures(text):
        translated.append(name)
        lines.append(
            f"static_assert(sizeof(::{name}) == sizeof(ours::{name}) && "
            f"alignof(::{name}) == alignof(ours::{name}));"
        )
        for field in fields:
            lines.append(
                f"static_assert(offsetof(::{name}, {field}) == offsetof(ours::{name}, {field}) && "
                f"sizeof(::{name}{{}}.{field}) == sizeof(ours::{name}{{}}.{field}));"
            )
    exported = dict(re.findall(r"^#define (cu\w+) (cu\w+)$", symbols, re.MULTILINE))
    declared = re.findall(r"^VMM_STANDIN_CALL\((cu\w+), (\d+)\)$", symbols, re.MULTILINE)
    for name, version in declared:
        symbol = exported.get(name, name)
        lines.append(f"static_assert(same<decltype(&::{symbol}), ours::PFN_{name}_v{version}>);")
    row = "template <> struct translated<::{0}> {{ using type = ours::{0}; }};"
    return [*map(row.format, translated), *lines], len(lines)


def headers() -> Iterator[tuple[str, str]]:
    """(what they are, folder)"""
    for package, sha256 in map(str.split, PACKAGES):
        options = ("--platform", "manylinux2014_x86_64")
        folder = unpack(fetch_wheel(package, sha256=sha256, options=options))
        [header] = glob.glob(os.path.join(folder, "nvidia", "*", "include", "cudaTypedefs.h"))
        yield package, os.path.dirname(header)
    named = [os.environ.get(each, "") for each in ("CUDA_HOME", "CUDA_PATH")]
    for folder in dict.fromkeys(filter(None, (*named, "/usr/local/cuda", "/opt/cuda"))):
        if os.path.exists(os.path.join(folder, "include", "cudaTypedefs.h")):
            yield folder, os.path.join(folder, "include")


def main() -> bool:
    with open(ABI, encoding="utf-8") as file:
        text = file.read()
    with open(SYMBOLS, encoding="utf-8") as file:
        lines, compared = assertions(text, file.read())
    assert compared > 250, "abi.h is written in another manner than this check reads"
    compiler = shutil.which("clang++-19") or shutil.which("clang++") or shutil.which("g++")
    if compiler is None:
        skip("there is no C++ compiler")
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        unit = os.path.join(scratch, "unit.cpp")
        with open(unit, "w", encoding="utf-8") as file:
            file.write(HEAD % ABI + "\n".join(lines) + "\n")
        for name, folder in headers():
            words = [compiler, *"-std=c++20 -fsyntax-only -Wno-invalid-offsetof -isystem".split()]
            ended = subprocess.run([*words, folder, unit], capture_output=True, text=True)
            outcome = "all equal" if ended.returncode == 0 else f"not equal:\n{ended.stderr}"
            print(f"{name}: {compared} comparisons, {outcome}")
            failed = failed or ended.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
