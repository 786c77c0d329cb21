# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest (`-p plugin`) for run.py: puts vmm under the library whose tests run, as
SUITE_WAY names, and appends one line for each test to SUITE_LOG, so that a run that is ended leaves
the results that it had."""

import os

import pytest

WAY = os.environ.get("SUITE_WAY", "plain")
LOG = os.environ.get("SUITE_LOG")
SUITE = os.environ.get("SUITE_NAME", "")
_kept = []


def _cupy():
    import libvmm
    import libvmm.cupy

    pool = libvmm.Pool(libvmm.Driver("cuda"), capture=libvmm.Capture.PRIVATE)  # as CuPy's own
    _kept.append(libvmm.cupy.enable(pool))


def _rmm():
    """The adapter's resource wherever the tests make a CudaMemoryResource, which is the default."""
    import libvmm
    import libvmm.rmm
    import rmm

    pool = libvmm.Pool(libvmm.Driver("cuda"))
    plain, begin = rmm.mr.CudaMemoryResource, rmm.reinitialize

    def reinitialize(*arguments, **named):
        begin(*arguments, **named)
        if type(rmm.mr.get_current_device_resource()) is plain:
            rmm.mr.set_current_device_resource(libvmm.rmm.resource(pool))

    rmm.mr.CudaMemoryResource = lambda: libvmm.rmm.resource(pool)
    rmm.reinitialize = reinitialize
    rmm.mr.set_current_device_resource(libvmm.rmm.resource(pool))


def _no_managed_memory():
    import rmm

    def skip(*_arguments, **_named):
        pytest.skip("managed memory is left out")

    rmm.mr.ManagedMemoryResource = rmm.mr.SystemMemoryResource = skip


def _torch():
    import libvmm.torch

    libvmm.torch.enable(WAY)


if SUITE == "numba":
    import numpy

    if not hasattr(numpy, "row_stack"):  # Numba 0.68 compiles no kernel with NumPy 2.5 otherwise
        numpy.row_stack = numpy.vstack
if SUITE == "rmm":
    if WAY == "adapter":
        _rmm()
    _no_managed_memory()
elif SUITE == "cupy" and WAY == "adapter":
    _cupy()
elif SUITE == "torch" and WAY in ("allocator", "functions"):
    _torch()


def pytest_addoption(parser):
    if SUITE == "numba":  # of numba-cuda's own conftest.py
        parser.addoption("--dump-failed-filechecks", action="store_true")


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """Of numba-cuda's own conftest.py."""
    request.cls._dump_failed_filechecks = False


def pytest_runtest_setup(item):
    if SUITE == "cupy" and WAY == "adapter":  # tests set CuPy's own pool again at their end
        import cupy

        cupy.cuda.set_allocator(_kept[0].malloc)


def pytest_runtest_logreport(report):
    if not LOG or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    if report.when != "call" and report.outcome == "passed":
        return
    text = ""
    if report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else str(report.longrepr)[-300:]
    outcome = "error" if report.failed and report.when != "call" else report.outcome
    with open(LOG, "a", encoding="utf-8") as file:
        file.write("\t".join((outcome, report.nodeid, " ".join(text.split())[:400])) + "\n")
