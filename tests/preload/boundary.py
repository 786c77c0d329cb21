# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""boundary.py SOURCES FOLDER LIBRARY DRIVER: the empty library of VMM=1, in a folder."""

import os
import sys

sources, folder, *needed = sys.argv[1:]
sys.path.insert(0, sources)
import _libvmm_boundary as boundary  # noqa: E402

os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, boundary.SONAME), "wb") as file:
    file.write(boundary.empty_library(boundary.SONAME, needed))
