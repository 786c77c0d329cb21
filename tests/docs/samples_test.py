# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what the pages show is what runs. Method: each block of code of each page is placed.
C, C++ and CUDA: it is part of a file that the build compiles. Python: it is run. CMake: it is read
by CMake. Shell: each command's program, word, preset, target, file and variable is there, and
./run's own checks take its arguments. A block that has no place fails, and so does each of the
planted mistakes.

LIBVMM names the C library that the Python samples use; without it they are compiled only.
"""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import pages  # first: it says where the others lie

# isort: split
import comments

ROOT = pages.ROOT
# Sources of which samples are part, each compiled by the build: the CMake file that says so. The
# programs of tests are others.
COMPILED = {
    "examples": "examples/CMakeLists.txt",
    "tests/docs/samples": "tests/docs/CMakeLists.txt",
    "tests/c/samples": "tests/c/CMakeLists.txt",
}
# A sample that is the outline of something: each of its words is one of these sources'.
OUTLINES = {("docs/contract.md", "struct mine"): "tests/conformance"}
# Programs that others bring, and shell's own words.
ELSEWHERE = set(
    "cc nvcc ctest ninja compute-sanitizer pip program ./program ./first ./first_cu ./build/app "
    "for do done export cd sudo apt git dpkg-deb vcpkg chroot".split()
)
LIBRARY = os.environ.get("LIBVMM")


def bare(text):
    """Text without spaces and licence lines: samples may be indented elsewhere."""
    return re.sub(r"\s+", "", text)


@functools.cache
def sources():
    texts = {}
    for folder, list_file in COMPILED.items():
        listed = (ROOT / list_file).read_text()
        for path in sorted((ROOT / folder).iterdir()):
            if path.suffix in (".c", ".cpp", ".cu") and re.search(
                rf"\b{re.escape(path.stem)}\b", listed
            ):
                texts[path.relative_to(ROOT).as_posix()] = bare(path.read_text())
    for path in sorted((ROOT / "tests").rglob("*_test.cpp")):  # a program each, or part of one
        texts[path.relative_to(ROOT).as_posix()] = bare(path.read_text())
    texts["tests/c/samples/first.cu"] = bare((ROOT / "tests/c/samples/first.cu").read_text())
    return texts


def check_compiled(block):
    if any(bare(block.text) in text for text in sources().values()):
        return None
    pieces = [piece for piece in re.split(r"\n\s*\n", block.text) if piece.strip()]
    if any(all(bare(piece) in text for piece in pieces) for text in sources().values()):
        return None
    for (page, mark), folder in OUTLINES.items():
        if block.page == page and mark in block.text:
            known = " ".join(path.read_text() for path in sorted((ROOT / folder).iterdir()))
            code = re.sub(r"//[^\n]*", "", block.text)
            unknown = {
                word
                for word in re.findall(r"[A-Za-z_]\w{3,}", code)
                if not re.search(rf"\b{word}\b", known)
            } - {"mine", "my_driver"}
            return f"unknown words: {sorted(unknown)}" if unknown else None
    return "it is part of no compiled file"


# ---- Python ------------------------------------------------------------------------------------


def check_python(block):
    try:
        compile(block.text, f"{block.page}:{block.line}", "exec")
    except SyntaxError as wrong:
        return str(wrong)
    unknown = unknown_names(block.text)
    if unknown:
        return f"libvmm has no {unknown}"
    if "torch" in block.text or not LIBRARY:  # needs PyTorch and a GPU; a release build
        return None
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "adapters" / "python" / "src")}
    done = pages.ran(sys.executable, "-B", "-c", block.text, env=environment, timeout=60)
    return None if done.returncode == 0 else done.stderr


@functools.cache
def python_names():
    modules = comments.python_modules(ROOT)
    names = {f"{module}.{each.name}" for module, (_, own) in modules.items() for each in own}
    path = "adapters/python/src/libvmm/__init__.py"
    exports = comments.read_python((ROOT / path).read_text(), path)[2]
    return names | {f"libvmm.{name}" for name in exports} | set(modules)


def unknown_names(text):
    said = set(re.findall(r"\blibvmm(?!\.so)(?:\.\w+)+", text))
    return sorted(name for name in said if name not in python_names())


# ---- CMake -------------------------------------------------------------------------------------

STUBS = """
foreach(name IN ITEMS project add_executable add_library target_link_libraries add_subdirectory
                      find_package target_compile_features target_include_directories
                      vmm_test)
  cmake_language(EVAL CODE "function(${name})\\nendfunction()")
