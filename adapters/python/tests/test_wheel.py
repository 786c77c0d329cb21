# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: one wheel that installs into an empty environment and serves Python, CMake and C there.
Method: the wheel of LIBVMM_BUILD is made and installed with no index; the package runs in that
environment; what the libraries need is read from their own tables; a CMake project and a compiler
use what was installed."""

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get("LIBVMM_BUILD", "")

pytestmark = pytest.mark.skipif(not BUILD, reason="LIBVMM_BUILD names no build to make a wheel of")


def run(*words, **named):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **named)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    run(
        os.path.join(ROOT, "adapters", "python", "stage.sh"),
        BUILD,
        out,
        env={**os.environ, "VMM_WHEEL_PYTHON": sys.executable},
    )
    made = glob.glob(str(out / "*.whl"))
    assert len(made) == 1
    return made[0]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    pytest.importorskip("ensurepip")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
    return python


def clean():
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LIBVMM")
    }


def test_the_tag_is_what_the_libraries_need(wheel, tmp_path):
    name = re.search(r"-py3-none-manylinux_2_(\d+)_\w+\.whl$", wheel)
    assert name
    zipfile.ZipFile(wheel).extractall(tmp_path)
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("there is no readelf")
    newest = 0
    for library in glob.glob(str(tmp_path / "libvmm" / "lib" / "*.so*")):
        if os.path.getsize(library) < 4096:  # The linker's script.
            continue
        versions = run(readelf, "--version-info", "--wide", library)
        versions = versions[versions.index("Version needs section") :]  # not what it defines
        needed = run(readelf, "--dynamic", "--wide", library)
        newest = max([newest, *map(int, re.findall(r"Name: GLIBC_2\.(\d+)", versions))])
        for each in re.findall(r"NEEDED.*\[(.*)\]", needed):
            assert re.match(r"(libc|libm|libdl|libpthread|ld-linux[^.]*)\.so", each), each
    assert int(name.group(1)) == max(28, newest)
    if sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64"):
        assert newest <= 28, (
            "adapters/c/src/older_libc.cpp has what the C library's newer names go to"
        )


def test_the_tag_names_the_processor_of_the_libraries():
    """Not that of the machine that builds them."""
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location(
        "hatch_build", os.path.join(os.path.dirname(HERE), "hatch_build.py")
    )
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + b"\x03\x00"
    named = [hook.machine_of(head + bytes([each, 0])) for each in (62, 183, 8)]
    assert named == ["x86_64", "aarch64", "machine 8"]
    assert hook.machine_of(b"INPUT(libvmm.so.1)") is None


def test_auditwheel_agrees(wheel):
    """It looks for the symbols' versions by itself."""
    pytest.importorskip("auditwheel")
    said = run(sys.executable, "-m", "auditwheel", "show", wheel)
    found = re.search(
        r'consistent with\s+the following platform tag:\s+"manylinux_2_(\d+)_',
        re.sub(r"\s+", " ", said),
    )
    assert found and int(found.group(1)) <= 28, said


def test_it_runs_in_an_empty_environment(installed, tmp_path):
    code = (
        "import libvmm\n"
        "for name in ('host', 'fake'):\n"
        "    with libvmm.Driver(name) as driver, libvmm.Pool(driver) as pool:\n"
        "        with pool.allocate(3 << 20) as block:\n"
        "            driver.write(block.address, b'there')\n"
        "            assert driver.read(block.address, 5) == b'there'\n"
        "try:\n"
        "    libvmm.Driver('cuda')\n"
        "except libvmm.Unavailable as reason:\n"
        "    print('missing:', reason)\n"
        "print(libvmm.__version__)\n"
    )
    said = run(installed, "-c", code, env=clean(), cwd=tmp_path)
    said += run(installed, "-m", "libvmm", "doctor", env=clean(), cwd=tmp_path)
    assert "driver host: available" in said and "torch: not installed" in said


