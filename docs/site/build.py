# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""build.py OUT: the site, as HTML that needs no network and no server, in OUT/html. Every warning
of Sphinx is an error: a link that leads nowhere stops the build."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import stage  # noqa: E402 (after the line above)


def main():
    """Stages the sources, then runs Sphinx on them."""
    if len(sys.argv) != 2:
        print("usage: build.py OUT", file=sys.stderr)
        return 2
    root = pathlib.Path(__file__).resolve().parents[2]
    out = pathlib.Path(sys.argv[1]).resolve()
    made = [out / name for name in ("sources", "doctrees", "html")]
    theirs = [each for each in made if each.exists()]
    marker = out / ".vmm-docs"
    if theirs and not marker.exists() and root / "build" not in out.parents:
        print(f"docs: {theirs[0]} is not of an earlier build: name another folder", file=sys.stderr)
        return 1
    try:
        out.mkdir(parents=True, exist_ok=True)
        marker.touch()
        wrong = stage.stage(root, out / "sources")
    except OSError as trouble:
        wrong = [f"{trouble.filename or out}: {trouble.strerror}"]
    for line in wrong:
        print(f"docs: {line}", file=sys.stderr)
    if wrong:
        return 1
    for each in made[1:]:  # a page that went leaves no file
        shutil.rmtree(each, ignore_errors=True)
    version = re.search(r"project\(vmm VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-j",
            "2",
            "-b",
            "html",
            "-d",
            str(out / "doctrees"),
            str(out / "sources"),
            str(out / "html"),
        ],
        env={**os.environ, "SITE_VERSION": version.group(1)},
        check=False,
    )
    if done.returncode == 0:
        print(out / "html" / "index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
