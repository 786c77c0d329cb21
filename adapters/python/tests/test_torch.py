# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: libvmm.torch says what is missing; and where PyTorch and a compiler are, its allocator is
compiled, put in and taken out again, without a GPU.
Method: modules that stand in for PyTorch; a compiler that fails; the real PyTorch where there is
one (skipped elsewhere). What needs a GPU is gpu_tests/python/run.py's."""

import os
import re
import shutil
import signal
import subprocess
import sys
import types

import libvmm.torch
import pytest
from libvmm.torch import _ahead, _build, _headers


def stand_in(cuda="13.0", available=False):
    made = types.ModuleType("torch")
    made.__version__ = "2.11.0"
    made.__file__ = "/nowhere/torch/__init__.py"
    made.version = types.SimpleNamespace(cuda=cuda)
    made.cuda = types.SimpleNamespace(
        is_available=lambda: available, is_initialized=lambda: available
    )
    made.compiled_with_cxx11_abi = lambda: True
    return made


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="PyTorch, which is not installed"):
        libvmm.torch.enable()


@pytest.mark.parametrize(
    ("words", "reason"), [({"cuda": None}, "without CUDA"), ({}, "no CUDA device")]
)
def test_without_a_gpu(monkeypatch, words, reason):
    monkeypatch.setitem(sys.modules, "torch", stand_in(**words))
    with pytest.raises(libvmm.torch.Refused, match=reason):
        libvmm.torch.enable()
    assert libvmm.torch.way() == ""


def test_a_way_that_is_none():
    with pytest.raises(libvmm.torch.Refused) as raised:
        libvmm.torch.enable("allocators")
    assert str(raised.value) == "way is one of auto, allocator, functions; not 'allocators'"


@pytest.mark.parametrize(("before", "inside"), [(True, True), (False, True), (True, False)])
def test_native_ends_what_it_began(monkeypatch, before, inside):
    """Also where enable() comes inside: a thread that is inside -1 times is never inside again, and
    the allocator then takes a route to a pool for none."""
    routed = []
    compiled = types.SimpleNamespace(vmm_torch_route_native=routed.append)
    monkeypatch.setattr(libvmm.torch._state, "compiled", compiled if before else None)
    with libvmm.torch.native():
        monkeypatch.setattr(libvmm.torch._state, "compiled", compiled if inside else None)
    assert routed == ([1, -1] if before else [])


def test_what_cannot_be_built_is_refused_or_warned_of(monkeypatch):
    """With functions as the other way, which here come too late."""
    monkeypatch.setitem(sys.modules, "torch", stand_in(available=True))
    monkeypatch.setattr(_build, "find_compiler", lambda: None)
    with pytest.raises(libvmm.torch.Refused, match="C.. compiler"):
        libvmm.torch.enable("allocator")
    with pytest.warns(RuntimeWarning, match="C.. compiler"):
        with pytest.raises(libvmm.torch.Refused, match="initialised already"):
            libvmm.torch.enable()


