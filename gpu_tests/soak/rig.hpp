// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the words of vmm-soak share: a CUDA device with its kernels and four streams, and the
// account of what the kernels found wrong. A call that fails ends the program: there is nothing
// left to show. It imports what it uses, so it is the last include of a file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

import vmm.cuda;
import vmm.kernels;
import vmm.manager;
import vmm.stream;

namespace soak {

inline constexpr std::size_t stream_count = 4;

struct settings {
  std::vector<std::string> traces;
  std::string policy = "pool";
  std::string markdown;
  std::uint64_t count = 0;  ///< rounds; events of each trace; 0: 10,000, or all
  std::uint64_t seed = 1;
  bool planted = false;  ///< rounds: free on a stream that is not ordered behind the block's work
};

int run_rounds(const settings& how);
int run_traces(const settings& how);

[[noreturn]] void stop(std::string_view text);

inline void must(const vmm::status& outcome) {
  if (!outcome) stop(vmm::describe(outcome.error()));
}

template <class T>
T must(vmm::result<T> outcome) {
  if (!outcome) stop(vmm::describe(outcome.error()));
  return std::move(*outcome);
}

/// A block whose contents a kernel wrote.
struct block {
  vmm::address at{};
  std::uint64_t size_bytes = 0;
  std::uint64_t seed = 0;
  std::size_t stream = 0;
};

class rig {
 public:
  explicit rig(vmm::cuda_driver& on);
  ~rig();
  rig(const rig&) = delete;
  rig& operator=(const rig&) = delete;

  /// Starts the kernel that writes the block's pattern, or the one that counts what differs.
  void fill(const block& b) { must(kernels_.fill(pattern_of(b))); }
  void check(const block& b) {
    must(kernels_.check(pattern_of(b), counter_));
    checked_bytes_ += b.size_bytes / 8 * 8;
    ++checked_count_;
  }
  void spin(std::size_t stream, std::uint64_t duration_ns) {
    must(kernels_.spin(duration_ns, streams_[stream]));
  }
  /// Orders work submitted to `second` from now on behind the work submitted to `first` so far.
  void order(std::size_t first, std::size_t second);
  /// A mark behind the work submitted to the stream so far, and whether the last one has been
  /// passed.
  void mark(std::size_t stream) { must(driver.record_event(mark_, streams_[stream])); }
  [[nodiscard]] bool mark_passed() { return must(driver.query_event(mark_)); }

  /// Waits for all streams. Words that a check found wrong so far.
  [[nodiscard]] std::uint64_t wrong_words();
  [[nodiscard]] std::uint64_t checked_bytes() const { return checked_bytes_; }
  [[nodiscard]] std::uint64_t checked_count() const { return checked_count_; }
  [[nodiscard]] vmm::stream_handle stream(std::size_t index) const { return streams_[index]; }

  vmm::cuda_driver& driver;

 private:
  [[nodiscard]] vmm::tools::pattern_request pattern_of(const block& b) const {
    return {{b.at, b.size_bytes < 8 ? 8 : b.size_bytes / 8 * 8}, b.seed, streams_[b.stream]};
  }

  vmm::tools::kernel_set kernels_;
  vmm::manager memory_;
  std::array<vmm::stream_handle, stream_count> streams_{};
  vmm::event_handle mark_{};
  vmm::event_handle order_{};
  vmm::address counter_{};
  std::uint64_t checked_bytes_ = 0;
  std::uint64_t checked_count_ = 0;
};

/// Opens the device; stops the program without a device (exit code 2).
[[nodiscard]] vmm::cuda_driver open_device();
[[nodiscard]] vmm::pool_policy policy_of(const settings& how);
/// Writes the page where the settings say, if they do.
void publish(const settings& how, const std::string& text);
[[nodiscard]] std::string number(double value, int digits);

}  // namespace soak
