// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Which function a program is given, by every route.

#include "driver.h"
#include "words.h"

// The C library's dlsym under its older name.
#if defined(__x86_64__)
asm(".symver old_dlsym, dlsym@GLIBC_2.2.5");
extern "C" void* old_dlsym(void*, const char*);
#else
static void* old_dlsym(void* handle, const char* name) { return dlsym(handle, name); }
#endif

extern "C" {
int probe();  // of the library that is linked first
void* ask_next_first(const char*);
void* ask_next_second(const char*);
void* ask_default_first(const char*);
}

namespace caller {
namespace {

struct listed {
  const char* symbol;
  const char* name;
};

constexpr listed table[] = {
#define VMM_ENTRY(symbol, name, version, streams, handler, parameters, arguments) {#symbol, name},
#include "../../../adapters/preload/entries.inc"
#undef VMM_ENTRY
    {"cuInit", "cuInit"},
    {"cuCtxSynchronize", "cuCtxSynchronize"},
    {"cuGetExportTable", "cuGetExportTable"},
    {"cuNoSuchCall", "cuNoSuchCall"},
};

constexpr int versions[] = {3020, 7000, 10000, 11020, 11030, 11080, 12000, 12040, 13000, 13010};
constexpr flag_set flag_list[] = {0, find_legacy_stream, find_per_thread_stream};

using new_finder = result_code (*)(const char*, void**, int, flag_set, int*);
using old_finder = result_code (*)(const char*, void**, int, flag_set);

void say(const char* route, const listed& what, int version, flag_set flags, const void* found) {
  std::printf("%s %s %d %llu %s\n", route, what.symbol, version, flags, owner_of(found));
}

void ask_new(const char* route, new_finder find) {
  for (const listed& each : table) {
    for (const int version : versions) {
      for (const flag_set flags : flag_list) {
        void* found = nullptr;
        int why = -1;
        const result_code code = find(each.name, &found, version, flags, &why);
        expect((code == code::success) == (found != nullptr), "an answer with its code");
        expect((why == 0) == (code == code::success), "a status with its code");
        say(route, each, version, flags, found);
      }
    }
  }
}

void ask_old(const char* route, old_finder find) {
  for (const listed& each : table) {
    for (const int version : versions) {
      void* found = nullptr;
      (void)find(each.name, &found, version, 0);
      say(route, each, version, 0, found);
    }
  }
}

int call(void* function) {
  return function == nullptr ? -1 : reinterpret_cast<int (*)()>(function)();
}

}  // namespace

void routes(const arguments&) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  must(library != nullptr, "libcuda.so.1");
  for (const listed& each : table) say("dlsym", each, 0, 0, dlsym(library, each.symbol));
  for (const listed& each : table) say("old_dlsym", each, 0, 0, old_dlsym(library, each.symbol));
  auto old = reinterpret_cast<old_finder>(dlsym(library, "cuGetProcAddress"));
  must(old != nullptr, "cuGetProcAddress");
  ask_old("cuGetProcAddress", old);
  auto found = reinterpret_cast<new_finder>(dlsym(library, "cuGetProcAddress_v2"));
  if (found == nullptr) return;
  ask_new("cuGetProcAddress_v2", found);
  void* again = nullptr;
  int why = 0;
  must(found("cuGetProcAddress", &again, 12000, 0, &why) == code::success, "the finder's finder");
  ask_new("found_v2", reinterpret_cast<new_finder>(again));
  must(found("cuGetProcAddress", &again, 11030, 0, &why) == code::success, "the old finder");
  ask_old("found_v1", reinterpret_cast<old_finder>(again));
}

// Through the shared runtime.
void entry_points(const arguments& all) {
  void* runtime = dlopen(std::string(all.at(0)).c_str(), RTLD_NOW);
  must(runtime != nullptr, "the stub libcudart");
  const auto by_version =
      reinterpret_cast<result_code (*)(const char*, void**, unsigned, flag_set, int*)>(
          dlsym(runtime, "cudaGetDriverEntryPointByVersion"));
  for (const char* form : {"cudaGetDriverEntryPoint", "cudaGetDriverEntryPoint_ptsz"}) {
    const auto plain = reinterpret_cast<result_code (*)(const char*, void**, flag_set, int*)>(
        dlsym(runtime, form));
    must(by_version != nullptr && plain != nullptr, form);
    for (const listed& each : table) {
      void* found = nullptr;
      int why = 0;
      (void)plain(each.name, &found, 0, &why);
      say(form, each, 0, 0, found);
    }
  }
  for (const listed& each : table) {
    for (const int version : versions) {
      void* found = nullptr;
      int why = 0;
      (void)by_version(each.name, &found, static_cast<unsigned>(version), 0, &why);
      say("cudaGetDriverEntryPointByVersion", each, version, 0, found);
    }
  }
}

