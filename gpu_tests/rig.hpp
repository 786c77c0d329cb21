// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the commands of vmm-gpu-test share: their settings, and a CUDA device with its kernels, some
// streams and a counter of wrong words. A call that fails ends the program. It imports what it
// uses, so it is the last include of a file.
#pragma once

#include "../tools/program/cuda_calls.hpp"

import vmm;
import vmm.kernels;

namespace vmm::gpu {

inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

struct settings {
  std::vector<std::string> traces;
  std::string policy = "pool";
  std::string markdown;     ///< the table is added to this file
  std::uint64_t count = 0;  ///< of rounds, of each trace's events, of blocks; 0: the command's own
  std::uint64_t seed = 1;
  bool is_planted = false;  ///< rounds: frees on a stream that nothing orders behind the work
  std::string target;       ///< overflow: where the byte goes; empty: into a block
  bool is_quick = false;    ///< pair: small sizes, for the stub driver, whose times mean nothing
  std::uint64_t kill_count = 0;  ///< 0: 100, or 4 where is_quick
  std::uint64_t limit_s = 150;   ///< of a part
  std::string nccl_library = "libnccl.so.2";

  [[nodiscard]] std::uint64_t size_bytes(std::uint64_t whole_bytes) const {
    return is_quick ? 4 * mib : whole_bytes;
  }
};

int run_rounds(const settings& how);
int run_traces(const settings& how);
int run_graph(const settings& how);
int run_everything(const settings& how);
int run_overflow(const settings& how);

[[nodiscard]] inline vmm::pool_policy policy_of(const settings& how) {
  const auto named = vmm::pool_policy::by_name(how.policy);
  if (!named) stop("unknown policy " + how.policy);
  return *named;
}

/// Prints a table, and adds it to the file of the settings.
inline void publish(const settings& how, const std::string& text) {
  std::fputs(text.c_str(), stdout);
  if (how.markdown.empty()) return;
  std::ofstream file(how.markdown, std::ios::binary | std::ios::app);
  file << text;
  if (!file.flush()) stop("cannot write " + how.markdown);
}

[[nodiscard]] inline vmm::cuda_driver open_device() {
  auto opened = vmm::cuda_driver::open();
  if (!opened) stop("no CUDA device: " + vmm::describe(opened.error()));
  return std::move(*opened);
}

inline double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

/// For printf.
inline unsigned long long wide(std::uint64_t value) { return value; }

/// As printf, into a string.
template <class... Values>
std::string text_of(const char* form, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, form, values...);
  return text;
}

struct rig_options {
  std::size_t stream_count = 1;
  vmm::manager_options memory{};
  bool with_aliases = false;
};

class rig {
 public:
  explicit rig(vmm::cuda_driver& on, const rig_options& how = {})
      : driver(on),
        kernels(must(vmm::tools::kernel_set::load(on, how.with_aliases))),
        memory_(on, how.memory) {
    counter = must(memory_.allocate(sizeof(std::uint64_t)));
    while (streams.size() < how.stream_count) streams.push_back(must(on.create_stream()));
    order_ = must(on.create_event());
    clear();
  }
  rig(const rig&) = delete;
  rig& operator=(const rig&) = delete;
  ~rig() {
    for (const vmm::stream_handle each : streams) {
      (void)driver.synchronize_stream(each);
      (void)driver.destroy_stream(each);
    }
    (void)driver.destroy_event(order_);
    (void)memory_.free(counter);
  }

  /// Starts the kernel that writes the pattern, or the one that counts what differs from it.
  void fill(vmm::address_range range, std::uint64_t seed, vmm::stream_handle on) {
    must(kernels.fill({range, seed, on}));
  }
  void check(vmm::address_range range, std::uint64_t seed, vmm::stream_handle on) {
    must(kernels.check({range, seed, on}, counter));
  }
  void spin(std::uint64_t duration_ns, vmm::stream_handle on) {
    must(kernels.spin(duration_ns, on));
  }
  /// Orders work submitted to `second` from now on behind the work submitted to `first` so far.
  void order(vmm::stream_handle first, vmm::stream_handle second) {
    must(driver.record_event(order_, first));
    must(driver.wait_event(second, order_));
  }
  void finish() {
    for (const vmm::stream_handle each : streams) must(driver.synchronize_stream(each));
  }
  void clear() { must(driver.write(counter, std::array<std::byte, 8>{})); }
  /// Words that kernels have found wrong since clear(). Waits for all streams.
  [[nodiscard]] std::uint64_t wrong_words() {
    finish();
    return must(read_counter());
  }

  /// As fill() and wrong_words(), on the first stream; a kernel that is stopped is an error.
  [[nodiscard]] vmm::status try_fill(vmm::address_range range, std::uint64_t seed) {
    const vmm::status begun = kernels.fill({range, seed, streams[0]});
    return begun ? driver.synchronize_stream(streams[0]) : begun;
  }
  [[nodiscard]] vmm::result<std::uint64_t> try_count(vmm::address_range range, std::uint64_t seed) {
    clear();
    vmm::status done = kernels.check({range, seed, streams[0]}, counter);
    if (done) done = driver.synchronize_stream(streams[0]);
    if (!done) return done.error();
    return read_counter();
  }

  vmm::cuda_driver& driver;
  vmm::tools::kernel_set kernels;
  std::vector<vmm::stream_handle> streams;
  vmm::address counter{};

 private:
  [[nodiscard]] vmm::result<std::uint64_t> read_counter() {
    std::uint64_t wrong = 0;
    const vmm::status done = driver.read(std::as_writable_bytes(std::span(&wrong, 1)), counter);
    if (!done) return done.error();
    return wrong;
  }

  vmm::manager memory_;
  vmm::event_handle order_{};
};

}  // namespace vmm::gpu
