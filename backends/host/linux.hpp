// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The Linux calls behind vmm.host: no bookkeeping, no policy. Private to backends/host.
//
// Each function returns 0 or an errno, or a value with one. Interrupted calls are repeated a
// bounded number of times. None allocates. Thread safety: as the kernel's.
#ifndef VMM_BACKENDS_HOST_LINUX_HPP
#define VMM_BACKENDS_HOST_LINUX_HPP

#include <cstdint>

namespace vmm::linux_os {

enum class page_kind : std::uint8_t { normal, huge };
enum class protection : std::uint8_t { none, read, read_write };

struct extent {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct span {
  std::uint64_t base = 0;
  std::uint64_t size_bytes = 0;
};

/// A descriptor, or -1 and why.
struct opened {
  int descriptor = -1;
  int failure = 0;
};

/// A base address, or 0 and why.
struct placed {
  std::uint64_t base = 0;
  int failure = 0;
};

/// Figures that the kernel gives about a descriptor that came from elsewhere.
struct file_facts {
  std::uint64_t size_bytes = 0;
  bool memory_file = false;    ///< has seals: a memfd, not an ordinary file
  bool shrink_sealed = false;  ///< it cannot be truncated, so a mapping of it cannot fault
  bool writable = false;
  int failure = 0;
};

/// What the system has, or why it cannot be read.
struct memory_figures {
  std::uint64_t available_bytes = 0;
  std::uint64_t total_bytes = 0;
  int failure = 0;
};

[[nodiscard]] std::uint64_t page_size_bytes() noexcept;
inline constexpr std::uint64_t huge_page_bytes = 2ull << 20;

/// An unlinked memory file of `size_bytes`, close-on-exec. Nothing is committed. `sealed` files
/// keep their size for ever. EFBIG under a limit of file size (RLIMIT_FSIZE); its signal is kept
/// from the program.
[[nodiscard]] opened open_memory_file(std::uint64_t size_bytes, page_kind pages,
                                      bool sealed) noexcept;
[[nodiscard]] opened duplicate(int descriptor) noexcept;
void close(int descriptor) noexcept;
[[nodiscard]] file_facts examine(int descriptor) noexcept;

/// Makes the extent's pages be there; undone on failure.
[[nodiscard]] int commit(int descriptor, extent pages) noexcept;
/// Gives the extent's pages back to the system.
[[nodiscard]] int decommit(int descriptor, extent pages) noexcept;

/// Addresses with nothing behind them. `base` 0: anywhere; else exactly there or EEXIST.
[[nodiscard]] placed reserve(span where) noexcept;
[[nodiscard]] int unreserve(span where) noexcept;
/// Puts file memory, without access, over reserved addresses, and takes it away again. A forked
/// child finds nothing there.
[[nodiscard]] int map(span where, int descriptor, std::uint64_t offset_bytes) noexcept;
[[nodiscard]] int unmap(span where) noexcept;
[[nodiscard]] int protect(span where, protection rights) noexcept;

/// True when the process has (nearly) as many kernel mappings as it may have. Reads all of
/// /proc/self/maps; for error paths that are rare.
[[nodiscard]] bool mapping_limit_reached() noexcept;
/// The same question after ENOMEM for new addresses. Reads nothing where a single page is still to
/// be had: then the size was what the kernel refused.
[[nodiscard]] bool no_mapping_left() noexcept;
/// The kernel's limit on the mappings of a process; 0 when it cannot be read.
[[nodiscard]] std::uint64_t mapping_limit() noexcept;

/// What can still be committed without the process being killed: MemAvailable, and less where a
/// control group (version 1 or 2) that the process belongs to sets a lower limit. Some 10 us.
[[nodiscard]] memory_figures query_memory(page_kind pages) noexcept;

/// A few kernel mappings held in stock, so that memory can be unmapped while the process is at its
/// limit: the kernel then refuses even the call that would lower the count. `lend` frees them,
/// `take_back` tries to have them again.
class spare_mappings {
 public:
  spare_mappings() = default;
  spare_mappings(const spare_mappings&) = delete;
  spare_mappings& operator=(const spare_mappings&) = delete;
  ~spare_mappings() { lend(); }

  void take_back() noexcept;
  void lend() noexcept;

 private:
  span pages_{};
};

}  // namespace vmm::linux_os

#endif
