// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of vmm-pair, and what they share. It imports what it uses, so it is the last include of
// a file.
#ifndef VMM_TOOLS_PAIR_PARTS_HPP
#define VMM_TOOLS_PAIR_PARTS_HPP

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "runner.hpp"

import vmm;
import vmm.backend;
import vmm.kernels;

namespace vmm::tools {

inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

/// The sizes of the parts' work. The quick form is for the stub driver, whose figures are
/// meaningless.
struct pair_settings {
  bool is_quick = false;
  std::uint64_t kill_count = 100;
  double limit_s = 150;
  std::string nccl_library = "libnccl.so.2";

  [[nodiscard]] std::uint64_t size_bytes(std::uint64_t whole_bytes) const noexcept {
    return is_quick ? 4 * mib : whole_bytes;
  }
};

verdict try_rights(const pair_settings& how);
verdict measure_copies(const pair_settings& how);
verdict import_elsewhere(const pair_settings& how);
verdict try_aliases(const pair_settings& how);
verdict kill_importers(const pair_settings& how);
verdict reduce_with_nccl(const pair_settings& how);

[[noreturn]] inline void stop(const std::string& what) {
  std::fprintf(stderr, "vmm-pair: %s\n", what.c_str());
  end_part(verdict::failed, what);
}
inline void must(const status& done, const char* what) {
  if (!done) stop(std::string(what) + ": " + describe(done.error()));
}
template <class T>
T must(result<T> made, const char* what) {
  if (!made) stop(std::string(what) + ": " + describe(made.error()));
  return std::move(*made);
}

template <class Function>
Function call_of(const cuda_driver& driver, const char* name, std::int32_t version) {
  auto* const found = reinterpret_cast<Function>(driver.entry_point(name, version));
  if (found == nullptr) stop(std::string("the driver lacks ") + name);
  return found;
}

/// One of the two devices. Ends the part where it is not there.
inline cuda_driver open_device(std::int32_t device) {
  auto opened = cuda_driver::open({.device = device});
  if (opened) return std::move(*opened);
  const bool is_absent = opened.error().code == errc::unavailable;
  std::fprintf(stderr, "vmm-pair: %s\n", describe(opened.error()).c_str());
  end_part(is_absent ? verdict::no_pair : verdict::failed, describe(opened.error()));
}

inline double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

inline double gigabytes_per_second(std::uint64_t size_bytes, double us) {
  return static_cast<double>(size_bytes) / 1000.0 / us;
}

/// As printf, into a string.
template <class... Values>
std::string text_of(const char* form, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, form, values...);
  return text;
}

/// Options of memory that both devices read and write, for a driver of either.
inline manager_options both_devices(const cuda_driver& driver) {
  manager_options how;
  const access_grant other{device(1 - driver.home().ordinal), access::read_write};
  if (!how.peers.set(other)) stop("the list of access grants is full");
  return how;
}

/// A device with its kernels, and a counter in memory of its own.
struct checker {
  explicit checker(cuda_driver& on, const manager_options& how = {})
      : driver(on),
        kernels(must(kernel_set::load(on), "loading kernels")),
        own(on, how),
        stream(must(on.create_stream(), "a stream")),
        counter(must(own.allocate(2 * mib), "a counter")) {}

  checker(const checker&) = delete;
  checker& operator=(const checker&) = delete;
  ~checker() {
    (void)own.free(counter);
    (void)driver.destroy_stream(stream);
  }

  /// Fills the range with a pattern and waits for it.
  status fill(address_range range, std::uint64_t seed) {
    if (status begun = kernels.fill({range, seed, stream}); !begun) return begun;
    return driver.synchronize_stream(stream);
  }
  /// How many words of the range a kernel finds wrong.
  result<std::uint64_t> count_wrong(address_range range, std::uint64_t seed) {
    std::array<std::byte, 8> bytes{};
    status done = driver.write(counter, bytes);
    if (done) done = kernels.check({range, seed, stream}, counter);
    if (done) done = driver.synchronize_stream(stream);
    if (done) done = driver.read(bytes, counter);
    if (!done) return done.error();
    std::uint64_t count = 0;
    std::memcpy(&count, bytes.data(), sizeof count);
    return count;
  }

  cuda_driver& driver;
  kernel_set kernels;
  manager own;
  stream_handle stream;
  address counter;
};

}  // namespace vmm::tools

#endif