def test_one_variable_reaches_it(installed, tmp_path):
    """By the .pth file, and by the entry point, which PyTorch calls at the end of its import."""
    (tmp_path / "torch.py").write_text(
        "import types\n__version__, version = '2.11.0', types.SimpleNamespace(cuda=None)\n"
    )
    code = (
        "from importlib.metadata import entry_points\n"
        "import sys, torch\n"
        "found = entry_points()\n"
        "found = found.select(group='torch.backends') if hasattr(found, 'select') else "
        "found['torch.backends']\n"
        "print('libvmm' in sys.modules, [each.load()() for each in found])\n"
        "print(sys.modules['_libvmm_start'].served)\n"
    )
    said = run(installed, "-c", code, env={**clean(), "VMM": "1"}, cwd=tmp_path)
    assert said.startswith("True [None]") and "is built without CUDA" in said


FAILING_MALLOC = r"""
#include <stddef.h>
extern void* __libc_malloc(size_t);
static __thread long left = -1;
void fail_at(long count) { left = count; }
void* malloc(size_t size) {
  if (left > 0 && --left == 0) return NULL;
  return __libc_malloc(size);
}
"""


def test_what_is_thrown_inside_is_caught_inside(installed, tmp_path):
    """With the library's own way of finding the tables of exceptions: a host allocation that fails
    becomes an answer."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "failing.c").write_text(FAILING_MALLOC)
    run(compiler, "-shared", "-fPIC", "-O1", tmp_path / "failing.c", "-o", tmp_path / "failing.so")
    code = (
        "import ctypes, libvmm, sys\n"
        "from libvmm.suspend import Suspender, _LIBRARY as library\n"
        "fail_at = ctypes.CDLL(sys.argv[1]).fail_at\n"
        "fail_at.argtypes = [ctypes.c_long]\n"
        "driver, answers = libvmm.Driver('fake'), []\n"
        "for number in range(1, 30):\n"
        "    with libvmm.Manager(driver) as manager, Suspender() as sleeper:\n"
        "        block = manager.allocate(4 << 20)\n"
        "        sleeper.add(manager, 'tag')\n"
        "        handle = sleeper.handle\n"
        "        fail_at(number)\n"
        "        answers.append(library.vmm_suspender_suspend(handle, None, None))\n"
        "        fail_at(-1)\n"
        "        sleeper.resume() if answers[-1] == 0 else None\n"
        "        block.free()\n"
        "print(sorted(set(answers)), answers.count(4) > 5)\n"
    )
    said = run(
        installed,
        "-c",
        code,
        tmp_path / "failing.so",
        env={**clean(), "LD_PRELOAD": str(tmp_path / "failing.so")},
        cwd=tmp_path,
    )
    assert said.strip() == "[0, 4] True", said


def test_the_version_is_the_library_s(installed, tmp_path):
    code = (
        "import importlib.metadata, libvmm\n"
        "print(importlib.metadata.version('libvmm') == libvmm.__version__)"
    )
    assert run(installed, "-c", code, env=clean(), cwd=tmp_path).strip() == "True"


def test_cmake_finds_the_package(installed, tmp_path):
    if shutil.which("cmake") is None or shutil.which("cc") is None:
        pytest.skip("there is no cmake, or no C compiler")
    code = (
        "from importlib.metadata import entry_points\n"
        "import importlib, os\n"
        "found = entry_points()\n"
        "found = found.select(group='cmake.prefix') if hasattr(found, 'select') else "
        "found['cmake.prefix']\n"
        "print(os.path.dirname(importlib.import_module(next(iter(found)).value).__file__))"
    )
    prefix = run(installed, "-c", code, env=clean(), cwd=tmp_path).strip()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(user C)\nfind_package(vmm_c REQUIRED)\n"
        f'add_executable(first "{ROOT}/tests/c/samples/first.c")\n'
        "target_link_libraries(first PRIVATE vmm::c)\n"
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    run(tmp_path / "build" / "first")
    # And by hand, which takes the linker's script.
    run(
        "cc",
        f"{ROOT}/tests/c/samples/first.c",
        "-I",
        f"{prefix}/include",
        "-L",
        f"{prefix}/lib",
        "-lvmm",
        f"-Wl,-rpath,{prefix}/lib",
        "-o",
        tmp_path / "by_hand",
    )
    run(tmp_path / "by_hand")
