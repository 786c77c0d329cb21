# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Members of large wheels, and virtual environments, for the checks beside this file."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Callable

from _packages import KEPT, SKIPPED, pip, skip


def python(name: str) -> str:
    """The interpreter of a virtual environment of that name, made where it is not there."""
    folder = os.path.join(KEPT, name)
    if not os.path.exists(os.path.join(folder, "bin", "pip")):
        try:
            venv.create(folder, with_pip=True, clear=True)
        except Exception as trouble:  # CalledProcessError where ensurepip is missing
            skip(f"no virtual environment can be made: {trouble} (package python3-venv)")
    return os.path.join(folder, "bin", "python")


def attempt(what: str, function: Callable[..., object], *words: str | tuple[str, ...]) -> str:
    """Calls it. Returns why it failed, or nothing; without a network the check is skipped."""
    try:
        function(*words)
    except SystemExit as ended:
        if ended.code == SKIPPED:
            raise
        return f"{what}: {str(ended.code).strip().splitlines()[-1]}"
    return ""


def find_wheel(requirement: str, *platforms: str) -> tuple[str, str]:
    """The version and the URL of the newest wheel that fits."""
    with tempfile.TemporaryDirectory() as into:
        named = [word for each in platforms for word in ("--platform", each)]
        words = "install --dry-run --ignore-installed --no-deps --quiet --report - --target".split()
        said = pip(*words, into, "--only-binary=:all:", *named, requirement)
    made = json.loads(said[said.index("{") :])["install"][0]
    return made["metadata"]["version"], made["download_info"]["url"]


class _Remote(io.RawIOBase):
    """A file behind a URL, of which the bytes that are read are fetched."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self._size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        end = min(self._size, self._at + len(into))
        if self._at >= end:
            return 0
        wanted = urllib.request.Request(self._url, headers={"Range": f"bytes={self._at}-{end - 1}"})
        with urllib.request.urlopen(wanted) as answer:
            got = answer.read(end - self._at)
        into[: len(got)] = got
        self._at += len(got)
        return len(got)


def read_members(url: str, prefixes: tuple[str, ...], into: str) -> None:
    """Unpacks the members of a wheel whose names begin so."""
    try:
        with zipfile.ZipFile(io.BufferedReader(_Remote(url), 1 << 22)) as wheel:
            found = [each for each in wheel.infolist() if each.filename.startswith(prefixes)]
            found.sort(key=lambda each: each.header_offset)
            wheel.extractall(into, found)
    except urllib.error.URLError as trouble:
        skip(f"{os.path.basename(url)} cannot be read: {trouble}")
    except (OSError, zipfile.BadZipFile) as trouble:
        sys.exit(f"{os.path.basename(url)} cannot be read: {trouble}")
    if not found:
        sys.exit(f"{os.path.basename(url)} has no {' or '.join(prefixes)}")
