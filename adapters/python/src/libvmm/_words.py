# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The library's texts of errors in the names of this package. The library has the names of vmm.h;
adapters/python/tests/test_words.py compares both sides with the sources."""

from __future__ import annotations

import re

# Longer ones first: a name may stand in another.
_REPLACED = {
    # Sentences.
    "set keep_dirty of the options to 1": "make the range with zero_new=False",
    "leave captures_announced of the options 0": "make the pool without captures_announced",
    "set shareable of vmm_manager_options": "make the Manager with shareable",
    "set any_device of vmm_import_request": "call Channel.borrow() with any_device",
    "features of vmm_driver_info": "Driver.info.features",
    "pass VMM_ANY_DEVICE": "pass device=-1",
    "VMM_ANY_DEVICE (-1)": "-1",
    "use VMM_BACKUP_PAGEABLE": "use tier='pageable'",
    "call vmm_pool_forget_stream() and vmm_pool_capture_release() for": (
        "call Pool.forget_stream() for"
    ),
    "those of vmm_allocator_export()": "those of an export",
    " of the options": "",
    " of vmm_history_options": "",
    " of vmm_suspender_options": "",
    "at most segment_bytes_max": "at most Growable.most",
    "below segment_count": "below Growable.segments",
    # Parameters.
    "segment_bytes_max": "most",
    "segment_count": "segments",
    "budget_bytes": "budget",
    # Values.
    "VMM_GROWABLE_FEW_HANDLES": "growable.FEW_HANDLES",
    "VMM_POLICY_RATIO": "None",
    "VMM_POLICY_CHUNK": "None",
    "VMM_GRANTS_MAX grants": "18 rights",
    "more locations than VMM_GRANTS_MAX": "more than 18 locations",
    # Calls.
    "vmm_driver_query_peer()": "Driver.link()",
    "vmm_manager_parts()": "Range.parts()",
    "vmm_history_start()": "history.start()",
    "vmm_suspender_resume()": "Suspender.resume()",
    "vmm_list_drivers": "libvmm.drivers()",
    "vmm_share_next": "Channel.next()",
}
# Compiled for the first error.
_NAMED = "|".join(map(re.escape, sorted(_REPLACED, key=len, reverse=True)))
_CALL = r"\bvmm_(pool|manager)_(\w+)\(\)"
_OBJECT = r"\bvmm_(pool|manager)\b"
_ENUMS = {
    "CAPTURE": "Capture",
    "COPY": "Copy",
    "ARENAS": "Arenas",
    "PLACE": "Place",
    "RIGHTS": "Rights",
    "SHARE": "share.Kind",
}
# VMM_CUDA_MEMORY=plain and its like are variables of the environment.
_ENUM = rf"\bVMM_({'|'.join(_ENUMS)})_(\*|[A-Z][A-Z_0-9]+\b(?!=))"


def of_python(text: str) -> str:
    """A text of the library in the names of this package."""
    text = re.sub(_NAMED, lambda found: _REPLACED[found[0]], text)
    text = re.sub(_CALL, lambda found: f"{found[1].capitalize()}.{found[2]}()", text)
    text = re.sub(_OBJECT, lambda found: found[1].capitalize(), text)
    return re.sub(
        _ENUM,
        lambda found: _ENUMS[found[1]] + ("" if found[2] == "*" else f".{found[2]}"),
        text,
    )