// Names that are not the driver's, and handles whose results depend on the caller.
void names(const arguments& all) {
  std::printf("linked probe %d\n", probe());
  std::printf("next from the first %d\n", call(ask_next_first("probe")));
  std::printf("next from the second %d\n", call(ask_next_second("probe")));
  std::printf("default %d\n", call(ask_default_first("probe")));
  void* deep = dlopen(std::string(all.at(0)).c_str(), RTLD_NOW | RTLD_LOCAL);
  must(deep != nullptr, "the library with a scope of its own");
  const auto ask = reinterpret_cast<void* (*)(const char*)>(dlsym(deep, "ask_default_outer"));
  must(ask != nullptr, "ask_default_outer");
  std::printf("default from its own scope %d\n", call(ask("deep_probe")));
  std::printf("default from elsewhere %d\n", call(dlsym(RTLD_DEFAULT, "deep_probe")));
  for (const char* each :
       {"cudnnCreate", "cublasCreate_v2", "cuMemAllocButNotReally", "cuMemAlloc_v2"}) {
    for (int twice = 0; twice < 2; ++twice)
      std::printf("%s %s\n", each, owner_of(dlsym(deep, each)));
  }
  for (const char* each : {"cuMemAlloc_v2", "cuGetProcAddress", "cuGetProcAddress_v2"}) {
    std::printf("no driver, %s: default %s next %s\n", each, owner_of(dlsym(RTLD_DEFAULT, each)),
                owner_of(dlsym(RTLD_NEXT, each)));
  }
  dlerror();
  void* none = dlsym(deep, "no_such_name");
  const char* said = dlerror();
  std::printf("missing %s, %s\n", owner_of(none), said != nullptr ? "said so" : "silent");
  std::printf("repeated %s\n", dlerror() == nullptr ? "forgotten" : "kept");
}

// 40,000 look-ups by eight threads.
void look_ups(const arguments&) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  must(library != nullptr, "libcuda.so.1");
  std::atomic<void*> named = nullptr;
  std::atomic<void*> found = nullptr;
  std::atomic<int> wrong = 0;
  const auto same = [&](std::atomic<void*>& first, void* now) {
    void* before = nullptr;
    if (now == nullptr || (!first.compare_exchange_strong(before, now) && before != now)) ++wrong;
  };
  std::thread threads[8];
  for (std::thread& each : threads) {
    each = std::thread([&] {
      for (int i = 0; i < 2500; ++i) {
        same(named, dlsym(library, "cuMemAlloc_v2"));
        const auto find = reinterpret_cast<new_finder>(dlsym(library, "cuGetProcAddress_v2"));
        void* answer = nullptr;
        (void)find("cuMemAllocAsync", &answer, 12000, 0, nullptr);
        same(found, answer);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  std::printf("wrong %d\n", wrong.load());
  std::printf("owners %s %s\n", owner_of(named), owner_of(found));
}

// A second driver's library beside the one in use: its functions stay its own, and the first one's
// calls do not reach it. The argument is its file.
void two_drivers(const arguments& all) {
  void* const first = dlopen("libcuda.so.1", RTLD_NOW);
  must(first != nullptr, "libcuda.so.1");
  (void)dlsym(first, "cuGetProcAddress_v2");
  void* const second = dlopen(std::string(all.at(0)).c_str(), RTLD_NOW | RTLD_LOCAL);
  must(second != nullptr && second != first, "the second driver");
  Dl_info other{};
  must(dladdr(dlsym(second, "cuInit"), &other) != 0, "where it lies");
  for (const char* name : {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync"}) {
    Dl_info about{};
    const int known = dladdr(dlsym(second, name), &about);
    const bool is_own = known != 0 && about.dli_fbase == other.dli_fbase;
    std::printf("%s of the second: %s\n", name, is_own ? "its own" : "another's");
  }
  const driver cu = load_started();
  device_pointer at = 0;
  std::printf("allocate %d", cu.allocate(&at, 4096));
  std::printf(" free %d\n", cu.free(at));
}

// Out parameters may be null: the driver returns, and nothing is written.
void null_parameters(const arguments&) {
  const driver cu = load();
  std::printf("finder %d %d\n", cu.find(nullptr, nullptr, 12000, 0, nullptr),
              cu.find("cuMemAlloc", nullptr, 12000, 0, nullptr));
  start(cu);
  std::size_t bytes = 0;
  std::printf("allocate %d\n", cu.allocate(nullptr, 4096));
  std::printf("allocate_async %d\n", cu.allocate_async(nullptr, 4096, nullptr));
  device_pointer at = 0;
  std::printf("nothing %d %d\n", cu.allocate(&at, 0), cu.allocate_async(&at, 0, nullptr));
  std::printf("free null %d\n", cu.free(0));
  must(cu.allocate(&at, 4096) == code::success, "memory");
  std::printf("range %d %d %d\n", cu.range(nullptr, nullptr, at), cu.range(nullptr, &bytes, at),
              static_cast<int>(bytes));
  std::printf("info %d", cu.info(nullptr, nullptr));
  std::printf(" %d", cu.info(nullptr, &bytes));
  std::printf(" %d\n", cu.info(&bytes, nullptr));
  std::printf("attribute %d\n", cu.attribute(nullptr, pointer_attribute::context, at));
  std::printf("free %d\n", cu.free(at));
}

}  // namespace caller
