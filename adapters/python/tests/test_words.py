# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: texts of errors name what a caller of the package passes, and no name of C.
Method: every option of the C library's structs has a parameter here, or a reason why it has none;
wrong values are passed for each, and the parameter stands in the text; every text of the sources is
said in names of the package."""

import importlib.util
import inspect
import pathlib
import re

import libvmm
import libvmm.history
import pytest
from libvmm import _growable, _native, _settings, _share, _words, growable, share, suspend

PROJECT = pathlib.Path(__file__).resolve().parents[3]

# The parameter of each option whose name in C is another.
RENAMED = {
    "budget_bytes": "budget",
    "size_bytes": "size",
    "growth_bytes": "growth",
    "alignment_bytes": "alignment",
    "segment_bytes_max": "most",
    "segment_count": "segments",
    "first_segment": "first",
    "keep_dirty": "zero_new",
    "no_wait": "wait",
    "shortage_path": "shortage",
    "place_ordinal": "place",
    "use_place": "place",
    "use_contents": "contents",
}
# What the package sets by itself, or has no parameter for.
NOT_PASSED = {
    "at",
    "change",
    "compressible",
    "first_stream",
    "rdma_capable",
    "reserved",
    "stream_count",
    "struct_size",
    "tag_count",
}
# The functions that fill each struct.
STRUCTS = [
    (_native.PoolOptions, [libvmm.Pool]),
    (_native.ManagerOptions, [libvmm.Manager]),
    (_native.BlockRequest, [libvmm.Manager.allocate]),
    (_native.ResizeRequest, [libvmm.Range.resize]),
    (_native.CopyRequest, [libvmm.Manager.copy]),
    (_growable.Options, [growable.Growable]),
    (_growable.Request, [growable.Growable.grow, growable.Growable.view]),
    (suspend._Options, [suspend.Suspender]),
    (suspend._Request, [suspend.Suspender.suspend]),
    (_share.Options, [share.connect]),
    (_share.Export, [share.export, share.export_block]),
    (_share.Import, [share.Channel.borrow]),
    (libvmm.history._Options, [libvmm.history.start]),
]


def parameters(functions):
    return {name for each in functions for name in inspect.signature(each).parameters}


@pytest.mark.parametrize(("struct", "functions"), STRUCTS)
def test_every_option_has_a_parameter(struct, functions):
    there = parameters(functions)
    for field, *_ in struct._fields_:
        if field in NOT_PASSED or (struct is _native.ManagerOptions and "place" in field):
            continue  # a manager of this package makes memory where its driver does
        is_count = struct is _growable.Request and field == "segment_count"
        assert ("count" if is_count else RENAMED.get(field, field)) in there, (struct, field)


WRONG = [
    ("Pool", {"policy": "x"}),
    ("Pool", {"budget": 1 << 60}),
    ("Pool", {"page_bytes": 1 << 60}),
    ("Pool", {"page_count": 1 << 60}),
    ("Pool", {"reservation_bytes": 0}),
    ("Manager", {"policy": "x"}),
    ("Manager", {"budget": 1 << 60}),
    ("Manager", {"fragment_ratio": 2.0}),
    ("Manager", {"chunk_bytes": 3}),
    ("Manager", {"reservation_bytes": 0}),
    ("Manager", {"shareable": 64}),
    ("Growable", {"most": 0}),
    ("Growable", {"segments": 0}),
    ("Growable", {"handle_bytes": 3}),
    ("start", {"event_count": 5}),
    ("start", {"clock_interval": 3}),
    ("start", {"shortage": 5}),
    ("stop", {"path": 5}),
    ("dump", {"path": None}),
    ("dump", {"path": "a\0b"}),
    ("record", {"path": 5}),
    ("Suspender", {"tier": "x"}),
    ("Suspender", {"directory": 5}),
    ("add", {"tag": 5}),
    ("add", {"contents": "x"}),
    ("add", {"allocator": 5}),
    ("suspend", {"contents": "x"}),
    ("export", {"kind": 64}),
    ("export", {"label": b"x" * 33}),
    ("connect", {"secret": b"x"}),
    ("connect", {"path": 5}),
]


@pytest.mark.parametrize(("call", "wrong"), WRONG)
def test_wrong_values_are_named(call, wrong):
    with (
        libvmm.Driver("host") as driver,
        libvmm.Manager(driver) as manager,
        suspend.Suspender() as s,
    ):
        with libvmm.Pool(driver) as pool:
            libvmm.history.start(pool) if call in ("dump", "stop") else None
            functions = {
                "Pool": (libvmm.Pool, {"driver": driver}),
                "Manager": (libvmm.Manager, {"driver": driver}),
                "Growable": (growable.Growable, {"manager": manager, "most": 1 << 20}),
                "start": (libvmm.history.start, {"owner": pool}),
                "stop": (libvmm.history.stop, {"owner": pool}),
                "dump": (libvmm.history.dump, {"owner": pool}),
                "record": (
                    lambda **named: libvmm.history.record(**named).__enter__(),
                    {"owner": pool},
                ),
                "Suspender": (suspend.Suspender, {}),
                "add": (s.add, {"allocator": pool, "tag": "x"}),
                "suspend": (s.suspend, {}),
                "export": (share.export, {"driver": driver, "size": 1 << 20}),
                "connect": (share.connect, {"path": "/x", "secret": share.make_secret()}),
            }
            function, right = functions[call]
            (name,) = wrong
            with pytest.raises((ValueError, TypeError)) as raised:
                function(**{**right, **wrong})
            said = str(raised.value)
            assert re.search(rf"\b{name}\b", said), said
            assert not re.search(r"vmm_\w+|VMM_(?!CHUNK_SIZE)\w+|\w+_of_the", said), said


# Names of other projects, of the system's, and of what is installed.
OF_OTHERS = {
    "AF_ALG",
    "CUDA_VISIBLE_DEVICES",
    "DVMM_LEVEL_ZERO",
    "LD_LIBRARY_PATH",
    "SOCK_SEQPACKET",
    "ZE_AFFINITY_MASK",
    "ZE_ENABLE_ALT_DRIVERS",
    "libze_loader.so.1",
    "memfd_create",
    "vm.max_map_count",
    "cntvct_el0",
    "level_zero",
    "va_pool",
    "keep_mapped",
    "virtual_caching",
}
# Of calls and members that the package has none of, or checks before the library does.
NOT_REACHED = {
    "VMM_BACKUP_BEST",
    "VMM_BACKUP_PINNED",
    "VMM_BACKUP_PAGEABLE",
    "VMM_BACKUP_FILE",
    "VMM_CONTENTS_KEEP",
    "VMM_CONTENTS_ZERO",
    "VMM_CONTENTS_DISCARD",
    "VMM_GROWABLE_ANY",
    "VMM_GROWABLE_GROW",
    "VMM_GROWABLE_SHRINK",
    "place_ordinal",
    "keep_dirty",
    "no_wait",
    "rdma_capable",
    "struct_size",
    "use_contents",
    "use_place",
    "vmm_allocator_keep()",
}


def test_every_text_of_the_sources():
    path = PROJECT / "tests" / "c" / "words_test.py"
    if not path.exists():
        pytest.skip("there is no source tree here")
    spec = importlib.util.spec_from_file_location("c_words", path)
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    table = [
        text
        for text, _ in words.texts((PROJECT / "adapters/c/src/words.cpp").read_text())
        if " " in text
    ]
    in_c = dict(zip(table[::2], table[1::2]))
    texts = [in_c.get(text, text) for _, text in words.error_texts(PROJECT)]
    for each in sorted((PROJECT / "adapters" / "c" / "src").glob("*.*pp")):
        if each.name != "words.cpp":
            texts += [
                words.INVARIANT.sub("", text)
                for text, frames in words.texts(each.read_text())
                if text.count(" ") >= 2 and not words.ASSERTIONS.intersection(frames)
            ]
    everything = [libvmm, growable, share, suspend, libvmm.history]
    public = set()
    for module in everything:
        loaded = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        for name, thing in {**vars(module), **loaded}.items():
            public.add(name)
            members = [thing, *vars(thing).values()] if inspect.isclass(thing) else [thing]
            public.update(vars(thing) if inspect.isclass(thing) else ())
            for each in filter(inspect.isfunction, members):
                public.update(inspect.signature(each).parameters)
    wrong = []
    for text in texts:
        said = _words.of_python(text)
        for word in words.words_that_are_names(said):
            parts = word.removesuffix("()").split(".")
            is_known = (
                word in OF_OTHERS
                or word in NOT_REACHED
                or word in _settings.KNOWN
                or all(part in public or part == "libvmm" or "_" not in part for part in parts)
            )
            if not is_known:
                wrong.append(f"{word}: {said}")
    assert not wrong, "\n".join(wrong)
    assert len(texts) > 200
    for name in _words._REPLACED:
        assert any(name in text for text in texts), f"no text has {name!r}"
