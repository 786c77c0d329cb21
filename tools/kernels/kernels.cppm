// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.kernels - three kernels for programs that show or measure vmm on a CUDA device.
//
// They are PTX text, which the driver compiles when it is loaded: no CUDA compiler and no CUDA
// library is needed to build a program that uses them.
//
// I1  A kernel_set belongs to one cuda_driver, which outlives it.
//
// Thread safety: a kernel_set may be used from any thread. Cost: load compiles, some milliseconds;
// a launch is a few microseconds on the host.
module;
#include <cstdint>

export module vmm.kernels;

import vmm.backend;
import vmm.cuda;

namespace vmm::tools {

/// What fill writes and check expects: the word at index i of the range is `seed + i *
/// pattern_step`.
export inline constexpr std::uint64_t pattern_step = 0x9E37'79B9'7F4A'7C15u;

/// A pattern in mapped memory, and the stream on which a kernel works on it.
export struct pattern_request {
  address_range range{};  ///< size a multiple of 8
  std::uint64_t seed = 0;
  stream_handle stream = stream_handle::default_stream;
};

export class kernel_set {
 public:
  /// Compiles the kernels for the device. Errors: what the driver said; unavailable without cuda.h.
  [[nodiscard]] static result<kernel_set> load(cuda_driver& driver);
  ~kernel_set();
  kernel_set(kernel_set&& from) noexcept;
  kernel_set& operator=(kernel_set&&) = delete;

  /// Writes the pattern, in stream order.
  [[nodiscard]] status fill(const pattern_request& request);
  /// Adds the number of words that differ from the pattern to the 64-bit counter at `wrong`, in
  /// stream order.
  [[nodiscard]] status check(const pattern_request& request, address wrong);
  /// Keeps one block of the device busy for `duration_ns`.
  [[nodiscard]] status spin(std::uint64_t duration_ns, stream_handle stream);

 private:
  explicit kernel_set(cuda_driver& driver) noexcept : driver_(&driver) {}
  [[nodiscard]] status launch(std::uint64_t kernel, std::uint32_t block_count, void** arguments,
                              stream_handle stream);

  cuda_driver* driver_;
  std::uint64_t module_ = 0;
  std::uint64_t fill_ = 0;
  std::uint64_t check_ = 0;
  std::uint64_t spin_ = 0;
};

}  // namespace vmm::tools
