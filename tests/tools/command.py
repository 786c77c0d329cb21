# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""A command run by the shell, with what it printed, in a folder of the test's own."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = "a 1 3145728 0\na 2 1 0\nf 1\n"  # a trace that leaves a block live


class Finished(NamedTuple):
    code: int
    out: str
    err: str


class CommandTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        # Tests of another build or another user may run at the same time.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"vmm-{self._testMethodName[5:30]}-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return str(self.folder / name)

    def file(self, name, content=""):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def script(self, name, body=""):
        os.chmod(self.file(name, f"#!/usr/bin/env bash\n{body}\n"), 0o700)
        return self.path(name)

    def read(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def run_command(self, command, environment=""):
        """The command for the shell, with no other variables than these and a search path."""
        command = f'exec env -i PATH="$PATH" HOME="$PWD" {environment} {command}'
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Finished(code, self.read("out"), self.read("err"))

    def assert_starts(self, text, start, why=None):
        self.assertEqual(text[: len(start)], start, why or text)