endforeach()
"""


def check_cmake(block):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sample.cmake")
        with open(path, "w", encoding="utf-8") as file:
            file.write(STUBS + block.text)
        done = pages.ran("cmake", "-P", path)
    if done.returncode:
        return done.stderr
    said = set(re.findall(r"\bvmm::\w+", block.text))
    unknown = said - {"vmm::vmm", "vmm::c"}
    return f"no targets: {unknown}" if unknown else None


# ---- shell -------------------------------------------------------------------------------------


@functools.cache
def presets():
    read = json.loads((ROOT / "CMakePresets.json").read_text())
    return {each["name"] for each in read["configurePresets"]}


@functools.cache
def variables():
    names = ("options", "preload", "pytorch")
    text = "".join((ROOT / f"docs/{name}.md").read_text() for name in names)
    others = "LD_PRELOAD ZE_ENABLE_ALT_DRIVERS LD_LIBRARY_PATH CUDA_HOME PYTHONPATH"
    return {*re.findall(r"`([A-Z][A-Z_]+)`", text), *others.split()}


@functools.cache
def cmake_names():
    """Targets and components that the tree's own CMake files name."""
    text = "".join(
        path.read_text()
        for path in sorted(ROOT.rglob("CMakeLists.txt"))
        if "build" not in path.relative_to(ROOT).parts
    )
    text += "".join(path.read_text() for path in sorted((ROOT / "cmake").iterdir()))
    return set(re.findall(r"[\w-]+", text))


@functools.cache
def run_says(words):
    done = pages.ran("bash", "run", *words, "--no-install", cwd=ROOT, stdin=subprocess.DEVNULL)
    return done.returncode, done.stderr


def check_run(words):
    """./run with its arguments, which it checks and then, with --no-install, only lists."""
    words = words[: words.index("--")] if "--" in words else words
    code, said = run_says(tuple(word for word in words if "$" not in word))
    return None if code in (0, 1) else f"./run {shlex.join(words)}: {said.splitlines()[0]}"


def check_cmake_command(words):
    text = shlex.join(words)
    for found in re.findall(r"--preset[ =]([\w-]+)", text):
        if found not in presets():
            return f"no preset {found}"
    for found in re.findall(r"--(?:component|target)[ =]([\w-]+)", text):
        if found not in cmake_names():
            return f"no component or target {found}"
    return None


def check_command(command):
    """What is wrong with one command of a shell block, or None."""
    words = shlex.split(command, comments=True)
    while words and (found := re.match(r"([A-Za-z_]\w*)=", words[0])):
        if found.group(1).isupper() and found.group(1) not in variables():
            return f"no variable {found.group(1)}"
        words.pop(0)
    while words and words[0] in ("for", "do"):
        if words[0] == "for":
            return None
        words.pop(0)
    if not words:
        return None
    program = words[0]
    if program in ("./run", "../run"):
        return check_run(words[1:])
    if program == "cmake":
        return check_cmake_command(words)
    if program in ("python", "python3"):
        return check_python_command(words)
    if program in ELSEWHERE or re.fullmatch(r"\./\w+", program):  # the reader's own program
        return None
    if program.startswith("build/"):
        return None if program.rsplit("/", 1)[-1] in cmake_names() else f"no program {program}"
    if (ROOT / program).is_file():
        return None
    is_tool = program in cmake_names() and program.startswith("vmm-")
    return None if is_tool else f"no program {program}"


