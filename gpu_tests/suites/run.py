# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs libraries' own tests on a GPU, plain and with vmm under them, and prints what differs.

    python3 gpu_tests/suites/run.py FOLDER [--suites torch,cupy,numba,rmm,tms] [--ways WAY,...]
            [--select EXPRESSION] [--workers 4] [--cores 14] [--seconds 540] [--out FOLDER]

FOLDER has the tests, which are not part of this project (docs/python.md names the sources):

    wheels/*.whl     of libvmm and of what the machine lacks, installed into a temporary folder
    torch/           test_cuda*.py of PyTorch's test/, of the version that is installed
    cupy/            CuPy's tests/
    rmm/             RMM's python/rmm/rmm/tests
    tms/             torch_memory_saver's test/
    numba            nothing: numba-cuda's wheel has its tests

--ways variable is VMM=1, for an interpreter that has the wheel (gpu_tests/gpu.sh one_variable
suites). A suite whose folder, or library, is missing is left out, and the table says so. --select
is pytest's -k, beside what is left out here. libvmm is that of wheels/, else of this tree.
Exit code 1 where a test that passes plain fails with vmm or is lost, or none passes plain."""

import argparse
import glob
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
# Of each suite: the ways, what pytest is given, what is left out of it.
NUMBA_CUDAPY = (
    "array array_args array_methods atomics cooperative_groups cuda_array_interface datetime "
    "device_array_capture dispatcher forall gufunc laplace matmul multithreads record_dtype "
    "reduction slicing sm stream_api sync transpose ufuncs vectorize"
)
NUMBA = [f"numba.cuda.tests.{each}" for each in ("cudadrv", "nrt", "doc_examples")]
NUMBA += [f"numba.cuda.tests.cudapy.test_{each}" for each in NUMBA_CUDAPY.split()]
CUPY = [
    f"cupy_tests/{each}"
    for each in (
        "cuda_tests/test_memory.py cuda_tests/test_memory_hook.py cuda_tests/test_stream.py "
        "cuda_tests/test_graph.py cuda_tests/test_pinned_memory.py cuda_tests/test_cufft.py "
        "cuda_tests/test_texture.py core_tests creation_tests indexing_tests sorting_tests "
        "linalg_tests manipulation_tests fft_tests/test_fft.py math_tests/test_matmul.py "
        "math_tests/test_sumprod.py random_tests/test_random.py"
    ).split()
]
SUITES = {
    "torch": (
        ("plain", "allocator", "functions"),
        ["test_cuda.py", "test_cuda_trace.py", "test_cuda_multigpu.py", "test_mempool.py"],
        "cublas_workspace or huge or large_reduc",
    ),
    "cupy": (
        ("plain", "adapter"),
        CUPY,
        "anaged or large_chunk or jitify or MultiGpu or multi_device or huge or argpartition_large",
    ),
    "numba": (
        ("plain", "adapter"),
        ["-o", "consider_namespace_packages=true", "--pyargs", *NUMBA],
        "anaged or linker",
    ),
    "rmm": (("plain", "adapter"), ["."], "anaged or prefetch"),
    "tms": (("plain", "adapter"), ["test_examples.py"], "xpu or rss or preload_backend"),
}
MODULES = {"torch": "torch", "cupy": "cupy", "numba": "numba_cuda", "rmm": "rmm", "tms": "torch"}
VARIABLE = "variable"  # a way of every suite, where it is named
ORDER = ("passed", "skipped", "failed", "error")


def install(folder, into):
    """The wheels of the folder, apart from the system's packages."""
    wheels = sorted(glob.glob(os.path.join(folder, "wheels", "*.whl")))
    if wheels:
        words = "install --quiet --no-index --no-deps --no-compile --upgrade --target".split()
        subprocess.run([sys.executable, "-m", "pip", *words, into, *wheels], check=True)
        sys.path.insert(0, into)


def find_vmm():
    """Without a wheel of it: the package of this tree, over what was built here."""
    if importlib.util.find_spec("libvmm") is None:
        root = os.path.dirname(os.path.dirname(HERE))
        for name in (".gpu/libvmm.so.1", "build/release/c/libvmm.so.1"):
            if os.path.exists(os.path.join(root, name)):
                os.environ.setdefault("LIBVMM", os.path.join(root, name))
                own = os.path.join(root, "adapters", "python", "src")
                paths = filter(None, (own, os.environ.get("PYTHONPATH")))
                os.environ["PYTHONPATH"] = ":".join(paths)
                return
        sys.exit("libvmm is missing: put its wheel (./run wheel) into wheels/")


# What the tests import beside the saver is the library's own.
FACE = """
__path__.append({real!r})
from libvmm.torch_memory_saver import *
from libvmm.torch_memory_saver import configure_subprocess, torch_memory_saver
"""


def face(into, site):
    """A package torch_memory_saver with libvmm's saver, for tests that import it by that name."""
    folder = os.path.join(into, "torch_memory_saver")
    os.makedirs(folder)
    with open(os.path.join(folder, "__init__.py"), "w", encoding="utf-8") as file:
        file.write(FACE.format(real=os.path.join(site, "torch_memory_saver")))
    return into


def job(suite, way, wanted, site, logs):
    """The command, folder and environment of one run."""
    _, paths, left_out = SUITES[suite]
    chosen = f"({wanted.select}) and not ({left_out})" if wanted.select else f"not ({left_out})"
    options = "-p plugin -q --tb=line -p no:cacheprovider --continue-on-collection-errors -k"
    words = [sys.executable, "-m", "pytest", *options.split(), chosen]
    if importlib.util.find_spec("pytest_timeout"):
        words += ["--timeout=90", "--timeout-method=thread"]
    if importlib.util.find_spec("xdist") and wanted.workers > 1 and suite not in ("rmm", "tms"):
        words += ["-n", str(wanted.workers), "--dist", "loadscope" if suite == "numba" else "load"]
    folder = HERE if suite == "numba" else os.path.join(wanted.folder, suite)
    found = paths
    if suite not in ("numba", "rmm"):
        found = [each for each in paths if os.path.exists(os.path.join(folder, each))]
    python_path = [HERE, site]
    if suite == "tms" and way == "adapter":
        python_path.insert(0, face(tempfile.mkdtemp(), site))
    environment = {
        **os.environ,
        **NO_MULTICAST,
        "SUITE_NAME": suite,
        "SUITE_WAY": way,
        "SUITE_LOG": os.path.join(logs, f"{suite}-{way}.tsv"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUPY_TEST_RANDOM_SUBSAMPLE": "1",
        "_CUPY_TEST_SUBSAMPLE_SEED": "7",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": ":".join((*python_path, os.environ.get("PYTHONPATH", ""))),
    }
    if suite == "numba" and way == "adapter":
        environment["NUMBA_CUDA_MEMORY_MANAGER"] = "libvmm.numba"
    if way == VARIABLE:
        environment["VMM"] = "1"
    return {
        "name": f"{suite}-{way}",
        "words": words + found,
        "folder": folder,
        "environment": environment,
        # torch_memory_saver's tests measure the whole device's memory: nothing runs beside them.
        "cores": {"rmm": 1, "tms": wanted.cores}.get(suite, wanted.workers),
    }


def end(running):
    """The run and what it started, which is a session of its own."""
    try:
        os.killpg(running["process"].pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    running["process"].wait()


def run_all(jobs, wanted, logs):
    """Side by side while there are cores, until the time is over. Answers notes by name."""
    notes, running, todo = {}, [], list(jobs)
    limit = time.monotonic() + wanted.seconds
    while todo or running:
        late = time.monotonic() > limit
        for each in list(running):
            code = each["process"].poll()
            if code is None and not late:
                continue
            end(each)
            running.remove(each)
            took = f"{time.monotonic() - each['begun']:.0f} s"
            ended = "time is over" if code is None else f"ended with {code}"
            notes[each["name"]] = took if code in (0, 1) else f"{took}, {ended}"
        for each in list(todo):
            if late:
                notes[each["name"]] = "not started: time is over"
                todo.remove(each)
            elif not running or sum(e["cores"] for e in running) + each["cores"] <= wanted.cores:
                todo.remove(each)
                with open(os.path.join(logs, each["name"] + ".txt"), "w", encoding="utf-8") as out:
                    each["process"] = subprocess.Popen(
                        each["words"],
                        cwd=each["folder"],
                        env=each["environment"],
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                each["begun"] = time.monotonic()
                running.append(each)
        time.sleep(0.1)
    return notes


def results(path):
    """The outcome and the text of each test: of several lines the worst."""
    found = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                outcome, node, text = (line.rstrip("\n").split("\t") + ["", ""])[:3]
                worst = ORDER.index(found.get(node, ("passed", ""))[0])
                if outcome in ORDER and (node not in found or ORDER.index(outcome) > worst):
                    found[node] = (outcome, text)
    return found


def compare(suite, way, logs):
    """(tests that pass plain, of them passed, skipped, failed, not reached)"""
    plain = results(os.path.join(logs, f"{suite}-plain.tsv"))
    ours = results(os.path.join(logs, f"{suite}-{way}.tsv"))
    good = [node for node, (outcome, _) in plain.items() if outcome == "passed"]
    counts = dict.fromkeys((*ORDER, "not reached"), 0)
    for node in good:
        outcome, text = ours.get(node, ("not reached", ""))
        counts[outcome] += 1
        if outcome in ("failed", "error") or (outcome == "skipped" and way != "plain"):
            print(f"{outcome.upper()} {suite} {way} {node}\n    {text}")
    return len(good), counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--ways", default="")
    parser.add_argument("--select", default="")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--cores", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--out", default="")
    wanted = parser.parse_args()
    logs = os.path.abspath(wanted.out or tempfile.mkdtemp())
    os.makedirs(logs, exist_ok=True)
    site = tempfile.mkdtemp()
    install(wanted.folder, site)
    find_vmm()
    jobs, left_out = [], []
    for suite in wanted.suites.split(","):
        if suite not in SUITES:
            parser.error(f"there is no suite {suite}; there are: {', '.join(SUITES)}")
        if importlib.util.find_spec(MODULES[suite]) is None:
            left_out.append(f"{suite}: {MODULES[suite]} is not installed")
        elif suite != "numba" and not os.path.isdir(os.path.join(wanted.folder, suite)):
            left_out.append(f"{suite}: {wanted.folder} has no folder {suite}")
        else:
            jobs += [
                job(suite, way, wanted, site, logs)
                for way in (*SUITES[suite][0], VARIABLE)
                if way in ("plain", *(wanted.ways.split(",") if wanted.ways else SUITES[suite][0]))
            ]
    notes = run_all(jobs, wanted, logs)
    rows, differs = [], 0
    for each in jobs:
        suite, way = each["name"].split("-")
        count, found = compare(suite, way, logs)
        wrong = found["failed"] + found["error"]
        late = "time is over" in notes[each["name"]]  # else what is not reached was lost in a crash
        lost = wrong + (0 if late else found["not reached"])
        differs += 1 if count == 0 else 0 if way == "plain" else lost
        rows.append(
            f"| {suite} | {way} | {count} | {found['passed']} | {wrong} | "
            f"{found['skipped']} | {found['not reached']} | {notes[each['name']]} |"
        )
    print(
        "\n| suite | way | pass plain | of them passed | failed | skipped | not reached | |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows)
    )
    for line in left_out:
        print(f"left out: {line}")
    print(f"logs in {logs}")
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(main())
