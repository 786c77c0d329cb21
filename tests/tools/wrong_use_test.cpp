// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every program and every word of ./run refuses a wrong command line or variable with the
// exit code that its documentation gives, a message that names it, and nothing on standard output;
// and prints --help on standard output.
// Method: tables of command lines. Where a program would work for long if it took what is wrong,
// the refusal has to come first for the test to end.
#include "command.hpp"

namespace {

const std::string build = VMM_BUILD_FOLDER;
const std::string source = VMM_SOURCE_FOLDER;
const std::string tiny = "a 1 3145728 0\na 2 1 0\nf 1\n";

/// In arguments @ is the path of a good trace.
struct row {
  const char* program;
  const char* arguments;
  const char* environment;
  int code;
  const char* message;
};

class WrongUse : public vmm::tests::CommandTest {
 protected:
  [[nodiscard]] static std::string place_of(const std::string& program) {
    return (program.starts_with("run") || program.ends_with(".sh") ? source : build) + "/" +
           program;
  }
  /// The line for the shell, whose first word is a program of the tree.
  [[nodiscard]] static std::string path_of(const std::string& line) {
    const std::size_t end = std::min(line.find(' '), line.size());
    return "'" + place_of(line.substr(0, end)) + "'" + line.substr(end);
  }

  void expect(const row& each) const {
    std::string arguments = each.arguments;
    const std::string trace = file("tiny.trace", tiny);
    for (std::size_t at = arguments.find('@'); at != std::string::npos; at = arguments.find('@'))
      arguments.replace(at, 1, trace);
    const std::string program = place_of(each.program);
    ASSERT_TRUE(std::filesystem::exists(program)) << program;
    const auto got = run("'" + program + "' " + arguments, each.environment);
    SCOPED_TRACE(std::string(each.environment) + " " + each.program + " " + each.arguments);
    EXPECT_EQ(got.code, each.code);
    EXPECT_EQ(got.out, "");
    EXPECT_NE(got.err.find(each.message), std::string::npos) << got.err;
    if (got.err.find("--help lists the options)\n") == std::string::npos) return;
    EXPECT_EQ(got.err.find('\n'), got.err.size() - 1) << "more than a line: " << got.err;
  }
};

TEST_F(WrongUse, OfReplay) {
  const char* const replay = "tools/vmm-replay";
  for (const row& each : std::vector<row>{
           {replay, "", "", 2,
            "vmm-replay: which trace? The first argument is a file (vmm-replay --help lists the "
            "options)\n"},
           {replay, "''", "", 2, "vmm-replay: the trace's name is empty"},
           {replay, "@ @", "", 2, "is one too many"},
           {replay, "@ --fast", "", 2,
            "unknown option --fast (vmm-replay --help lists the options)\n"},
           {replay, "@ --polcy pool", "", 2,
            "vmm-replay: unknown option --polcy; the nearest is --policy (vmm-replay --help"},
           {replay, "@ --jiter=3", "", 2, "unknown option --jiter=3; the nearest is --jitter ("},
           {replay, "@ --backend ''", "", 2,
            "--backend takes one of fake, host, cuda, cuda:N, level_zero, level_zero:N; not ''"},
           {replay, "@ --policy ''", "", 2, "--policy takes a value"},
           {replay, "@ --policy=", "", 2, "--policy takes a value"},
           {replay, "@ --policy poool", "", 2, "unknown policy 'poool'; the nearest is pool: "},
           {replay, "@ --repeat ''", "", 2, "--repeat takes a number from 0 to 1000; not ''"},
           {replay, "@ --repeat 1001", "", 2, "--repeat takes a number from 0 to 1000; not '1001'"},
           {replay, "@ --repeat 2x", "", 2, "--repeat takes a number from 0 to 1000; not '2x'"},
           {replay, "@ --json=1", "", 2, "--json takes no value"},
           {replay, "@ --costs", "", 2, "--costs takes a value"},
           {replay, "@ --costs real", "", 2, "--costs takes quiet or busy; not 'real'"},
           {replay, "@ --costs busy --backend host", "", 2, "only the fake driver has costs"},
           {replay, "@ --jitter -1", "", 2, "--jitter takes a whole number from 0 on; not '-1'"},
           {replay, "@ --jitter ''", "", 2, "--jitter takes a whole number from 0 on; not ''"},
           {replay, "@ --jitter-seeds 0", "", 2, "takes a number from 1 to 1000; not '0'"},
           {replay, "@ --jitter-seeds 1001", "", 2, "takes a number from 1 to 1000; not '1001'"},
           {replay, "@ --jitter-seeds 2 --jitter 1", "", 2, "--jitter-seeds takes no --jitter"},
           {replay, "@ --jitter-seeds 2 --repeat 1", "", 2, "--jitter-seeds takes no --repeat"},
           {replay, "@ --jitter-seeds 2 --svg x.svg", "", 2, "--jitter-seeds takes no --svg"},
           {replay, "@ --jitter-seeds 2 --history x", "", 2, "--jitter-seeds takes no --history"},
           {replay, "@ --svg ''", "", 2, "--svg takes a value"},
           {replay, "@ --svg no/such/x.svg", "", 1,
            "no/such/x.svg: cannot be written: No such file"},
           {replay, "@ --svg .", "", 1, ".: cannot be written: Is a directory"},
           {replay, "@ --svg ./tiny.trace", "", 2,
            "./tiny.trace is the trace: --svg takes another"},
           {replay, "@ --history ./tiny.trace", "", 2, "./tiny.trace is the trace or the picture"},
           {replay, "@ --svg x.svg --history ./x.svg", "", 2,
            "./x.svg is the trace or the picture: --history takes another"},
           {replay, "none.trace", "", 2, "none.trace: cannot be read: No such file"},
       }) {
    expect(each);
  }
}

TEST_F(WrongUse, OfReplaysVariables) {
  const char* const replay = "tools/vmm-replay";
  for (const row& each : std::vector<row>{
           {replay, "@", "VMM_BACKEND=nonsense", 2,
            "VMM_BACKEND takes one of fake, host, cuda, cuda:N, level_zero, level_zero:N; not"},
           {replay, "@ --backend level_zero:", "", 2,
            "--backend takes level_zero:N, where N is a device's number, 0 for the first; not "
            "'level_zero:'"},
           {replay, "@ --backend level_zero:-1", "", 2, "not 'level_zero:-1'"},
           {replay, "@ --backend cuda:1x", "", 2, "--backend takes cuda:N, where N is a device's"},
           {replay, "@ --backend cuda:99999999999", "", 2, "not 'cuda:99999999999'"},
           {replay, "@ --backend host:0", "", 2, "--backend takes host without a number; not"},
           {replay, "@ --backend metal:0", "", 2, "--backend takes one of fake, host, cuda"},
           {replay, "@", "VMM_BACKEND=cuda:x", 2, "VMM_BACKEND takes cuda:N, where N is a"},
           {replay, "@", "VMM_POLICY=best", 2, "VMM_POLICY takes one of"},
           {replay, "@ --policy pool", "VMM_POLICY=best", 2, "VMM_POLICY takes one of"},
           {replay, "@ --policy va_pool", "VMM_POOL_POLICY=best", 2, "VMM_POOL_POLICY"},
           {replay, "@", "VMM_FRAG_RATIO=2", 2, "VMM_FRAG_RATIO takes a number from 0 to 1"},
           {replay, "@", "VMM_BUDGET=much", 2, "VMM_BUDGET takes bytes"},
           {replay, "@", "VMM_VA_SIZE=0", 2, "VMM_VA_SIZE takes bytes"},
           {replay, "@", "VMM_CHUNK_SIZE=3", 2,
            "VMM_CHUNK_SIZE=3: manager_policy::chunk_bytes (VMM_CHUNK_SIZE) is a multiple of the "
            "device's"},
           {replay, "@ --policy pool", "VMM_VA_SIZE=1", 2,
            "VMM_VA_SIZE=1: reservation_bytes (VMM_VA_SIZE, VPMM_VA_SIZE) is at least one page, "
            "page_bytes (VMM_POOL_PAGE_SIZE); not '1': the bytes of a page are 2097152"},
           {replay, "@ --policy pool", "VMM_POOL_PAGE_SIZE=256GiB", 2,
            "VMM_POOL_PAGE_SIZE=256GiB: page_bytes (VMM_POOL_PAGE_SIZE) is at most the device's "
            "memory; not '274877906944': its bytes are 150"},
           {replay, "@", "VMM_CHUNK_SIZE=64PiB", 2,
            "VMM_CHUNK_SIZE=64PiB: manager_policy::chunk_bytes (VMM_CHUNK_SIZE) is at most the "
            "device's"},
           {replay, "@ --policy pool", "VMM_POOL_PAGES=99999999999", 2,
            "VMM_POOL_PAGES=99999999999: page_count (VMM_POOL_PAGES, VPMM_PAGES) is at most the "
            "pages "
            "of one reservation: reservation_bytes (VMM_VA_SIZE), and less than 512 GiB; not "
            "'99999999999': its pages are 262143"},
           {replay, "@ --policy pool", "VMM_POOL_PAGES=-1", 2,
            "VMM_POOL_PAGES takes a whole number"},
           {replay, "@", "VMM_BUDGET=65537TiB", 2, "VMM_BUDGET takes bytes"},
           {replay, "@ --policy pool", "VMM_BUDGET=65537TiB", 2, "VMM_BUDGET takes bytes"},
           {replay, "@ --policy pool", "VMM_VA_SIZE=65537TiB", 2, "VMM_VA_SIZE takes bytes"},
           {replay, "@ --policy pool", "VMM_POOL_PAGE_SIZE=0", 2, "VMM_POOL_PAGE_SIZE takes bytes"},
           {replay, "@ --policy pool", "VMM_POOL_PAGE_SIZE=1TiB", 2,
            "VMM_POOL_PAGE_SIZE takes bytes"},
           {replay, "@ --policy pool --backend host", "VMM_VA_SIZE=1", 2, "VMM_VA_SIZE=1: "},
           {replay, "@ --policy pool", "VMM_POOL_CAPTURE=maybe", 2,
            "VMM_POOL_CAPTURE takes one of"},
       }) {
    expect(each);
  }
}

TEST_F(WrongUse, OfFit) {
  const char* const fit = "tools/vmm-fit";
  for (const row& each : std::vector<row>{
           {fit, "", "", 3, "vmm-fit: no recording is named (vmm-fit --help lists the options)\n"},
           {fit, "@ --fast", "", 3, "unknown option --fast"},
           {fit, "@ -x", "", 3, "unknown option -x"},
           {fit, "@ --json=1", "", 3, "--json takes no value"},
           {fit, "@ --device", "", 3, "--device takes a value"},
           {fit, "@ --device 24", "", 3, "--device takes a size as 24GiB, or one of T4-16"},
           {fit, "@ --device -1GiB", "", 3, "not '-1GiB'"},
           {fit, "@ --device 1e300GiB", "", 3, "not '1e300GiB'"},
           {fit, "@ --page", "", 3, "--page takes a value"},
           {fit, "@ --beside much", "", 3, "--beside takes a size as 528MiB; not 'much'"},
           {fit, "@ --allocator rmm", "", 3, "--allocator takes native, expandable, async or vmm"},
           {fit, "@ --of x", "", 3, "--of takes the number of a device, from 0 on; not 'x'"},
           {fit, "@ --of 7", "", 3, "has 1 device, from 0 on; not 7"},
           {fit, "@ --conf max_split_size_mb", "", 3,
            "--conf: 'max_split_size_mb' is not a NAME:VALUE"},
           {fit, "@ --conf max_split_size_mb:x", "", 3, "max_split_size_mb does not take 'x'"},
           {fit, "@ --conf foo:1", "", 3,
            "--conf: Unrecognized key 'foo' in CUDA allocator config"},
           {fit, "@ @ --batch 8,16 --device 1GiB", "", 3, "is named twice"},
           {fit, "@ --batch 8,16", "", 3, "--batch takes two files, one for each batch size"},
           {fit, "@ @ --batch 8,8 --device 1GiB", "", 3, "--batch takes two batch sizes as 8,16"},
           {fit, "none.trace", "", 3, "none.trace: cannot be read: No such file"},
       }) {
    expect(each);
  }
}

TEST_F(WrongUse, OfTheDemoAndTheTraceWriter) {
  const char* const demo = "tools/vmm-demo";
  const char* const trace = "tools/vmm-trace";
  for (const row& each : std::vector<row>{
           {demo, "--up-to 2MiB", "", 2, "--up-to takes a size from 4MiB to 16GiB; not '2MiB'"},
           {demo, "--up-to", "", 2, "--up-to takes a value"},
           {demo, "banana", "", 2, "unknown option banana (vmm-demo --help lists the options)\n"},
           {demo, "--upto 1", "", 2, "unknown option --upto; the nearest is --up-to ("},
           {demo, "--backend fake", "", 2,
            "--backend takes cuda, cuda:N, level_zero, level_zero:N or host; not 'fake'"},
           {demo, "", "VMM_BACKEND=fake", 2,
            "VMM_BACKEND takes cuda, cuda:N, level_zero, level_zero:N or host; not 'fake'"},
           {demo, "--backend level_zero:one", "", 2, "--backend takes level_zero:N, where N is"},
           {demo, "", "VMM_BACKEND=cuda:-1", 2, "VMM_BACKEND takes cuda:N, where N is"},
           {demo, "--trace none.trace", "", 2, "none.trace: cannot be read: No such file"},
           {demo, "--trace @ --svg no/x.svg", "", 1, "no/x.svg: cannot be written: No such file"},
           {demo, "--trace @ --svg ./tiny.trace", "", 2, "./tiny.trace is the trace: --svg takes"},
           {demo, "--trace @ --svg x.svg --page ./no/x.html", "", 1,
            "no/x.html: cannot be written: No such file"},
           {demo, "--trace @ --svg x.svg --page x.svg", "", 2, "x.svg is the trace or the picture"},
           {demo, "--trace @ --svg x.svg --page ./x.svg", "", 2, "./x.svg is the trace or the"},
           {demo, "--trace @ --svg x.svg --page ./tiny.trace", "", 2,
            "./tiny.trace is the trace or the picture: --page takes another file"},
           {demo, "--trace @ --svg x.svg", "VMM_CHUNK_SIZE=3", 2,
            "VMM_CHUNK_SIZE=3: manager_policy::chunk_bytes"},
           {demo, "--trace @ --svg x.svg", "VMM_POOL_PAGES=x", 2, "VMM_POOL_PAGES takes"},
           {trace, "nonsense", "", 2, "unknown kind 'nonsense'"},
           {trace, "--fast", "", 2, "unknown option --fast (vmm-trace --help lists the options)\n"},
           {trace, "pictures one", "", 2, "a seed is a whole number from 0 on; not 'one'"},
           {trace, "pictures -1", "", 2, "unknown option -1"},
           {trace, "pictures 1 2", "", 2, "one seed at most; '2' is one too many"},
       }) {
    expect(each);
  }
}

TEST_F(WrongUse, OfAFileThatIsNotOne) {
  for (const row& each : std::vector<row>{
           {"tools/vmm-replay", "@ --svg -", "", 1, "-: cannot be written: name a file"},
           {"tools/vmm-replay", "@ --history=-", "", 1, "-: cannot be written: name a file"},
           {"tools/vmm-demo", "--trace @ --svg -", "", 1, "-: cannot be written: name a file"},
       }) {
    expect(each);
  }
}

TEST_F(WrongUse, OfBenchmarks) {
  const char* const usage = "usage: ";
  for (const row& each : std::vector<row>{
           {"benchmarks/bench_va", "--fast", "", 2, "unknown option --fast"},
           {"benchmarks/bench_va", "--json more", "", 2, "unknown option more"},
           {"benchmarks/bench_fake", "--json more", "", 2, "unknown option more"},
           {"benchmarks/bench_threads", "--events many", "", 2,
            "a count is a whole number from 1 on"},
           {"benchmarks/bench_threads", "--events 0", "", 2, "a count is a whole number from 1 on"},
           {"benchmarks/bench_threads", "--events", "", 2, "--events has no value"},
           {"benchmarks/bench_stream", "--fast", "", 2, "unknown option --fast"},
           {"benchmarks/bench_stream", "--live --traces", "", 2, usage},
           {"benchmarks/bench_stream", "--live --cold", "", 2, usage},
           {"benchmarks/bench_stream", "--alone --traces", "", 2, usage},
           {"benchmarks/bench_manager", "--fast", "", 2, "unknown option --fast"},
           {"benchmarks/bench_manager", "--rounds", "", 2, "--rounds has no value"},
           {"benchmarks/bench_manager", "--rounds 0", "", 2, "a count is a whole number from 1 on"},
           {"benchmarks/bench_stream", "--traces none.trace", "", 2, "none.trace: cannot be read"},
           {"benchmarks/bench_frontier", "--svg", "", 2, "--svg has no value"},
           {"benchmarks/bench_frontier", "--svg no/x.svg @", "", 2,
            "no/x.svg: cannot be written: No such"},
           {"benchmarks/bench_frontier", "--knob", "", 2, "--knob has no value"},
           {"benchmarks/bench_frontier", "--knob handels @", "", 2,
            "bench_frontier: no knob begins with 'handels'; knobs are: default; "
            "handles, MiB; handles at headroom 1.00, MiB; headroom; "},
           {"benchmarks/bench_frontier", "--jitter-seeds 0", "", 2,
            "a count is a whole number from 1 on"},
           {"benchmarks/bench_frontier", "--jitter-seeds 1001", "", 2,
            "--jitter-seeds takes 1 to 1000"},
           {"benchmarks/bench_frontier", "none.trace", "", 2, "none.trace: cannot be read"},
           {"benchmarks/bench_growth", "--peak 0", "", 2, "a count is a whole number from 1 on"},
           {"benchmarks/bench_growth", "--announce", "", 2, "--announce has no value"},
           {"benchmarks/bench_growth", "none.trace", "", 2, "none.trace: cannot be read"},
           {"benchmarks/bench_growable", "--fast 1", "", 2, "unknown option --fast"},
           {"benchmarks/bench_growable", "--step", "", 2, "--step has no value"},
           {"benchmarks/bench_growable", "--step 0", "", 2, "bytes are such as 4MiB; not '0'"},
           {"benchmarks/bench_growable", "--steps 0", "", 2, "a count is a whole number from 1 on"},
           {"benchmarks/bench_growable", "--backend none", "", 2, "none"},
           {"benchmarks/bench_growable", "--handle 3KiB", "", 2, "multiple of the granularity"},
           {"benchmarks/bench_suspend", "--fast 1", "", 2, "unknown option --fast"},
           {"benchmarks/bench_suspend", "--keep 3MiB", "", 2, "multiples of 32MiB; not '3MiB'"},
           {"benchmarks/bench_suspend", "--cycles 0", "", 2, "a count is a whole number from 1 on"},
           {"benchmarks/bench_suspend", "--backend none", "", 2, "none"},
#if VMM_HAS_PRELOAD
           {"benchmarks/bench_preload", "--fast", "", 2, "unknown option --fast"},
           {"benchmarks/bench_preload", "--turns 0", "", 2, "a count is a whole number from 1 on"},
#endif
           {"benchmarks/bench_history", "--fast", "", 2, "unknown option --fast"},
           {"benchmarks/bench_history", "--turns 0", "", 2, "a count is a whole number from 1 on"},
           {"benchmarks/bench_history", "--trace none.trace", "", 2, "none.trace: cannot be read"},
           {"benchmarks/history_player", "alone", "", 2, usage},
       }) {
    expect(each);
  }
}

TEST_F(WrongUse, OfTools) {
  const char* const usage = "usage: ";
  for (const row& each : std::vector<row>{
           {"tools/history/vmm-history", "", "", 2,
            "vmm-history: page, memory_viz, perfetto or summary is missing (vmm-history --help"},
           {"tools/history/vmm-history", "nonsense x", "", 2,
            "the command is page, memory_viz, perfetto or summary; not 'nonsense' (vmm-history "
            "--help"},
           {"tools/history/vmm-history", "page", "", 2, "page takes a history"},
           {"tools/history/vmm-history", "page a b c", "", 2, "'c' is one history too many"},
           {"tools/history/vmm-history", "summary none.history", "", 2,
            "none.history: cannot be read"},
           {"tools/history/vmm-history", "summary @", "", 2, "a trace has no addresses"},
           {"tools/history/vmm-history", "summary @ --device x", "", 2,
            "--device takes a number from 0 on; not 'x'"},
           {"tools/history/vmm-history", "page /", "", 2, "/: cannot be read: Is a directory"},
           {"tools/top/vmm-top", "--nonsense", "", 2, "unknown option --nonsense (vmm-top --help"},
           {"tools/top/vmm-top", "--jsn", "", 2, "unknown option --jsn; the nearest is --json ("},
           {"tools/top/vmm-top", "--interval 0", "", 2,
            "--interval takes seconds, 1 to 3600; not '0' (vmm-top"},
           {"tools/top/vmm-top", "--interval", "", 2, "--interval takes a value"},
           {"tools/history/vmm-history", "page @ --out", "", 2, "--out takes a path"},
           {"tools/history/vmm-history", "page @ --out @", "", 2, "is a history"},
           {"tools/history/vmm-history", "page @ --out ./tiny.trace", "", 2,
            "./tiny.trace is a history: --out takes another"},
           {"tools/history/vmm-history", "page @ -o x", "", 2, "unknown option -o (vmm-history"},
           {"tools/history/vmm-history", "page @ --ot x", "", 2,
            "unknown option --ot; the nearest is --out ("},
           {"tools/history/vmm-history", "page @ --out=", "", 2, "--out takes a path"},
           {"tests/stream/prove_schedules", "many", "", 2, usage},
           {"tests/stream/prove_schedules", "--threads", "", 2, usage},
           {"fuzz/replay_trace", "", "", 2, usage},
       }) {
    expect(each);
  }
}

TEST_F(WrongUse, AFolderThatOthersMayReadIsRefusedInALine) {
  std::filesystem::create_directories(path("of_mine/vmm"));
  using std::filesystem::perms;
  std::filesystem::permissions(path("of_mine/vmm"), perms::owner_all | perms::others_read);
  const auto got =
      run(path_of("tools/top/vmm-top") + " --json", "XDG_RUNTIME_DIR='" + path("of_mine") + "'");
  EXPECT_EQ(got.code, 1);
  EXPECT_EQ(got.err, "vmm-top: " + path("of_mine/vmm") +
                         ": the folder must be this user's, with mode 0700: change it, or remove "
                         "it\n");
}

TEST_F(WrongUse, OfProgramsForAGpu) {
  const char* const usage = "usage: ";
  const char* const count = "a count is a whole number from 1 on; not ";
  for (const row& each : std::vector<row>{
           {"benchmarks/bench_memory", "--array 3MiB", "", 2, "--array takes a power of two"},
           {"benchmarks/bench_memory", "--rounds", "", 2, "--rounds has no value"},
           {"benchmarks/bench_memory", "--rounds x", "", 2, count},
           {"benchmarks/bench_pool", "", "", 2, "no TRACE is given"},
           {"benchmarks/bench_pool", "@ --warm 0", "", 2, count},
           {"benchmarks/bench_pool", "@ --passes 0", "", 2, count},
           {"benchmarks/bench_release", "--slow", "", 2, "unknown option --slow"},
           {"benchmarks/bench_resize", "--repeat -1", "", 2, count},
           {"benchmarks/bench_sharing", "--events 1e6", "", 2, count},
           {"examples/example_gpu_vector", "banana", "", 2, usage},
           {"examples/example_gpu_vector", "12banana", "", 2, usage},
           {"examples/example_gpu_vector", "256 512", "", 2, usage},
       }) {
    expect(each);
  }
}

#if VMM_TEST_ALL
TEST_F(WrongUse, OfProgramsThatTestAGpu) {
  const char* const usage = "usage: ";
  const char* const count = "a count is a whole number from 1 on; not ";
  for (const row& each : std::vector<row>{
           {"gpu_tests/vmm-gpu-test", "", "", 2, usage},
           {"gpu_tests/vmm-gpu-test", "banana", "", 2, usage},
           {"gpu_tests/vmm-gpu-test", "rounds --count many", "", 2, count},
           {"gpu_tests/vmm-gpu-test", "everything --count 0", "", 2, count},
           {"gpu_tests/vmm-gpu-test", "overflow --nonsense", "", 2, "unknown option --nonsense"},
           {"gpu_tests/vmm-gpu-test", "overflow --workload 0", "", 2, count},
           {"gpu_tests/vmm-gpu-test", "graph nonsense", "", 2, "unknown option nonsense"},
           {"gpu_tests/fidelity/vmm-fidelity", "", "", 2, usage},
           {"gpu_tests/fidelity/vmm-fidelity", "random --count", "", 2, "--count has no value"},
           {"gpu_tests/fidelity/vmm-fidelity", "nonsense", "", 2, usage},
           {"gpu_tests/fidelity/vmm-fidelity", "busy --count", "", 2, "--count has no value"},
       }) {
    expect(each);
  }
}
#endif

TEST_F(WrongUse, OfRun) {
  for (const row& each : std::vector<row>{
           {"run", "nonsense", "", 2, "run: unknown command 'nonsense'\n"},
           {"run", "test banana", "", 2, "test takes --preset NAME"},
           {"run", "test --preset", "", 2, "--preset takes a name"},
           {"run", "test --preset nonsense", "", 2, "unknown preset 'nonsense' for tests"},
           {"run", "fuzz va", "", 2, "usage: ./run fuzz TARGET SECONDS"},
           {"run", "preload", "", 2, "usage: ./run preload off|monitor|vmm|cache PROGRAM"},
           {"run", "preload fast true", "", 2, "usage: ./run preload off|monitor|vmm|cache"},
           {"run", "fuzz va ten", "", 2, "usage: ./run fuzz TARGET SECONDS"},
           {"run", "fuzz va 0", "", 2, "usage: ./run fuzz TARGET SECONDS"},
           {"run", "fuzz va 4294967296", "", 2, "usage: ./run fuzz TARGET SECONDS"},
           {"run", "fuzz nonsense 1", "", 2, "unknown fuzz target 'nonsense'; TARGET is one of"},
           {"run", "fuzz ../../va 1", "", 2, "unknown fuzz target '../../va'; TARGET is one of"},
           {"run", "gpu nonsense", "", 2, "unknown command 'nonsense' for gpu"},
           {"run", "docs folder another", "", 2, "usage: ./run docs [FOLDER]"},
           {"gpu_tests/gpu.sh", "nonsense", "", 2, "gpu: unknown command 'nonsense'"},
       }) {
    expect(each);
  }
}

// The trace leaves a block live.
TEST_F(WrongUse, NothingIsSaidOfTheBlocksThatAGoodTraceLeavesLive) {
  const auto got = run(path_of("benchmarks/bench_frontier") + " --knob 'handles at' " +
                       file("tiny.trace", tiny));
  EXPECT_EQ(got.code, 0);
  EXPECT_EQ(got.err, "");
  EXPECT_NE(got.out.find("| handles at headroom 1.00, MiB | 64 |"), std::string::npos) << got.out;
  EXPECT_EQ(got.out.find("| spend"), std::string::npos) << got.out;
}

TEST_F(WrongUse, OfVariablesIsNamed) {
  const auto got = run(path_of("tools/vmm-replay") + " " + file("tiny.trace", tiny),
                       "VMM_POLICI=pool VMM_ZZZZZZZZZZ=1");
  EXPECT_EQ(got.code, 0);
  EXPECT_NE(got.err.find("vmm-replay: vmm has no variable VMM_POLICI; the nearest is VMM_POLICY\n"),
            std::string::npos)
      << got.err;
  EXPECT_NE(got.err.find("vmm-replay: vmm has no variable VMM_ZZZZZZZZZZ; docs/options.md"),
            std::string::npos)
      << got.err;
}

TEST_F(WrongUse, HelpIsAnsweredOnStandardOutput) {
  std::vector<std::string> lines = {"tools/vmm-trace",
                                    "benchmarks/bench_va --help",
                                    "benchmarks/bench_fake --help",
                                    "benchmarks/bench_threads --help",
                                    "benchmarks/bench_stream --help",
                                    "benchmarks/bench_frontier --help",
                                    "benchmarks/bench_history --help",
                                    "benchmarks/bench_growable --help",
                                    "benchmarks/bench_growth --help",
                                    "benchmarks/bench_suspend --help",
                                    "tests/stream/prove_schedules --help"};
  for (const char* of_run : {"run", "run help", "run --help", "run test --help", "run fuzz --help",
                             "run bench --help", "run gpu --help", "gpu_tests/gpu.sh --help"})
    lines.emplace_back(of_run);
#if VMM_HAS_PRELOAD
  lines.emplace_back("benchmarks/bench_preload --help");
#endif
#if VMM_TEST_ALL
  for (const char* name : {"fidelity/vmm-fidelity", "vmm-gpu-test"})
    lines.push_back("gpu_tests/" + std::string(name) + " --help");
#endif
  for (const char* name : {"memory", "pool", "release", "resize", "sharing"})
    lines.push_back("benchmarks/bench_" + std::string(name) + " --help");
  for (const char* tool :
       {"vmm-fit", "vmm-replay", "vmm-trace", "vmm-demo", "history/vmm-history", "top/vmm-top"}) {
    const std::string path = "tools/" + std::string(tool);
    lines.push_back(path + " -h");
    lines.push_back(path + " --help");
    const auto got = run(path_of(path + " --version"));
    EXPECT_EQ(got.code, 0) << path;
    EXPECT_EQ(got.out, path.substr(path.rfind('/') + 1) + " " VMM_VERSION "\n");
  }
  for (const std::string& line : lines) {
    const auto got = run(path_of(line));
    EXPECT_EQ(got.code, 0) << line;
    EXPECT_EQ(got.out.find("usage: "), 0u) << line << ": " << got.out;
    EXPECT_EQ(got.err, "") << line;
  }
}

TEST_F(WrongUse, AtTheLimitOfFileSizeIsAnErrorAndNoSignal) {
  const auto got =
      run("bash -c '(ulimit -f 0; exec \"$0\" \"$1\" --svg x.svg) 2>&1 >/dev/null | "
          "cat; exit ${PIPESTATUS[0]}' " +
          path_of("tools/vmm-replay") + " " + file("tiny.trace", tiny));
  EXPECT_EQ(got.code, 1);
  EXPECT_EQ(got.out, "vmm-replay: x.svg: cannot be written: File too large\n");
}

// A program that throws, as a program does whose memory ends (ulimit -v), on its main thread and on
// another.
TEST_F(WrongUse, ExceptionsEndAProgramWithAMessageAndItsCode) {
  struct ending {
    const char* word;
    int code;
    const char* message;
  };
  for (const ending& each :
       {ending{"memory", 4, "unforeseen: this process gets no more memory\n"},
        ending{"thread", 4, "unforeseen: this process gets no more memory\n"},
        ending{"text", 4, "unforeseen: an error that it does not expect: why\n"},
        ending{"number", 4, "unforeseen: an error that it does not expect\n"},
        ending{"nothing", 0, ""}}) {
    const auto got = run(path_of("tests/tools/unforeseen") + " " + each.word);
    EXPECT_EQ(got.code, each.code) << each.word;
    EXPECT_EQ(got.out, "begun\n") << each.word;
    EXPECT_EQ(got.err, each.message) << each.word;
  }
}

}  // namespace
