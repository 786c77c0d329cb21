// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.kernels - some kernels for programs that show or measure vmm on a CUDA device.
//
// They are PTX text, which the driver compiles when it is loaded: no CUDA compiler and no CUDA
// library is needed to build a program that uses them.
//
// A kernel_set belongs to one cuda_driver, which outlives it.
//
// Thread safety: a kernel_set may be used from any thread. Cost: load compiles, some milliseconds;
// a launch is a few microseconds on the host.
export module vmm.kernels;

import vmm.backend;
import vmm.cuda;
import vmm.std;

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

/// Arrays of one size in mapped memory that a kernel reads and writes once, and the stream.
export struct array_request {
  address target{};
  address source{};
  std::uint64_t size_bytes = 0;  ///< of each array; a multiple of 16
  stream_handle stream = stream_handle::default_stream;
};

export class kernel_set {
 public:
  /// Compiles the kernels for the device; `with_aliases`: write_and_read(), too, which needs sm_75.
  /// Errors: what the driver said.
  [[nodiscard]] static result<kernel_set> load(cuda_driver& driver, bool with_aliases = false);
  ~kernel_set();
  kernel_set(kernel_set&& from) noexcept;
  kernel_set& operator=(kernel_set&&) = delete;

  /// Writes the pattern, in stream order.
  [[nodiscard]] status fill(const pattern_request& request);
  /// Adds the number of words that differ from the pattern to the 64-bit counter at `wrong`, in
  /// stream order.
  [[nodiscard]] status check(const pattern_request& request, address wrong);
  /// Each thread writes a word of the pattern and, behind fence.proxy.alias, reads it at the same
  /// place from `read` on; words that differ are added to the counter. In stream order.
  [[nodiscard]] status write_and_read(const pattern_request& request, address read, address wrong);
  /// target = source, by the multiprocessors, in stream order.
  [[nodiscard]] status copy(const array_request& request);
  /// Writes one byte, wherever it is, in stream order.
  [[nodiscard]] status poke(address target, std::uint8_t value, stream_handle stream);
  /// Keeps one block of the device busy for `duration_ns`.
  [[nodiscard]] status spin(std::uint64_t duration_ns, stream_handle stream);

 private:
  explicit kernel_set(cuda_driver& driver) noexcept : driver_(&driver) {}
  template <class... Words>
  [[nodiscard]] status launch(std::size_t which, stream_handle stream, std::uint64_t element_count,
                              Words... words);

  cuda_driver* driver_;
  std::uint64_t module_ = 0;
  std::array<std::uint64_t, 6> functions_{};
};

}  // namespace vmm::tools
