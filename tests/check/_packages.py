# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# For the checks: packages of the Python package index, fetched with pip and kept in
# build/packages. Where the index cannot be reached the check is skipped (exit status 77).
from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from typing import NoReturn

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEPT = os.path.join(ROOT, "build", "packages")

SKIPPED = 77
NO_NETWORK = re.compile(
    "ConnectionError|ConnectTimeout|Name or service not|Temporary failure in name resolution"
    "|Network is unreachable|ProxyError|Read timed out|Failed to establish a new connection"
)


def skip(reason: str) -> NoReturn:
    """Ends the check as skipped."""
    print(reason, flush=True)
    sys.exit(SKIPPED)


def pip(*arguments: str, python: str = sys.executable) -> str:
    """Runs pip; ends the check where it fails, as skipped where there is no network."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        return ended.stdout
    said = ended.stdout + ended.stderr
    if "No module named pip" in said:
        skip("there is no pip (package python3-pip)")
    if NO_NETWORK.search(said):
        skip("the Python package index cannot be reached")
    sys.exit(f"{' '.join(command)}:\n{said}")


def fetch_wheel(requirement: str, *, sha256: str = "", options: tuple[str, ...] = ()) -> str:
    """The path of one wheel, downloaded once. `requirement` is NAME==VERSION, `options` are pip's
    (--platform, --python-version); a wheel of another checksum than `sha256` ends the check."""
    folder = os.path.join(KEPT, requirement.replace("==", "-"))
    os.makedirs(folder, exist_ok=True)

    def wheels() -> list[str]:
        return [os.path.join(folder, each) for each in os.listdir(folder) if each.endswith(".whl")]

    if not wheels():
        words = "download --quiet --no-deps --only-binary=:all: --dest".split()
        pip(*words, folder, *options, requirement)
    [path] = wheels()
    if sha256:
        with open(path, "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
        if found != sha256:
            os.remove(path)
            sys.exit(f"{os.path.basename(path)} has the checksum {found}, not {sha256}")
    return path


def unpack(wheel: str) -> str:
    """The folder with the wheel's files, beside it."""
    folder = wheel[: -len(".whl")]
    if not os.path.isdir(folder):
        unfinished = folder + ".part"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unfinished)
        os.rename(unfinished, folder)
    return folder
