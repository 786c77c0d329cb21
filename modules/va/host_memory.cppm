// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:host_memory - host memory that never moves and is paid for only as it grows: plain, and as
// an array of bits. Not exported.
//
// I1  The first committed_bytes() bytes are readable and writable, and were zero when committed.
// I2  data() stays the same until the object is destroyed, so that indices into it stay good.
//
// Thread safety: none of its own. Cost: reserve and the destructor make one system call; commit
// makes one each time the committed part doubles.
module;
#include <cstddef>
#include <cstdint>
#include <utility>

export module vmm.va:host_memory;

import vmm.backend;

namespace vmm {

class reserved_memory {
 public:
  reserved_memory() = default;
  reserved_memory(reserved_memory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        reserved_bytes_(std::exchange(other.reserved_bytes_, 0)),
        committed_bytes_(std::exchange(other.committed_bytes_, 0)) {}
  inline reserved_memory& operator=(reserved_memory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(reserved_bytes_, other.reserved_bytes_);
    std::swap(committed_bytes_, other.committed_bytes_);
    return *this;
  }
  reserved_memory(const reserved_memory&) = delete;
  reserved_memory& operator=(const reserved_memory&) = delete;
  ~reserved_memory();

  /// Takes host address space and no memory. Errors: out_of_host_memory.
  [[nodiscard]] static result<reserved_memory> reserve(std::uint64_t size_bytes) noexcept;

  /// Makes at least the first `size_bytes` usable; false, and nothing changed, when the system has
  /// no memory for it.
  [[nodiscard]] bool commit(std::uint64_t size_bytes) noexcept;

  [[nodiscard]] inline std::byte* data() const noexcept { return base_; }
  [[nodiscard]] inline std::uint64_t committed_bytes() const noexcept { return committed_bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t committed_bytes_ = 0;
};

/// One bit for each record, beside the records: whether a neighbour is live is known without
/// touching its cache line.
class record_bits {
 public:
  /// Room for `count` bits, all clear, and no memory yet. Errors: out_of_host_memory.
  [[nodiscard]] static result<record_bits> reserve(std::uint64_t count) noexcept;

  /// Makes at least the first `count` bits usable; false, and nothing changed, when the system has
  /// no memory for it.
  [[nodiscard]] bool commit(std::uint64_t count) noexcept;

  [[nodiscard]] inline bool test(std::uint32_t index) const noexcept {
    return (words()[index / 64] >> (index % 64) & 1) != 0;
  }
  inline void set(std::uint32_t index) noexcept {
    words()[index / 64] |= std::uint64_t{1} << (index % 64);
  }
  /// Clears the bit and says whether it was set.
  inline bool clear(std::uint32_t index) noexcept {
    std::uint64_t& word = words()[index / 64];
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    const std::uint64_t before = word;
    word = before & ~bit;
    return (before & bit) != 0;
  }

 private:
  [[nodiscard]] inline std::uint64_t* words() const noexcept {
    return reinterpret_cast<std::uint64_t*>(memory_.data());
  }

  reserved_memory memory_{};
};

}  // namespace vmm
