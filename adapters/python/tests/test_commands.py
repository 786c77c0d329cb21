# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: `python -m libvmm` reports, as text and as JSON, and refuses wrong words.
Method: the commands as processes of their own, with environments that hold the settings of
interest."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys

import libvmm
import pytest
from conftest import DRIVER, PRELOAD
from libvmm import _doctor, _fit, _programs, _settings


def command(*words, **settings):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")
    }
    environment.update(settings)
    return subprocess.run(
        [sys.executable, "-m", "libvmm", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )


def test_doctor_in_words():
    said = command("doctor")
    assert said.returncode == 0, said.stderr
    assert "driver host: available" in said.stdout
    assert "0 wrong settings, 0 conflicts" in said.stdout


def test_doctor_as_json():
    said = command("doctor", "--json", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    found = json.loads(said.stdout)
    assert any(each["name"] == "host" and each["available"] for each in found["drivers"])
    assert os.path.basename(found["library"]).startswith("libvmm.so")
    assert [each.split(":")[0] for each in found["conflicts"]] == ["backend"]
    assert said.returncode == 1
    assert found["settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "backend:cudaMallocAsync"


def test_doctor_says_why_there_is_no_preload_library():
    cuda = libvmm.DriverEntry("cuda", False, "vmm was built without cuda.h: build it again")
    assert _doctor.why_no_preload_library([cuda]).startswith("vmm was built without cuda.h")
    assert "vmm-tools" in _doctor.why_no_preload_library([])
    if _doctor.preload_library() is None:
        said = command("doctor").stdout
        assert "preload library: not in this installation: " in said, said


PRELOADED = {"LD_PRELOAD": "/x/libvmm_preload.so", "VMM_MODE": "vmm"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {**PRELOADED, "PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments : True"},
            "expandable",
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "cudaMallocAsync"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "NO_CUDA_MEMORY_CACHING"),
        ({"PYTORCH_ALLOC_CONF": "x:1", "PYTORCH_CUDA_ALLOC_CONF": "x:1"}, "remove the other"),
        ({"VMM": "1", "VMM_DISABLE": "1"}, "VMM=1 has no effect with VMM_DISABLE: unset one"),
        ({"VMM_BACKEND": "cuda:99"}, "VMM_BACKEND=cuda:99: "),
    ],
)
def test_conflicts(settings, words):
    found = _doctor.conflicts(settings)
    assert len(found) == 1 and words in found[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        PRELOADED,
        {**PRELOADED, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        {**PRELOADED, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        {
            **PRELOADED,
            "VMM_MODE": "cache",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        },
    ],
)
def test_uses_that_the_pages_recommend_are_no_conflicts(settings):
    assert _doctor.conflicts(settings) == []


def test_a_preload_library_that_is_not_loaded(tmp_path):
    """Missing, of another machine, or not named at all beside a mode."""
    own, other = tmp_path / "libvmm_preload.so", tmp_path / "libother.so"
    for each in (own, other):
        each.touch()
    missing = str(tmp_path / "none.so")

    def found(preload, mode="", loaded=()):
        return _doctor.preload_conflicts({"LD_PRELOAD": preload, "VMM_MODE": mode}, list(loaded))

    assert found("") == [] and found("", "off") == [] and found("", "vm") == []
    assert found(f"{own}", "vmm", [str(own)]) == [] and found(f"{own}", "", [str(own)]) == []
    assert found(f"{other}:{own}", "cache", [f"/elsewhere/{own.name}"]) == []
    (said,) = found(f"{own}", "vmm")
    assert f"LD_PRELOAD names {own}, which was not loaded: " in said
    (said,) = found(f"{own} {missing}", "vmm", [str(own)])
    assert said.startswith(f"LD_PRELOAD names {missing}, which does not exist: ")
    for mode in ("monitor", "vmm", "cache"):
        (said,) = found(str(other), mode)
        assert said.startswith(f"VMM_MODE={mode} has no effect without the preload library: ")
        assert f"run --mode {mode} SCRIPT" in said
    said = command("doctor", VMM_MODE="vmm", LD_PRELOAD="")
    assert said.returncode == 1 and "conflict: VMM_MODE=vmm has no effect" in said.stdout


def test_a_preload_library_in_a_folder_with_a_blank(tmp_path, monkeypatch):
    """The loader cuts the value at the blank: the same value is no advice."""
    own = tmp_path / "with blank" / "libvmm_preload.so"
    own.parent.mkdir()
    own.touch()
    monkeypatch.setattr(_doctor, "preload_library", lambda: str(own))
    for value in (str(own), f"{own}:/x/libother.so"):
        (said,) = _doctor.preload_conflicts({"LD_PRELOAD": value, "VMM_MODE": "cache"}, [])
        assert said.startswith(
            f"LD_PRELOAD names {value if value == str(own) else own}, and is cut"
        )
        assert "`python -m libvmm run --mode cache SCRIPT`" in said and f"to {own}" not in said
    (said,) = _doctor.preload_conflicts({"VMM_MODE": "cache"}, [])
    assert f"LD_PRELOAD={own}" not in said


def test_the_doctor_on_a_pytorch_without_cuda_and_a_compiler_that_is_missing(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    version = tmp_path / "torch" / "version.py"
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    version.write_text("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n")
    said = command("doctor", PYTHONPATH=path, CXX="no-such-compiler -O2").stdout
    assert "libvmm.torch: PyTorch 2.11.0+cpu is built without CUDA: install a build" in said
    assert "allocator: CXX=no-such-compiler -O2 names no program: set CXX to a C++" in said
    version.write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    said = command("doctor", PYTHONPATH=path, CXX=f"{sys.executable} -O2").stdout
    assert "without CUDA" not in said and f"allocator: {sys.executable} -O2\n" in said


def test_hooks_are_named(tmp_path):
    """A preloaded library that exports one of the names."""
    source = tmp_path / "hook.c"
    source.write_text("int cudaMalloc(void) { return 0; }\n")
    library = tmp_path / "libhook.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    found = json.loads(command("doctor", "--json", LD_PRELOAD=str(library)).stdout)
    assert found["hooks"]["cudaMalloc"] == str(library)


def test_wrong_words():
    for word, nearest in [("docter", "; the nearest is doctor"), ("nonsense", "")]:
        said = command(word)
        assert said.returncode == 2 and said.stdout == ""
        assert said.stderr == (
            f"libvmm: unknown command '{word}'{nearest} (python -m libvmm --help lists them)\n"
        )
    assert command("run", "--mode", "nonsense", "x.py").returncode == 2
    said = command("run", "no_such_script.py")
    assert said.returncode == 2 and "no_such_script.py" in said.stderr
    said = command()
    assert (said.returncode, said.stdout) == (2, "") and "which command?" in said.stderr
    for word in ("run", "record"):
        said = command(word)
        assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
        assert f"libvmm {word}: which script? python -m libvmm {word} SCRIPT" in said.stderr
    said = command("version", "x")
    assert (said.returncode, said.stdout) == (2, "") and "takes no 'x'" in said.stderr
    assert command("version").stdout.count(".") == 2
    assert command("--version").stdout == command("version").stdout


def test_a_preload_mode_without_the_library_says_so(tmp_path):
    if _doctor.preload_library() is not None:
        pytest.skip("this installation has the preload library")
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    said = command("run", "--mode", "monitor", str(script))
    assert said.returncode == 2 and "libvmm_preload.so" in said.stderr and "ran" not in said.stdout


def test_the_preload_library_beside_the_c_library_is_used(tmp_path):
    """As a distribution's packages have them. The dynamic loader leaves an empty file out."""
    library = tmp_path / os.path.basename(libvmm.loaded_library())
    shutil.copy(libvmm.loaded_library(), library)
    beside = tmp_path / "libvmm_preload.so"
    beside.touch()
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['LD_PRELOAD'], os.environ['VMM_MODE'])")
    said = command("run", "--mode", "monitor", str(script), LIBVMM=str(library), LD_PRELOAD="")
    assert said.stdout.split() == [str(beside), "monitor"], said.stderr
    found = json.loads(command("doctor", "--json", LIBVMM=str(library)).stdout)
    assert found["preload_library"] == str(beside)


@pytest.mark.parametrize("name", ["mein Projekt", "a:b", "a$b", "plain"])
def test_a_folder_that_the_loader_would_split(tmp_path, name):
    """The library is loaded through a link in a folder of this user alone."""
    folder = tmp_path / name
    folder.mkdir()
    library = folder / os.path.basename(libvmm.loaded_library())
    shutil.copy(libvmm.loaded_library(), library)
    (folder / "libvmm_preload.so").touch()
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "named = os.environ['LD_PRELOAD'].split(':')[0]\n"
        "assert not set(named) & set(' :$'), named\n"
        "print(os.path.realpath(named))"
    )
    said = command("run", "--mode", "monitor", str(script), LIBVMM=str(library), LD_PRELOAD="")
    assert said.stdout.strip() == str(folder / "libvmm_preload.so"), said.stderr


def test_mode_off_needs_no_library(tmp_path):
    library = tmp_path / os.path.basename(libvmm.loaded_library())
    shutil.copy(libvmm.loaded_library(), library)
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['VMM_MODE'])")
    said = command("run", "--mode", "off", str(script), LIBVMM=str(library))
    assert said.stdout == "off\n", said.stderr


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], "0 False False"),
        (["-O"], "1 False False"),
        (["-OO", "-B"], "2 True False"),
        (["-X", "dev", "-B"], "0 True True"),
        (["-BO"], "1 True False"),
    ],
)
@pytest.mark.parametrize("attached", [False, True])
def test_options_of_the_interpreter_are_kept(tmp_path, options, shown, attached):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "print(sys.flags.optimize, sys.dont_write_bytecode, sys.flags.dev_mode, sys.argv[1:])"
    )
    environment = {**os.environ, "LIBVMM": libvmm.loaded_library()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = [*options, "-mlibvmm"] if attached else [*options, "-m", "libvmm"]
    words = [sys.executable, *begin, "run", "--mode", "off", str(script), "--mode", "x", "--"]
    said = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert said.stdout == f"{shown} ['--mode', 'x', '--']\n", said.stderr


@pytest.mark.parametrize("words", [["--"], ["--", "a", "--help"]])
def test_a_script_with_a_dash(tmp_path, words):
    script = tmp_path / "-dash.py"
    script.write_text("import sys; print(sys.argv)")
    dash, *arguments = words
    command_words = ["-m", "libvmm", "run", "--mode", "off", dash, "-dash.py", *arguments]
    said = subprocess.run(
        [sys.executable, *command_words], capture_output=True, text=True, cwd=tmp_path
    )
    assert said.stdout == f"{['-dash.py', *arguments]}\n", said.stderr


@pytest.mark.parametrize(
    "words",
    [["doctor"], ["doctor", "--json"], ["version"], ["help"], ["doctor", "--help"]],
)
def test_a_stdout_that_takes_nothing(words):
    with open("/dev/full", "w") as full:
        said = subprocess.run(
            [sys.executable, "-m", "libvmm", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert said.returncode == 1
    assert said.stderr == "libvmm: stdout cannot be written to: No space left on device\n"
    with subprocess.Popen(
        [sys.executable, "-m", "libvmm", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as made:
        made.stdout.close()
        assert made.stderr.read() == b""
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "libvmm", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert closed.returncode == 1
    assert closed.stderr == "libvmm: stdout cannot be written to: it is closed\n"


# What reads a variable, and its complaints.
USE = """
import ctypes, sys
import _libvmm_start, libvmm
_libvmm_start._is_wanted()
cuda, context, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(at), 5 << 20)
for name in ("fake", "cuda", "level_zero", ""):
    for made in (libvmm.Pool, libvmm.Manager):
        try:
            with libvmm.Driver(name) as driver:
                made(driver, read_environment=True, report_live=False).close()
        except libvmm.Error as refused:
            if refused.status == 2:
                print("refused:", refused.advice, file=sys.stderr)
"""


def check_verdict(name, value, folder):
    """The doctor refuses the value if and only if the libraries do, and with their reason."""
    if not os.path.exists(PRELOAD) or not os.path.exists(DRIVER):
        return
    kept = {each: text for each, text in os.environ.items() if not each.startswith("V")}
    kept |= {"LIBVMM": libvmm.loaded_library(), "LD_PRELOAD": PRELOAD, "VMM_MODE": "vmm"}
    kept |= {"LD_LIBRARY_PATH": os.path.dirname(DRIVER), "VMM_REPORT": "off"}
    kept["VMM"] = "1" if name == "VMM_DISABLE" else "0"
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=folder,
        env={**kept, name: value},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    starts = ("refused: ", "vmm_preload: ", "vmm: ", "libvmm: ")
    said = [each for each in done.stderr.splitlines() if each.startswith(starts)]
    harmless = re.compile(" is new$|^vmm_preload: process ")  # a folder, and a report
    said = [each for each in said if not harmless.search(each)]
    found = _settings.wrong({name: value})
    for each in found:
        reason = re.split("; not '[^']*': ", each)[-1]
        assert any(reason in line for line in said), (found, said)
    assert found or not said, said


def test_files_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"
    own.write_text("x")
    linked = tmp_path / "linked"
    linked.symlink_to(own)
    nowhere = tmp_path / "nowhere"
    nowhere.symlink_to(tmp_path / "none")
    twice = tmp_path / "twice"
    os.link(own, tmp_path / "other")
    twice.write_text("x")
    for name, value, said in [
        ("VMM_TRACE", str(tmp_path), "it is a folder"),
        ("VMM_TRACE", str(tmp_path / "no" / "trace"), "its folder does not exist"),
        ("VMM_TRACE", str(linked), "it is a symbolic link to a file"),
        ("VMM_TRACE", str(nowhere), "it is a symbolic link to a file"),
        ("VMM_TRACE", str(own), "has a second name"),
        ("VMM_REPORT", str(tmp_path), "it is a folder"),
        ("VMM_REPORT", str(tmp_path / "no" / "%p"), "its folder does not exist"),
        ("VMM_REPORT", str(own / "x"), "a part of the path is not a folder"),
        ("VMM_REPORT", "/proc/x", "its folder does not exist"),
        ("VMM_LOG", str(tmp_path / "no" / "log"), "a folder of it, does not exist"),
    ]:
        (found,) = _settings.wrong({name: value})
        assert found.startswith(f"{name} is ") and said in found, found
        assert f"; not '{value[:60]}" in found, found
        check_verdict(name, value, tmp_path)
    for name, value in [
        ("VMM_TRACE", str(twice)),
        ("VMM_TRACE", str(tmp_path / "new.%p")),
        ("VMM_TRACE", "/dev/null"),
        ("VMM_REPORT", str(linked)),
        ("VMM_REPORT", str(own)),
        ("VMM_REPORT", "off"),
        ("VMM_REPORT", "stderr"),
        ("VMM_REPORT", "report.json"),
    ]:
        before = sorted(os.listdir())
        assert _settings.wrong({name: value}) == []
        assert sorted(os.listdir()) == before
        check_verdict(name, value, tmp_path)


# Wrong values, and parts of their messages. The first ones are checked by the C library.
WRONG_SETTINGS = [
    ("VMM_BUDGET", "40 gigs", "VMM_BUDGET takes bytes with a unit"),
    ("VMM_BUDGET", "-1", "VMM_BUDGET takes bytes with a unit"),
    ("VMM_BUDGET", "nan", "VMM_BUDGET takes bytes with a unit"),
    ("VMM_BUDGET", "1", "(VMM_BUDGET) is 0 for no budget, or at least one unit"),
    ("VMM_VA_SIZE", "0", "VMM_VA_SIZE takes bytes with a unit, such as 8TiB, not 0"),
    ("VPMM_VA_SIZE", "999PiB", "VPMM_VA_SIZE takes bytes"),
    ("VMM_POOL_PAGE_SIZE", "2MB2", "VMM_POOL_PAGE_SIZE takes bytes"),
    ("VPMM_PAGE_SIZE", "0", "VPMM_PAGE_SIZE takes bytes"),
    ("VMM_POOL_PAGES", "1.5", "VMM_POOL_PAGES takes a whole number of pages"),
    ("VMM_POOL_PAGES", "1e3", "VMM_POOL_PAGES takes a whole number of pages"),
    ("VPMM_PAGES", "many", "VPMM_PAGES takes a whole number of pages"),
    ("VMM_POOL_POLICY", "best", "VMM_POOL_POLICY takes one of pool, vpmm"),
    ("VMM_POOL_CAPTURE", "PRIVATE", "VMM_POOL_CAPTURE takes one of refuse, private, unchecked"),
    ("VMM_POLICY", "pool", "VMM_POLICY takes one of va_pool, keep_mapped, virtual_caching"),
    ("VMM_FRAG_RATIO", "2", "VMM_FRAG_RATIO takes a number from 0 to 1"),
    ("VMM_CHUNK_SIZE", "3", "VMM_CHUNK_SIZE"),
    ("VMM_KEEP", "lots", "VMM_KEEP is a size: "),
    ("VMM_CACHE_LIMIT", "4GX", "VMM_CACHE_LIMIT is a size: "),
    ("VMM_BACKEND", "nvidia", "VMM_BACKEND is cuda, "),
    ("VMM_BACKEND", "cuda:x", "VMM_BACKEND is cuda, "),
    ("VMM_CUDA_LIBRARY", "/etc/passwd", "VMM_CUDA_LIBRARY is '/etc/passwd', which could not be"),
    ("VMM_CUDA_LIBRARY", "/no/libcuda.so", "No such file or directory): correct it, or unset it"),
    ("VMM_LOG", "/no/such/folder/log", "VMM_LOG is off, stderr, or the path of a writable file"),
    *[
        ("VMM_REMEMBER", value, f"VMM_REMEMBER: '{value}': {why}")
        for value, why in (
            ("peaks", "name a folder by its whole path"),
            ("/", "name a folder of this user in it"),
            ("/etc/passwd", "the path is not a folder"),
            ("/proc/self/cwd", "the path is a symbolic link"),
            ("/tmp", "the folder "),
            ("/no/such/folder", "the path, or a folder of it, does not exist"),
            ("/proc/x", "the path, or a folder of it, does not exist"),
        )
    ],
    ("VMM_LOG", "/", "VMM_LOG is off, stderr, or the path of a writable file"),
    *[(name, "nonsense", said) for name, (_, said) in _settings.CHOICES.items()],
    ("VMM_LEVEL_ZERO_LIBRARY", "/no/ze.so", "No such file or directory): correct it, or unset it"),
    ("VMM_EXCLUDE", "rmmm", "VMM_EXCLUDE takes a list of cupy, driver, "),
    ("VMM_OWNER", "relative", "VMM_OWNER is off, auto, or the absolute path"),
    ("VMM_TENANT", "limit=x", "guarantee and limit in VMM_TENANT are"),
    ("VMM_BUGDET", "1GiB", "vmm has no variable VMM_BUGDET; the nearest is VMM_BUDGET"),
    ("VMM_POLICI", "x", "vmm has no variable VMM_POLICI; the nearest is VMM_POLICY"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG_SETTINGS)
def test_wrong_settings_are_named(name, value, said, tmp_path):
    found = _settings.wrong({"VMM_IPC": "", "HOME": "/", name: value})
    assert len(found) == 1 and said in found[0], found
    assert f"'{value}'" in found[0] or "vmm has no variable" in found[0], found
    if "vmm has no variable" not in said and name != "VMM_EXCLUDE":  # Python's alone
        check_verdict(name, value, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VMM_BUDGET", "40GiB"),
        ("VMM_BUDGET", "0"),
        ("VMM_BUDGET", "1.5 gib"),
        ("VMM_KEEP", " 24 G "),
        ("VMM_VA_SIZE", "1TiB"),
        ("VPMM_PAGES", "3"),
        ("VMM_POOL_PAGE_SIZE", "2MiB"),
        ("VMM_POOL_CAPTURE", "private"),
        ("VMM_FRAG_RATIO", "0.5"),
        ("VMM_CHUNK_SIZE", "20MiB"),
        ("VMM_KEEP", "1G"),
        ("VMM_KEEP", "1"),
        ("VMM_CACHE_LIMIT", "0"),
        ("VMM_BACKEND", "host"),
        ("VMM_BACKEND", "fake:host"),
        ("VMM_LOG", "stderr"),
        ("VMM_LOG", "log.txt"),
        ("VMM_REPORT", "y.%p"),
        ("VMM_TRACE", "trace"),
        ("VMM_LOG", "/dev/stdout"),
        ("VMM_BUDGET", ""),
        *[(name, each) for name, (choices, _) in _settings.CHOICES.items() for each in choices],
    ],
)
def test_right_settings_are_not(name, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    assert _settings.wrong({name: value}) == []
    assert dict(os.environ) == before and os.listdir() == []
    check_verdict(name, value, tmp_path)


def test_a_folder_for_peaks(tmp_path):
    """One that is missing stays so. Root's right to write everywhere is taken from the doctor."""
    fresh = str(tmp_path / "peaks")
    assert _settings.wrong({"VMM_REMEMBER": fresh}) == [] and not os.path.exists(fresh)
    check_verdict("VMM_REMEMBER", fresh, tmp_path)
    assert os.path.isdir(fresh)
    os.chmod(fresh, 0o555)
    said = subprocess.run(
        [sys.executable, "-m", "libvmm", "doctor"],
        env={**os.environ, "VMM_REMEMBER": fresh},
        preexec_fn=lambda: ctypes.CDLL(None).prctl(24, 1, 0, 0, 0),  # PR_CAPBSET_DROP
        capture_output=True,
        text=True,
    )
    why = "this user cannot write to the folder: run chmod u+rwx on it, or name another"
    assert f"wrong: VMM_REMEMBER: '{fresh}': {why}" in said.stdout and said.returncode == 1


def test_no_command_waits_for_a_named_pipe(tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    names = ("VMM_LOG", "VMM_REPORT", "VMM_TRACE")
    found = json.loads(command("doctor", "--json", **dict.fromkeys(names, pipe)).stdout)
    assert [each.split()[0] for each in found["wrong"]] == list(names)
    assert all("it is a named pipe (FIFO)" in each for each in found["wrong"])
    said = _settings.wrong({"VMM_CUDA_LIBRARY": pipe})
    assert "could not be loaded (it is not a regular file)" in said[0]
    script = tmp_path / "script.py"
    script.write_text("")
    said = command("record", "--out", pipe, str(script))
    assert said.returncode == 2 and "cannot be written: it is a named pipe" in said.stderr
    folder = tmp_path / "folder"
    (folder / "__main__.py").mkdir(parents=True)
    for name in (pipe, "/dev/zero", str(folder)):
        for words in (("run",), ("run", "--mode", "off"), ("record",)):
            said = command(*words, name)
            assert said.returncode == 2 and f"{name}" in said.stderr, said.stderr
            assert "is a named pipe (FIFO), a socket, a device or a folder" in said.stderr


def test_a_tree_as_json():
    said = command("doctor", "--json", "--tree", str(os.getpid()))
    first = json.loads(said.stdout)["processes"][0]
    assert (first["process"], first["depth"], said.returncode) == (os.getpid(), 0, 0)
    assert first["state"] and said.stdout.count("\n") > 5
    why = "--tree 99999999: there is no such process, or "
    said = command("doctor", "--json", "--tree", "99999999")
    assert said.returncode == 2 and json.loads(said.stdout)["error"].startswith(why)
    said = command("doctor", "--tree", "99999999")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith(f"libvmm doctor: {why}") and "name one" in said.stderr


def test_the_doctor_names_wrong_settings():
    said = command("doctor", VMM_BUDGET="much", VMM_MODE="on")
    assert said.returncode == 1, said.stderr
    assert "wrong: VMM_BUDGET takes bytes with a unit, such as 40GiB" in said.stdout
    assert "no budget; not 'much'\n" in said.stdout
    assert "wrong: VMM_MODE takes one of off, monitor, vmm, cache; not 'on'\n" in said.stdout
    assert "2 wrong settings, 0 conflicts" in said.stdout
    found = json.loads(command("doctor", "--json", VMM_BUDGET="much").stdout)
    assert len(found["wrong"]) == 1
    said = command("doctor", VMM_TENANT="name=a\x1b[31m\nb").stdout
    assert "setting: VMM_TENANT=name=a?[31m?b\n" in said


def test_variables_and_texts_are_those_of_the_sources():
    project = os.path.join(os.path.dirname(__file__), "..", "..", "..")
    page = os.path.join(project, "docs", "options.md")
    settings = os.path.join(project, "adapters", "preload", "settings.cpp")
    if not os.path.exists(page) or not os.path.exists(settings):
        pytest.skip("there is no source tree here")
    with open(page, encoding="utf-8") as file:
        rows = [line.split("|")[1] for line in file if line.startswith("| `V")]
    named = {name for row in rows for name in re.findall(r"`(VP?MM_\w+)`", row)}
    assert named <= _settings.KNOWN
    source = ""
    for path in (settings, os.path.join(project, "modules", "observe", "publisher.cpp")):
        with open(path, encoding="utf-8") as file:
            source += file.read()
    for name, (_, said) in _settings.CHOICES.items():
        assert said in source or name in ("VMM", "VMM_CUDA_MEMORY", "VMM_DISABLE"), said
    for said in _settings.SIZES.values():
        assert said in source


def test_libvmm_is_no_library_of_cuda():
    found = json.loads(command("doctor", "--json").stdout)
    assert not any("libvmm" in each for each in found["mapped"])
    assert any("libvmm.so" in each for each in found["mapped_vmm"])


@pytest.mark.skipif(sys.version_info < (3, 10), reason="needs sys.orig_argv of Python 3.10")
@pytest.mark.parametrize("named", ["/no/such/libvmm.so", "libm.so.6", __file__])
def test_a_bad_library_is_said_in_a_line(named):
    for words in (["doctor"], ["version"]):
        said = command(*words, LIBVMM=named)
        assert said.returncode == 1 and said.stdout == ""
        assert said.stderr.count("\n") == 1 and said.stderr.startswith("libvmm: "), said.stderr
        assert os.path.basename(named) in said.stderr and "LIBVMM" in said.stderr
    said = subprocess.run(
        [sys.executable, "-c", "import libvmm"],
        capture_output=True,
        text=True,
        env={**os.environ, "LIBVMM": named},
    )
    assert said.returncode == 1 and "ImportError: libvmm: " in said.stderr


def test_a_library_that_is_a_named_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / "libvmm.so"
    os.mkfifo(pipe)
    said = subprocess.run(
        [sys.executable, "-m", "libvmm", "version"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LIBVMM": str(pipe)},
    )
    assert said.returncode == 1 and "not a regular file" in said.stderr, said.stderr


def test_fit_answers_of_a_recording(tmp_path):
    if _programs.find_program("fit") is None:
        pytest.skip("vmm-fit is not built here")
    path = tmp_path / "tiny.trace"
    path.write_text("a 1 3145728 0\na 2 1 0\nf 1\n")
    said = command("fit", str(path), "--json", "--device", "24GiB")
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["peak_live_bytes"] == 3145728 + 512
    assert found["allocators"]["native"]["held_bytes"] == 22 << 20
    assert found["fits"]["24GiB"]["native"] == "yes"
    assert command("fit", str(tmp_path / "none")).returncode == 3


def test_owner_is_the_program_of_the_wheel(tmp_path):
    if _programs.find_program("owner") is None:
        pytest.skip("vmm-owner is not built here")
    said = command("owner", "ctl", "list", str(tmp_path), "host")
    assert said.returncode == 1 and f"no owner listens at {tmp_path}/owner-host" in said.stderr
    assert command("owner", "--help").stdout.startswith("usage: vmm-owner serve FOLDER DEVICE")


def test_record_says_what_it_lacks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    (tmp_path / "folder").mkdir()
    for wrong, why in (("none.py", "there is no"), ("folder", "is a folder without __main__.py")):
        said = command("record", str(tmp_path / wrong))
        assert (said.returncode, said.stderr.count("\n")) == (2, 1)
        assert why in said.stderr
        said = command("run", str(tmp_path / wrong))
        assert (said.returncode, said.stderr.count("\n")) == (2, 1) and why in said.stderr
    said = command("record", "--max-entries", "0", str(script))
    assert "takes a number from 1 on" in said.stderr
    said = command("record", str(script))
    assert (said.returncode, said.stdout) == (2, "")
    assert "libvmm record: " in said.stderr


def test_record_checks_its_file_before_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    for wrong in (tmp_path / "none" / "x.pickle", tmp_path):
        said = command("record", "-o", str(wrong), str(script))
        assert (said.returncode, said.stdout) == (2, "")
        assert f"{wrong} cannot be written: " in said.stderr
    kept = tmp_path / "kept.pickle"
    kept.write_bytes(b"old")
    command("record", "-o", str(kept), str(script))
    assert kept.read_bytes() == b"old"
    assert _fit._unused(str(kept)) == str(tmp_path / "kept-2.pickle")


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_record_writes_what_there_is(tmp_path, end):
    """The order of the calls alone: a package of this name stands for PyTorch."""
    (tmp_path / "torch.py").write_text(
        "class cuda:\n"
        "    is_available = staticmethod(lambda: True)\n"
        "    get_allocator_backend = staticmethod(lambda: 'native')\n"
        "    init = staticmethod(lambda: None)\n"
        "    class memory:\n"
        "        _record_memory_history = staticmethod(lambda **options: None)\n"
        "        _dump_snapshot = staticmethod(lambda path: open(path, 'w').write('snapshot'))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(f"import os, signal\n{end}\n")
    out = tmp_path / "memory.pickle"
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    script.with_name("__main__.py").write_text(script.read_text())
    for each in (script, tmp_path):
        out.unlink(missing_ok=True)
        said = command("record", "-o", str(out), str(each), PYTHONPATH=path)
        assert said.returncode == (3 if "Exit" in end else 143), said.stderr
        assert out.read_text() == "snapshot"


def test_each_rank_records_a_file_of_its_own(monkeypatch):
    assert _fit._path_of_rank("memory.pickle") == "memory.pickle"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert _fit._path_of_rank("out/memory.pickle") == "out/memory.rank3.pickle"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,x"}, "'x' names no device"),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, "a device is named twice"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "hides every GPU"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "each kernel launch waits"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments"}, "is not OPTION:VALUE"),
        ({"LD_PRELOAD": "/x/liballoc.so"}, "defines calls of CUDA"),
        ({"CUDA_VISIBLE_DEVICES": "0, GPU-8f2a-11,MIG-8f2a-11"}, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a:[x:1,y:2],b:True", "CUDA_LAUNCH_BLOCKING": "0"}, ""),
        ({"LD_PRELOAD": "/x/libjemalloc.so"}, ""),
    ],
)
def test_settings_of_others(settings, words):
    found = _doctor.foreign_conflicts(settings, {"cudaMalloc": "/x/liballoc.so"})
    assert len(found) == bool(words), found
    assert not words or words in found[0]


def test_the_doctor_lists_what_it_checks():
    said = command("doctor", CUDA_CACHE_PATH="/tmp", CUDA_LAUNCH_BLOCKING="1")
    assert said.returncode == 1
    lines = said.stdout.splitlines()
    checked = next(each for each in lines if each.startswith("checked: "))
    assert "VMM_*" in checked and "CUDA_VISIBLE_DEVICES" in checked and "LD_PRELOAD" in checked
    skipped = next(each for each in lines if each.startswith("not checked: "))
    assert "CUDA_CACHE_PATH" in skipped and "CUDA_LAUNCH_BLOCKING" not in skipped