def check_python_command(words):
    if words[1:2] == ["-m"] and words[2] == "libvmm":
        known = (ROOT / "adapters/python/src/libvmm/__main__.py").read_text()
        return None if f'"{words[3]}"' in known else f"libvmm has no command {words[3]}"
    if words[1:2] == ["-m"] or words[1].isupper() or words[1] in ("script.py", "train.py"):
        return None
    return None if (ROOT / words[1]).is_file() else f"no file {words[1]}"


def check_shell(block):
    for line in re.sub(r"\\\n", " ", block.text).split("\n"):
        for command in re.split(r"&&|;|\|(?!\|)", re.sub(r"(^|\s)#.*", "", line)):
            command = re.sub(r"\$\([^)]*\)|[<>]\s*\S+", " ", command).replace("...", "")
            if command.strip() and (wrong := check_command(command.strip())):
                return wrong
    return None


# Blocks without a language that are not commands: drawings, messages, reports of tools.
def is_text(block):
    return bool(
        re.search(r"-{5,}|<--|-->|^ addresses|\.trace:\d+:|^[=\[]", block.text, flags=re.MULTILINE)
    ) or block.page.startswith("docs/results/")


CHECKS = {
    "cpp": check_compiled,
    "c": check_compiled,
    "cuda": check_compiled,
    "python": check_python,
    "cmake": check_cmake,
    "sh": check_shell,
    "bash": check_shell,
}


def check(block):
    """What is wrong with a block, or None."""
    if block.language in CHECKS:
        return CHECKS[block.language](block)
    if block.language == "text" or (not block.language and is_text(block)):
        return None
    return check_shell(block) if not block.language else f"no test knows {block.language}"


class Planted(unittest.TestCase):
    def wrong(self, language, text, page="docs/concepts.md"):
        self.assertIsNotNone(check(pages.Block(page, 1, language, text)), text)

    def right(self, language, text, page="docs/concepts.md"):
        self.assertIsNone(check(pages.Block(page, 1, language, text)), text)

    def test_code(self):
        self.wrong("cpp", "int nobody_compiles_this;\n")
        self.wrong("c", "vmm_pool_options options = 3;\n")
        self.wrong("cpp", "struct mine { no_such_word x; };\n", "docs/contract.md")
        self.right("c", "#include <stdio.h>\n#include <vmm.h>\n")

    def test_python(self):
        self.wrong("python", "import libvmm\nlibvmm.NoSuchName\n")
        self.wrong("python", "with\n")
        if LIBRARY:
            self.wrong("python", "import libvmm\nlibvmm.Driver('no such driver')\n")
            self.right("python", "import libvmm\nlibvmm.Driver('host').close()\n")

    def test_cmake(self):
        self.wrong("cmake", "find_package(vmm REQUIRED\n")
        self.wrong("cmake", "target_link_libraries(app vmm::no_such_target)\n")
        self.right("cmake", "find_package(vmm)\ntarget_link_libraries(app vmm::c)\n")

    def test_shell(self):
        self.wrong("sh", "./run no_such_word\n")
        self.wrong("sh", "./run fuzz va soon\n")
        self.wrong("", "cmake --preset no_such_preset\n")
        self.wrong("", "cmake --install build --component no_such_component\n")
        self.wrong("", "VMM_NO_SUCH_VARIABLE=1 ./run demo\n")
        self.wrong("", "packaging/no_such_script.sh\n")
        self.wrong("", "python -m libvmm no_such_command\n")
        self.wrong("rust", "fn main() {}\n")
        self.right("sh", "VMM_BACKEND=host ./run demo  # here\n")


class Tree(unittest.TestCase):
    def test_each_block_is_what_runs(self):
        found, count = [], 0
        for page in pages.paths():
            for block in pages.blocks_of(pages.text_of(page), page):
                count += 1
                if wrong := check(block):
                    found.append(f"{block.page}:{block.line}: {wrong}")
        self.assertGreater(count, 40)
        self.assertEqual(found, [], "\n" + "\n".join(found))


if __name__ == "__main__":
    unittest.main()
