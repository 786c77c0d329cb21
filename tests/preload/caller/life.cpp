// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes and their ends.
#include <csignal>

#include "driver.h"
#include "two_processes.h"
#include "words.h"

namespace caller {
namespace {

int allocate_and_free(const driver& cu, std::size_t size) {
  device_pointer at = 0;
  const int made = cu.allocate(&at, size);
  return made != code::success ? made : cu.free(at);
}

volatile std::sig_atomic_t signals_seen = 0;

}  // namespace

// A program that never loads the driver.
void nothing(const arguments&) {
  struct sigaction now{};
  (void)sigaction(SIGUSR1, nullptr, &now);
  std::printf("signal %s\n", now.sa_handler == SIG_DFL ? "default" : "taken");
  std::printf("driver %s\n",
              dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == nullptr ? "absent" : "loaded");
}

// A process with threads that look names up forks, over and over; each child looks some up, and
// ends. The first argument is how often; a second one loads the driver first. No heap in a child.
void fork_storm(const arguments& all) {
  constexpr std::array names{"cuInit",           "malloc",       "cuMemAlloc_v2",
                             "cuGetProcAddress", "no_such_name", "cuGetProcAddress_v2"};
  const int rounds = std::stoi(std::string(all.at(0)));
  void* const driver = all.size() > 1 ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
  must(driver != nullptr || all.size() == 1, "the driver");
  const auto look_up = [&](std::size_t seed) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const char* const name = names[(seed + i) % names.size()];
      for (void* const where : {driver, RTLD_DEFAULT, RTLD_NEXT}) (void)dlsym(where, name);
    }
  };
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t seed = i; !is_over.load(); ++seed) {
        if (i == 2) {
          void* const opened = dlopen("libm.so.6", RTLD_NOW);
          if (opened != nullptr) dlclose(opened);
        }
        look_up(seed);
      }
    });
  }
  int wrong_count = 0;
  for (int round = 0; round < rounds; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);  // a child that hangs dies of it
      look_up(static_cast<std::size_t>(round));
      _exit(0);
    }
    wrong_count += code_of(child) == 0 ? 0 : 1;
  }
  is_over = true;
  for (std::thread& each : threads) each.join();
  std::printf("%d children that did not end by themselves\n", wrong_count);
}

// Forks beside a thread whose contexts end, with the memory that was allocated in them. A process
// that hangs dies of the alarm.
void fork_beside_ends(const arguments& all) {
  alarm(240);
  const driver cu = load_started();
  std::atomic<bool> is_over = false;
  std::thread ending([&] {
    while (!is_over.load()) {
      context_id context = nullptr;
      must(cu.create_context(&context, 0) == code::success, "a context");
      for (int i = 0; i < 20; ++i) (void)make(cu, 1000);
      must(cu.destroy_context(context) == code::success, "its end");
    }
  });
  int wrong_count = 0;
  for (int round = 0; round < std::stoi(std::string(all.at(0))); ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    wrong_count += code_of(child) == 0 ? 0 : 1;
  }
  is_over = true;
  ending.join();
  std::printf("%d children that did not end by themselves\n", wrong_count);
}

// Known calls, for the report and the trace.
void work(const arguments& all) {
  const driver cu = load_started();
  const stream_id streams[] = {make_stream(cu), make_stream(cu)};
  device_pointer blocks[6] = {};
  for (int i = 0; i < 4; ++i) blocks[i] = make(cu, mebibyte << i);
  for (int i = 0; i < 2; ++i) blocks[4 + i] = make_ordered(cu, i == 0 ? 3000 : 5000, streams[i]);
  must(cu.free(blocks[0]) == code::success && cu.free(blocks[2]) == code::success, "a free");
  must(cu.free_async(blocks[4], streams[0]) == code::success, "a free");
  std::printf("failed %d\n", cu.allocate(&blocks[0], 0));
  std::thread([&] {
    start(cu);
    must(cu.free(make(cu, 100)) == code::success, "a thread");
  }).join();
  if (all.empty()) return;
  must(cu.free(blocks[1]) == code::success && cu.free(blocks[3]) == code::success, "a free");
  must(cu.free_async(blocks[5], streams[1]) == code::success, "a free");
}

