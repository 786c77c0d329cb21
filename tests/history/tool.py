# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""vmm-history over files of a folder of the test's own: the samples, and what is written there.

The command line of each test begins with VMM_HISTORY WRITE_SAMPLE."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

TOOL, SAMPLE = sys.argv[1:3]
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="vmm_history_"))


def begin():
    subprocess.run([SAMPLE, FOLDER], check=True)


def end():
    shutil.rmtree(FOLDER)


def export(word, *names):
    """The path of what a word of the program writes."""
    out = FOLDER / ("_".join(names) + (".html" if word == "page" else "." + word))
    words = [TOOL, word, *(FOLDER / name for name in names), "--out", out]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return out


def summary(name):
    words = [TOOL, "summary", FOLDER / name]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def facts(name):
    return dict(line.strip().rsplit(": ", 1) for line in summary(name).splitlines())
