// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a program of allocations, copies, streams and captures observes the same with and without
// the preload library. Method: each two bytes are one choice of a random program
// (tests/preload/caller/program.h). It runs on a stub driver, directly and through the library in
// the mode vmm; the two digests must be the same, and the fake driver below must have seen no
// misuse.
#include <dlfcn.h>

#include "../tests/preload/caller/program.h"

namespace caller {

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "WRONG %s\n", what);
  std::abort();
}

}  // namespace caller

namespace {

// The driver by its finder, and by the library's; each in both forms of its calls.
struct way {
  caller::driver legacy;
  caller::driver per_thread;
};
struct both {
  way straight;
  way managed;
};

way load_both(void* of) {
  return {caller::load(caller::find_legacy_stream, of),
          caller::load(caller::find_per_thread_stream, of)};
}

const both& drivers() {
  static const both only = [] {
    (void)setenv("VMM_MODE", "vmm", 1);
    (void)setenv("VMM_REPORT", "off", 1);
    caller::must(dlopen(VMM_PRELOAD_DRIVER "/libcuda.so.1", RTLD_NOW) != nullptr,
                 "the stub "
                 "driver");
    void* library = dlopen(VMM_PRELOAD_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    caller::must(library != nullptr, VMM_PRELOAD_LIBRARY);
    const both made{load_both(nullptr), load_both(library)};
    const bool are_two = made.straight.legacy.allocate != made.managed.legacy.allocate;
    caller::must(are_two, "two ways to the driver");
    caller::start(made.straight.legacy);
    return made;
  }();
  return only;
}

// As many choices as there are bytes; then always the first.
class drawn_bytes {
 public:
  drawn_bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  std::uint64_t operator()() {
    if (left_ < 2) return 0;
    const std::uint64_t value = data_[0] | std::uint64_t{data_[1]} << 8;
    data_ += 2;
    left_ -= 2;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

std::uint64_t digest_of(const way& cu, const std::uint8_t* data, std::size_t size) {
  caller::program_base base{&cu.legacy, &cu.per_thread, {}};
  base.may_reset = false;  // one way would end what the other one has
  for (std::size_t i = 0; i < caller::device_count; ++i)
    base.contexts[i] = caller::start(cu.legacy, static_cast<caller::device_id>(i));
  const std::uint64_t digest = caller::random_program(base, drawn_bytes(data, size)).run();
  caller::expect(cu.legacy.misuses() == 0, "no misuse");
  return digest;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const both& cu = drivers();
  caller::expect(digest_of(cu.straight, data, size) == digest_of(cu.managed, data, size),
                 "the same results and contents");
  return 0;
}
