// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:host_memory - host memory at a fixed address that is committed as it grows. Not exported.
//
// I1  The first committed_bytes() bytes are readable and writable, and were zero when committed.
// I2  data() is constant until extend() or the destructor; indices stay valid.
//
// Thread safety: none of its own. Cost: reserve and the destructor make one system call; commit
// makes one each time the committed part doubles, and where that passes 2 MiB it has the system
// move the first 2 MiB into a huge page, once.
export module vmm.va:host_memory;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

class reserved_memory {
 public:
  reserved_memory() = default;
  reserved_memory(reserved_memory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        reserved_bytes_(std::exchange(other.reserved_bytes_, 0)),
        committed_bytes_(std::exchange(other.committed_bytes_, 0)) {
    check(committed_bytes_ <= reserved_bytes_, "more host memory is committed than reserved");
  }
  inline reserved_memory& operator=(reserved_memory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(reserved_bytes_, other.reserved_bytes_);
    std::swap(committed_bytes_, other.committed_bytes_);
    check((base_ == nullptr) == (reserved_bytes_ == 0), "host memory has a size and no address");
    return *this;
  }
  reserved_memory(const reserved_memory&) = delete;
  reserved_memory& operator=(const reserved_memory&) = delete;
  ~reserved_memory();

  /// Reserves host addresses, without memory. Errors: out_of_host_memory.
  [[nodiscard]] static result<reserved_memory> reserve(std::uint64_t size_bytes) noexcept;

  /// The same with memory for all of it. Errors: out_of_host_memory, with `detail` if only memory
  /// is short.
  [[nodiscard]] static result<reserved_memory> make(std::uint64_t size_bytes,
                                                    const char* detail) noexcept;

  /// Makes at least the first `size_bytes` usable. False, without a change, if the system has no
  /// memory for it.
  [[nodiscard]] bool commit(std::uint64_t size_bytes) noexcept;

  /// Makes room to commit `size_bytes`, more than now; data() changes, and committed bytes are
  /// copied. False, without a change, if the system has no addresses or memory for it.
  [[nodiscard]] bool extend(std::uint64_t size_bytes) noexcept;

  [[nodiscard]] inline std::uint64_t reserved_bytes() const noexcept { return reserved_bytes_; }
  [[nodiscard]] inline std::byte* data() const noexcept { return base_; }
  [[nodiscard]] inline std::uint64_t committed_bytes() const noexcept { return committed_bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t committed_bytes_ = 0;
};

}  // namespace vmm
