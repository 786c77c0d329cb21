# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the outcomes to LIBVMM_TEST_XML, where it is set, in lines as GoogleTest writes them:
./run test counts the tests in there, and names those that were skipped."""

import ctypes
import os
import signal
import subprocess
import sys
from xml.sax.saxutils import quoteattr

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(os.path.dirname(HERE), "src")
FILES = ("_libvmm_boundary.py", "_libvmm_start.py", "libvmm.pth", "libvmm.start")
PRELOAD = os.environ.get("LIBVMM_TEST_PRELOAD", "")
DRIVER = os.environ.get("LIBVMM_TEST_DRIVER", "")  # a stub of CUDA's

RMM = """
import types
devices = []
mr = types.SimpleNamespace(
    CallbackMemoryResource=lambda *functions: functions,
    set_per_device_resource=lambda device, resource: devices.append(device),
)
"""
TORCH = """
import types
__version__ = "2.11.0"
version = types.SimpleNamespace(cuda=None)
"""

_NOTHING_COLLECTED = 5


class Alarm:
    """Calls a handler every 20 ms."""

    class Stop(Exception):
        """Of a handler."""

    def __call__(self, handler):
        def handle(*_):
            try:
                handler()
            except self.Stop:
                self.end()
                raise

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    @staticmethod
    def end():
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def alarm():
    before = signal.getsignal(signal.SIGALRM)
    yield (made := Alarm())
    made.end()
    signal.signal(signal.SIGALRM, before)


class Outcomes:
    def __init__(self, path):
        self.path = path
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.skipped = []  # (file, name, reason)

    def add(self, report, outcome):
        self.counts[outcome] += 1
        if outcome == "skipped":
            file, _, name = report.nodeid.partition("::")
            words = report.longrepr
            reason = words[2] if isinstance(words, tuple) else str(words)
            reason = reason.removeprefix("Skipped: ")
            module = os.path.splitext(os.path.basename(file))[0].removeprefix("test_")
            self.skipped.append((f"python.{module}", name or "all", reason))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.add(report, report.outcome)

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self.add(report, report.outcome)

    def pytest_sessionfinish(self, exitstatus):
        # CTest counts a program that skips as a whole as skipped; what is in here comes on top.
        counted = 0 if int(exitstatus) == _NOTHING_COLLECTED else self.counts["skipped"]
        total = max(1, sum(self.counts.values()))
        lines = [
            f'<testsuites tests="{total}" failures="{self.counts["failed"]}" errors="0">',
            f'  <testsuite skipped="{counted}" disabled="0">',
        ]
        for module, name, reason in self.skipped:
            lines += [
                (
                    f'    <testcase name={quoteattr(name)} result="skipped" '
                    f"classname={quoteattr(module)}>"
                ),
                f"      <skipped message={quoteattr(' '.join(reason.split()))}/>",
                "    </testcase>",
            ]
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, "  </testsuite>", "</testsuites>", ""]))


def pytest_configure(config):
    path = os.environ.get("LIBVMM_TEST_XML")
    if path:
        config.pluginmanager.register(Outcomes(path))


@pytest.fixture(params=["host", "fake"])
def driver(request):
    import libvmm  # a wheel's tests have none here

    with libvmm.Driver(request.param) as opened:
        yield opened


@pytest.fixture
def standin_library(monkeypatch):
    """The path of the tests' stub of CUDA's driver, which the backend opens."""
    path = os.environ.get("LIBVMM_STANDIN", "")
    if not os.path.exists(path):
        pytest.skip("LIBVMM_STANDIN names no stub of CUDA's driver")
    monkeypatch.setenv("VMM_CUDA_LIBRARY", path)
    return path


@pytest.fixture
def standin(standin_library):
    """That stub, with a context, for calls of the program's own."""
    library, context = ctypes.CDLL(standin_library), ctypes.c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxPushCurrent_v2(context) == 0
    yield library
    assert library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert library.cuDevicePrimaryCtxRelease_v2(0) == 0


# ---- VMM=1 ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Its Python, and a folder with the libraries' names."""
    folder = tmp_path_factory.mktemp("environment")
    made = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(made, check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "libvmm" / "lib").mkdir(parents=True)
    for name in (*FILES, *(f"libvmm/{each}" for each in os.listdir(f"{SOURCE}/libvmm"))):
        os.symlink(os.path.join(SOURCE, name), packages / name)
    if PRELOAD:
        os.symlink(PRELOAD, packages / "libvmm/lib/libvmm_preload.so")
    for name, text in (("rmm", RMM), ("torch", TORCH), ("broken", "import rmm\n1 / 0\n")):
        (packages / f"{name}.py").write_text(text)
    return str(folder / "bin" / "python"), packages


@pytest.fixture
def run(environment, tmp_path):
    """Runs Python as a user does, and returns what it wrote to stdout and to stderr."""
    ours = ("VMM", "PYTHON", "_LIBVMM", "LD_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}

    def result(*words, code=0, before=(), **variables):
        variables = {"VMM": "1", "CUDA_VISIBLE_DEVICES": "0,1", **variables}
        set_here = {name: text for name, text in variables.items() if text is not None}
        done = subprocess.run(
            [*before, environment[0], *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**kept, **set_here},
        )
        assert done.returncode == code, done.stderr
        return done.stdout.strip(), done.stderr.strip()

    return result