def test_what_is_missing_is_named_with_the_places(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(_build.os.path, "exists", lambda path: False)
    with pytest.raises(_build.CannotBuild) as caught:
        _build.command(str(tmp_path / "torch"), "2.11.0", True)
    said = str(caught.value)
    assert said.startswith("CXX=no-such-compiler names no program: set CXX to a C++ compiler")
    wheels = tmp_path / "nvidia" / "cu13" / "include"
    assert f"; no cuda_runtime_api.h is in {wheels}, " in said
    assert f"{tmp_path}/toolkit/include, /usr/local/cuda/include, /usr/include: set CUDA" in said
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(_build.shutil, "which", lambda name: None)
    assert _build.why_no_compiler() == "there is no C++ compiler: install g++, or set CXX to one"


@pytest.mark.parametrize("version", ["1.13.0", "2.6.1+cu126", "nonsense"])
def test_an_old_torch(version):
    with pytest.raises(_build.CannotBuild, match="2.7 and later"):
        _build.command("/nowhere", version, True)


def test_each_function_that_the_class_overrides_is_found():
    """One that is not found is taken for one that this version does not forward."""
    with open(_build.SOURCE, encoding="utf-8") as file:
        code = [line.partition("//")[0] for line in file]
    of_one_line = re.compile(r"  (?:\w[^()]*[ *])?(?P<name>\w+)\([^()]*\) (const )?override\b")
    expected = {found["name"] for found in map(of_one_line.match, code) if found}
    assert len(expected) > 40
    assert expected <= _headers.overridden_functions(_build.SOURCE)


def test_a_torch_with_a_function_that_is_not_forwarded(tmp_path):
    """As a later PyTorch has it: the default compiles, and does nothing or raises."""
    header = tmp_path / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    header.parent.mkdir(parents=True)
    header.write_text("""class CUDAAllocator : public DeviceAllocator {
 public:
  virtual void* raw_alloc(size_t nbytes) = 0;
  // virtual void remark(int);
  virtual std::pair<int, int> markSomething(
      c10::DeviceIndex /*device*/) {}
  virtual ~CUDAAllocator() = default;
};
""")
    with pytest.raises(_build.CannotBuild, match="does not forward: markSomething. A newer"):
        _build.command(str(tmp_path), "2.99.0", True)


def test_a_class_that_was_built_ahead_is_chosen_by_its_headers(tmp_path):
    classes, torch = tmp_path / "classes", tmp_path / "torch"
    header, setting = (torch / "include" / name for name in ("c10/A.h", _ahead.GENERATED))
    for path in (header, setting, classes / "2.11.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    names = ["c10/A.h"]
    listed = [_ahead.hash_of(str(torch / "include"), names), *names]
    (classes / "2.11.headers").write_text("\n".join(listed))

    def find(version="2.11.0+cu130", is_new_abi=True):
        return _ahead.find(str(torch), version, is_new_abi, str(classes))

    assert find() == (str(classes / "2.11.so"), "") == find("2.11.0a0+nightly")
    assert "no class was built ahead for PyTorch 2.10 (there are: 2.11)" in find("2.10.0")[1]
    assert "older ABI" in find(is_new_abi=False)[1]
    setting.write_text("// #define C10_CUDA_BUILD_SHARED_LIBS\n")
    assert "are not those of the class for 2.11" in find()[1]
    setting.write_text("#define C10_CUDA_BUILD_SHARED_LIBS\n")
    header.write_text("int another;\n")
    assert "are not those of the class for 2.11" in find()[1]
    header.unlink()
    assert "cannot be compared" in find()[1]
    for broken in (b"", b"\xff\xfe", b"hash a\0b"):
        (classes / "2.11.headers").write_bytes(broken)
        assert "cannot be compared" in find()[1]


def test_a_child_enables_beside_a_thread_that_compiles(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", stand_in(available=True))
    monkeypatch.setattr(_build, "find_compiler", lambda: None)
    with libvmm.torch._state.lock:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(20)
                libvmm.torch.enable("allocator")
            except libvmm.torch.Refused:
                os._exit(7)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_doctor_says_of_versions():
    from libvmm.torch import _headers

    assert "tested on a GPU" in _headers.support("2.11.0+cu130")
    assert "marks of captures" in _headers.support("2.12.1")
    assert _headers.support("2.15.0").endswith("not run on a GPU")
    assert "'functions' only" in _headers.support("2.6.0")
    assert "newer than 2.15" in _headers.support("2.16.0a0")


def compiled_by_a_script(monkeypatch, tmp_path):
    """A torch folder, and a compiler that writes its output."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho made >"$last"\n')
    compiler.chmod(0o755)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_runtime_api.h").write_text("")
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    cache = tmp_path / "cache"
    monkeypatch.setenv("LIBVMM_CACHE", str(cache))
    return cache, lambda: _build.build(str(tmp_path), "2.11.0", True)


def test_the_cache_is_the_user_s_alone(monkeypatch, tmp_path):
    cache, build = compiled_by_a_script(monkeypatch, tmp_path)
    before = os.umask(0)
    try:
        made = build()
    finally:
        os.umask(before)
    assert oct(cache.stat().st_mode)[-3:] == "700" and oct(os.stat(made).st_mode)[-3:] == "700"
    inode = os.stat(made).st_ino
    assert build() == made and os.stat(made).st_ino == inode, "taken again"


def test_a_change_of_any_source_compiles_anew(monkeypatch, tmp_path):
    _, build = compiled_by_a_script(monkeypatch, tmp_path)
    copied = tmp_path / "sources"
    shutil.copytree(os.path.dirname(_build.SOURCE), copied)
    monkeypatch.setattr(_build, "SOURCE", str(copied / "allocator.cpp"))
    made = {build()}
    sources = [copied / "allocator.cpp", *copied.glob("*.hpp")]
    for source in sources:
        source.write_text(source.read_text(encoding="utf-8") + "\n", encoding="utf-8")
        made.add(build())
    assert len(sources) > 1 and len(made) == len(sources) + 1


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o703])
def test_a_cache_that_others_can_write_to_is_refused(monkeypatch, tmp_path, mode):
    cache, build = compiled_by_a_script(monkeypatch, tmp_path)
    build()
    cache.chmod(mode)
    with pytest.raises(_build.CannotBuild, match="can be written by others"):
        build()


def test_a_cache_below_a_folder_of_everybody_is_refused(monkeypatch, tmp_path):
    _cache, build = compiled_by_a_script(monkeypatch, tmp_path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("LIBVMM_CACHE", str(tmp_path / "open" / "cache"))
    with pytest.raises(_build.CannotBuild, match="open can be written by everybody"):
        build()
    (tmp_path / "open").chmod(0o1777)  # as /tmp
    assert os.path.exists(build())


def test_a_library_that_others_can_write_to_is_made_anew(monkeypatch, tmp_path):
    _, build = compiled_by_a_script(monkeypatch, tmp_path)
    made = build()
    for planted in ("written by all", "a link", "another user's"):
        os.remove(made)
        with open(tmp_path / "evil.so", "w", encoding="utf-8") as file:
            file.write("evil")
        if planted == "a link":
            os.symlink(tmp_path / "evil.so", made)
        else:
            os.rename(tmp_path / "evil.so", made)
            os.chmod(made, 0o777 if planted == "written by all" else 0o700)
        if planted == "another user's":
            if os.geteuid() != 0:
                continue
            os.chown(made, 65534, -1)
        assert build() == made
        with open(made, encoding="utf-8") as file:
            assert file.read() == "made\n", planted


def test_a_cache_of_another_user_is_refused(monkeypatch, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    cache, build = compiled_by_a_script(monkeypatch, tmp_path)
    build()
    os.chown(cache, 65534, -1)
    with pytest.raises(_build.CannotBuild, match="belongs to user 65534"):
        build()


def test_root_publishes_no_folder_of_a_user_s(monkeypatch, tmp_path):
    """`sudo -E` keeps HOME: a cache of root's in there would be closed to the user."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    monkeypatch.delenv("LIBVMM_CACHE", raising=False)
    for name, below in (("XDG_CACHE_HOME", "libvmm"), ("HOME", ".cache/libvmm")):
        home = tmp_path / name
        home.mkdir()
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setenv(name, str(home))
        assert _build.cache_folder() == str(home / below)
        os.chown(home, 65534, -1)
        assert _build.cache_folder() == "/root/.cache/libvmm"


def test_a_user_without_a_home_has_no_cache_in_the_current_folder(monkeypatch):
    monkeypatch.delenv("LIBVMM_CACHE", raising=False)
    for base, home, found in (
        ("/cache", "/home/me", "/cache/libvmm"),
        ("cache", "/home/me", "/home/me/.cache/libvmm"),
        ("", "/home/me", "/home/me/.cache/libvmm"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        monkeypatch.setenv("HOME", home)
        assert _build.cache_folder() == found
    monkeypatch.setenv("HOME", "~")  # as where no entry of the user has one
    with pytest.raises(_build.CannotBuild, match="no home folder: set LIBVMM_CACHE"):
        _build.cache_folder()


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'what it says' >&2\nexit 1\n")
    compiler.chmod(0o755)
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "cuda_runtime_api.h").write_text("")
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("LIBVMM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(_build.CannotBuild, match="what it says"):
        _build.build(str(tmp_path), "2.11.0", True)
    assert os.listdir(tmp_path / "cache") == []


def test_run_says_why_not(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    (tmp_path / "torch.py").write_text("class version:\n    cuda = None\n__version__ = '0'\n")
    said = subprocess.run(
        [sys.executable, "-m", "libvmm", "run", str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:" + os.environ.get("PYTHONPATH", "")},
    )
    assert said.returncode == 2 and "without CUDA" in said.stderr


# What `run` needs of PyTorch until a variable is refused.
OF_A_GPU = """import types
__version__ = "0"
version = types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
compiled_with_cxx11_abi = lambda: True
"""


def test_run_names_a_wrong_variable_in_a_line(tmp_path):
    """A compiler that is not there leaves plain functions, behind a warning with the reason."""
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    (tmp_path / "torch.py").write_text(OF_A_GPU)
    paths = f"{tmp_path}:" + os.environ.get("PYTHONPATH", "")
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "libvmm", "run", str(script)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "VMM_POOL_POLICY": "best",
            "LIBVMM_CACHE": str(tmp_path / "cache"),
            "CXX": "no-compiler",
        },
    )
    assert said.returncode == 2 and said.stdout == ""
    assert said.stderr.startswith("libvmm run: ") and said.stderr.count("\n") == 1, said.stderr
    assert "VMM_POOL_POLICY" in said.stderr


def test_it_compiles_and_goes_in_and_out(tmp_path):
    """In a process of its own: PyTorch is large, and keeps the allocator."""
    pytest.importorskip("torch")
    code = (
        "import ctypes, os, torch, libvmm.torch as ours\n"
        "from libvmm.torch import _build\n"
        "if torch.version.cuda is None: raise SystemExit(77)\n"
        "ours._install_allocator(torch)\n"
        "assert torch.cuda.get_allocator_backend() == 'vmm'\n"
        "ours._compiled.vmm_torch_remove()\n"
        "assert torch.cuda.get_allocator_backend() == 'native'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "LIBVMM_CACHE": str(tmp_path)},
    )
    if done.returncode == 77:
        pytest.skip("PyTorch is built without CUDA")
    assert done.returncode == 0, done.stderr


def headers(folder, version, with_crt):
    folder.mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    if with_crt:
        (folder / "crt").mkdir()
        (folder / "crt" / "host_config.h").write_text("")
    return str(folder)


def test_the_missing_part_of_cuda_s_headers(monkeypatch, tmp_path):
    """As NVIDIA packages them: crt/ apart. That of another major version is not taken."""
    whole = headers(tmp_path / "whole", 13000, True)
    assert _build.find_crt(str(tmp_path / "torch"), whole) is None
    part = headers(tmp_path / "part", 13000, False)
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_build.shutil, "which", lambda name: None)
    monkeypatch.setattr(_build.glob, "glob", lambda pattern: [])
    toolkit = headers(tmp_path / "toolkit" / "include", 13010, True)
    headers(tmp_path / "old" / "include", 12090, True)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "old"))
    ours = _build.find_crt(str(tmp_path / "torch"), part)
    if not os.path.exists("/usr/local/cuda/include/crt/host_config.h"):
        assert os.path.exists(os.path.join(ours, "crt", "host_defines.h"))
    assert ours != str(tmp_path / "old" / "include")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert _build.find_crt(str(tmp_path / "torch"), part) == toolkit