// The driver was not used yet: the child is a process as any.
// Some 400 KB of a trace.
void many(const arguments&) {
  const driver cu = load_started();
  for (int i = 0; i < 20'000; ++i) must(cu.free(make(cu, 4096)) == code::success, "a free");
  std::printf("done\n");
}

void fork_before(const arguments&) {
  const driver cu = load();
  in_child([&] {
    start(cu);
    const int code = allocate_and_free(cu, 4096);
    std::printf("in the child %d\n", code);
    return code;
  });
  start(cu);
  std::printf("in the parent %d\n", allocate_and_free(cu, 4096));
}

// It was: the driver refuses everything in the child, and so it stays.
void fork_after(const arguments&) {
  const driver cu = load_started();
  const device_pointer at = make(cu, 4096);
  in_child([&] {
    device_pointer other = 0;
    std::printf("in the child %d %d\n", cu.allocate(&other, 4096) != 0, cu.free(at) != 0);
    return 3;
  });
  std::printf("in the parent %d %d\n", allocate_and_free(cu, 4096), cu.free(at));
}

void exec_self(const arguments& all) {
  const driver cu = load_started();
  (void)make(cu, 4096);
  std::fflush(stdout);
  const std::string self(all.at(0));
  execl(self.c_str(), self.c_str(), "work", nullptr);
  must(false, "exec");
}

void exit_with_threads(const arguments&) {
  static const driver cu = load_started();
  static std::atomic<int> running = 0;
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      start(cu);
      ++running;
      while (true) (void)allocate_and_free(cu, 100'000);
    }).detach();
  }
  while (running.load() != 4) std::this_thread::yield();
  std::printf("running\n");
  std::fflush(stdout);
  std::exit(5);
}

// Memory that is freed and allocated when the program's handlers and destructors run.
void free_at_the_end(const arguments&) {
  static const driver cu = load_started();
  static device_pointer at = 0;
  const auto last = [] {
    std::printf("last: free %d", cu.free(at));
    std::printf(" allocate %d\n", allocate_and_free(cu, 3000));
    std::fflush(stdout);
  };
  (void)std::atexit(+last);
  at = make(cu, 5'000'000);
  (void)std::atexit(+[] { std::printf("first: allocate %d\n", allocate_and_free(cu, 7000)); });
  struct freed_by_a_destructor {
    device_pointer own = 0;
    ~freed_by_a_destructor() { std::printf("between: free %d\n", cu.free(own)); }
  };
  static const freed_by_a_destructor owner{make(cu, 70'000)};
  std::exit(3);
}

void close_library(const arguments&) {
  for (int i = 0; i < 3; ++i) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    must(library != nullptr, "libcuda.so.1");
    const driver cu = load_started();
    std::printf("works %d\n", allocate_and_free(cu, 4096));
    dlclose(cu.loaded);
    dlclose(library);
  }
  void* ours = dlopen("libvmm_preload.so", RTLD_NOW | RTLD_NOLOAD);
  if (ours != nullptr) {
    dlclose(ours);
    dlclose(ours);
  }
  const driver cu = load_started();
  std::printf("works %d\n", allocate_and_free(cu, 4096));
}

// The program's own handler, set before the driver is used and after it.
void own_signal(const arguments&) {
  struct sigaction own{};
  own.sa_handler = [](int) { signals_seen = signals_seen + 1; };
  must(sigaction(SIGUSR1, &own, nullptr) == 0, "sigaction");
  const driver cu = load_started();
  std::printf("works %d\n", allocate_and_free(cu, 4096));
  must(raise(SIGUSR1) == 0 && signals_seen == 1, "the program's handler");
  must(sigaction(SIGUSR1, &own, nullptr) == 0, "sigaction");
  must(raise(SIGUSR1) == 0 && signals_seen == 2, "the program's handler");
  std::printf("seen %d\n", static_cast<int>(signals_seen));
}

void default_signal(const arguments&) {
  const driver cu = load_started();
  std::printf("works %d\n", allocate_and_free(cu, 4096));
  must(raise(SIGUSR1) == 0, "raise");
  std::printf("goes on\n");
}

// The signal comes to threads in the middle of their calls.
void signal_storm(const arguments&) {
  static const driver cu = load_started();
  std::atomic<int> running = 0;
  std::atomic<bool> is_over = false;
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      start(cu);
      ++running;
      while (!is_over) failed += allocate_and_free(cu, 100'000) == 0 ? 0 : 1;
    });
  }
  while (running.load() != 3) std::this_thread::yield();
  for (int i = 0; i < 150; ++i) {
    const pthread_t to = threads[static_cast<std::size_t>(i) % threads.size()].native_handle();
    must(pthread_kill(to, SIGUSR1) == 0, "a signal");
    std::this_thread::yield();
  }
  is_over = true;
  for (std::thread& each : threads) each.join();
  std::printf("failed %d\n", failed.load());
}

void ask_for_report(const arguments&) {
  const driver cu = load_started();
  std::printf("works %d\n", allocate_and_free(cu, 4096));
  int (*report)(int, int) = any_function{dlsym(RTLD_DEFAULT, "vmm_preload_report")};
  std::fflush(stdout);
  std::printf("\nreported %d\n", report == nullptr ? -1 : report(STDOUT_FILENO, 1));
}

}  // namespace caller
