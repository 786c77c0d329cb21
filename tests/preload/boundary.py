# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""boundary.py SOURCES FOLDER LIBRARY DRIVER NVML: the empty libraries of VMM=1, in a folder."""

import os
import sys

sources, folder, library, *behind = sys.argv[1:]
sys.path.insert(0, sources)
import _libvmm_boundary as boundary  # noqa: E402

os.makedirs(folder, exist_ok=True)
for name, real in zip((boundary.SONAME, boundary.NVML), behind, strict=True):
    with open(os.path.join(folder, name), "wb") as file:
        file.write(boundary.empty_library(name, [library, real]))
