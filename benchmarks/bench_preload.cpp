// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_preload - what the preload library adds to a call of the driver: the same allocations and
// frees over a driver that does next to nothing, without the library and in the modes that pass
// memory on, each in a process of its own, in turns. A turn is timed in the thread's own processor
// time; the fastest one counts, since no turn is faster than its work.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.hpp"

namespace {

constexpr const char* usage =
    "usage: bench_preload [--turns COUNT]\n"
    "       bench_preload --play\n"
    "\n"
    "What the preload library adds to an allocation and to a free, in nanoseconds.\n"
    "  --turns COUNT  processes of each mode (default: 7)\n"
    "  --play         only play, and print nanoseconds: with the library that the caller preloads, "
    "in\n"
    "                 any mode, and the driver of LD_LIBRARY_PATH\n";

struct subject {
  const char* name;
  const char* mode;  // empty: without the library
  const char* trace;
};
constexpr std::array<subject, 5> subjects{{{"without it", "", ""},
                                           {"off", "off", ""},
                                           {"monitor", "monitor", ""},
                                           {"monitor, VMM_TRACE=/dev/null", "monitor", "/dev/null"},
                                           {"cache", "cache", ""}}};

struct figures {
  double plain_ns = std::numeric_limits<double>::max();    // an allocation and its free, halved
  double ordered_ns = std::numeric_limits<double>::max();  // the same in the order of a stream
};

// ---- the process that plays ---------------------------------------------------------------------

struct driver {
  int (*allocate)(std::uint64_t*, std::size_t) = nullptr;
  int (*free)(std::uint64_t) = nullptr;
  int (*allocate_async)(std::uint64_t*, std::size_t, void*) = nullptr;
  int (*free_async)(std::uint64_t, void*) = nullptr;
};

template <class Function>
void find(Function*& into, void* library, const char* name) {
  into = reinterpret_cast<Function*>(dlsym(library, name));
  if (into == nullptr) stop(dlerror());
}

template <class Round>
double time_of(Round&& round) {
  constexpr int passes = 12;
  constexpr int rounds = 1000;
  double best = std::numeric_limits<double>::max();
  for (int pass = 0; pass < passes; ++pass) {
    const double begin = cpu_ns();
    for (int i = 0; i < rounds; ++i) round(static_cast<std::size_t>(i));
    best = std::min(best, (cpu_ns() - begin) / rounds);
  }
  return best;
}

// A driver that has contexts gets one, and a stream; else the stream is any number.
void* make_stream(void* library, void* otherwise) {
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*create)(void**, unsigned) = nullptr;
  int (*init)(unsigned) = nullptr;
  if (dlsym(library, "cuDevicePrimaryCtxRetain") == nullptr) return otherwise;
  find(init, library, "cuInit");
  find(retain, library, "cuDevicePrimaryCtxRetain");
  find(set_current, library, "cuCtxSetCurrent");
  find(create, library, "cuStreamCreate");
  void* context = nullptr;
  void* stream = nullptr;
  const bool is_ready = init(0) == 0 && retain(&context, 0) == 0 && set_current(context) == 0 &&
                        create(&stream, 1) == 0;
  if (!is_ready) stop("the driver has no device");
  return stream;
}

figures play() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) stop(dlerror());
  driver cu;
  find(cu.allocate, library, "cuMemAlloc_v2");
  find(cu.free, library, "cuMemFree_v2");
  find(cu.allocate_async, library, "cuMemAllocAsync");
  find(cu.free_async, library, "cuMemFreeAsync");
  void* const stream = make_stream(library, &cu);
  std::array<std::uint64_t, 64> blocks{};
  constexpr double calls = 2.0 * blocks.size();
  figures found;
  found.plain_ns = time_of([&](std::size_t round) {
                     for (std::uint64_t& each : blocks) (void)cu.allocate(&each, 4096 + round);
                     for (const std::uint64_t each : blocks) (void)cu.free(each);
                   }) /
                   calls;
  found.ordered_ns = time_of([&](std::size_t round) {
                       for (std::uint64_t& each : blocks)
                         (void)cu.allocate_async(&each, 4096 + round, stream);
                       for (const std::uint64_t each : blocks) (void)cu.free_async(each, stream);
                     }) /
                     calls;
  return found;
}

// ---- the process that compares ------------------------------------------------------------------

void set(const char* name, const char* value) { (void)setenv(name, value, 1); }

// LD_PRELOAD is cut at blanks and colons: a library below such a folder has a link.
const std::string& preload_name() {
  static const std::string name = [] {
    const std::string library = VMM_PRELOAD;
    if (library.find_first_of(" \t:$") == std::string::npos) return library;
    const std::string link = "/tmp/bench_preload_" + std::to_string(getpid()) + ".so";
    return symlink(library.c_str(), link.c_str()) == 0 ? link : library;
  }();
  return name;
}

[[noreturn]] void become_player(const subject& what, int to) {
  (void)dup2(to, STDOUT_FILENO);
  set("LD_LIBRARY_PATH", VMM_BARE_DRIVER);
  for (const char* name : {"LD_PRELOAD", "VMM_TRACE", "VMM_REPORT_FORMAT"}) (void)unsetenv(name);
  if (*what.mode != '\0') {
    set("LD_PRELOAD", preload_name().c_str());
    set("VMM_MODE", what.mode);
    set("VMM_REPORT", "off");
    if (*what.trace != '\0') set("VMM_TRACE", what.trace);
  }
  (void)execl("/proc/self/exe", "bench_preload", "--play", static_cast<char*>(nullptr));
  _exit(127);
}

figures one_turn(const subject& what) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) stop("no pipe is left");
  const pid_t process = fork();
  if (process == 0) become_player(what, ends[1]);
  close(ends[1]);
  std::FILE* const from = fdopen(ends[0], "r");
  figures found;
  const bool is_read =
      from != nullptr && std::fscanf(from, "%lf %lf", &found.plain_ns, &found.ordered_ns) == 2;
  if (from != nullptr) std::fclose(from);
  int how = 0;
  if (process < 0 || waitpid(process, &how, 0) != process || how != 0 || !is_read)
    stop("a player has failed");
  return found;
}

void compare(unsigned turns) {
  std::array<figures, subjects.size()> best;
  for (unsigned turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      const figures now = one_turn(subjects[i]);
      best[i].plain_ns = std::min(best[i].plain_ns, now.plain_ns);
      best[i].ordered_ns = std::min(best[i].ordered_ns, now.ordered_ns);
    }
  }
  table rows;
  for (std::size_t i = 0; i < subjects.size(); ++i)
    rows.row()
        .text("mode", subjects[i].name)
        .figure("cuMemAlloc, cuMemFree: ns a call", best[i].plain_ns, 1)
        .figure("added", best[i].plain_ns - best[0].plain_ns, 1)
        .figure("cuMemAllocAsync, cuMemFreeAsync: ns a call", best[i].ordered_ns, 1)
        .figure("added", best[i].ordered_ns - best[0].ordered_ns, 1);
  print(rows.markdown());
}

}  // namespace

int main(int count, char** texts) {
  unsigned turns = 7;
  if (count == 2 && std::string_view(texts[1]) == "--play") {
    const figures found = play();
    std::printf("%.2f %.2f\n", found.plain_ns, found.ordered_ns);
    return 0;
  }
  option_list(usage).count("--turns", turns).read(count, texts);
  compare(turns);
  return 0;
}
