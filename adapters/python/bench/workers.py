# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Processes with an allocator each that run a benchmark's commands, for the programs beside this
file.

Importing PyTorch takes seconds. A server for each allocator imports it once, in the environment
that the allocator needs, and forks a worker for every call of start(); it uses no device itself.
A worker runs one function of one module here with a connection to the caller, and ends.
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Client, Listener

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.join(ROOT, "gpu_tests", "python"))

import common  # noqa: E402

# An allocator and what it does in a worker. "again" is PyTorch's own a second time: how far two
# runs of the same program are from each other.
ALLOCATORS = {"native": "native", "again": "native", "expandable": "expandable", "vmm": "vmm"}


class Ended(Exception):
    """A worker has ended or said nothing for too long; the text says why."""


class Worker:
    """The caller's end of a worker."""

    def __init__(self, name, connection, errors):
        self.name = name
        self._connection = connection
        self._errors = errors

    def send(self, message):
        try:
            self._connection.send(message)
        except OSError as gone:
            raise Ended(self._why()) from gone

    def receive(self, end):
        """The next message. `end` is of time.monotonic()."""
        try:
            if not self._connection.poll(max(0.0, end - time.monotonic())):
                raise Ended(f"{self.name}: nothing came in the time there was")
            message = self._connection.recv()
        except (EOFError, ConnectionError) as gone:
            raise Ended(self._why()) from gone
        if isinstance(message, dict) and "failure" in message:
            raise Ended(f"{self.name}: {message['failure']}")
        return message

    def close(self):
        self._connection.close()

    def _why(self):
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            return f"{self.name} ended: {file.read()[-1500:]}"


class Servers:
    """The servers of some allocators."""

    def __init__(self, allocators):
        self._folder = tempfile.mkdtemp(prefix="vmm-bench-")
        self._count = 0
        self._processes = {}
        for kind in sorted({ALLOCATORS[name] for name in allocators}):
            self._processes[kind] = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__)],
                stdin=subprocess.PIPE,
                text=True,
                env=common.environment(kind),
                cwd=HERE,
            )

    def start(self, allocator, module, function, end, **words):
        """A worker that calls module.function(connection, **words)."""
        self._count += 1
        address = os.path.join(self._folder, f"{self._count}")
        errors = address + ".txt"
        server = self._processes[ALLOCATORS[allocator]]
        with Listener(address, "AF_UNIX") as listener:
            request = {
                "address": address,
                "errors": errors,
                "module": module,
                "function": function,
                "words": words,
            }
            try:
                server.stdin.write(json.dumps(request) + "\n")
                server.stdin.flush()
            except OSError as gone:
                raise Ended(f"the server of {allocator} has ended") from gone
            listener._listener._socket.settimeout(max(1.0, end - time.monotonic()))
            try:
                connection = listener.accept()
            except OSError as late:
                raise Ended(f"{allocator}: no worker came in the time there was") from late
        return Worker(allocator, connection, errors)

    def close(self):
        for server in self._processes.values():
            server.stdin.close()
        for server in self._processes.values():
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _work(request):
    """In the worker."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    os.dup2(errors, 1)
    connection = Client(request["address"], "AF_UNIX")
    try:
        common.enable(os.environ["CHECK_ALLOCATOR"])
        function = getattr(importlib.import_module(request["module"]), request["function"])
        function(connection, **request["words"])
    except BaseException as failure:
        traceback.print_exc()
        try:
            connection.send({"failure": f"{type(failure).__name__}: {failure}"[:1000]})
        except OSError:  # the caller has gone
            pass
    sys.stderr.flush()


def serve():
    """Forks a worker for each line of stdin; ends, and all of its workers, with it."""
    importlib.import_module(os.environ.get("VMM_BENCH_STAND_IN") or "torch")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    children = []
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _work(json.loads(line))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    serve()
