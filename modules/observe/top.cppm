// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe:top - publishes the statistics of this process's allocators to other processes of
// the same user.
//
// A process that enables it (VMM_TOP=1, memory_options::publish, publish_allocators) has one file
// of fixed size in a folder that only its user may enter; a thread writes each allocator's
// statistics there, four times a second. vmm-top reads it. tools/history/README.md has the format.
//
// I1  A slot's sequence is odd while it is written: bytes read between two equal, even readings of
//     it are one sample.
// I2  The file has its name only after its head is written, and while its lock is held. The lock
//     ends with the process.
// I3  The user owns the folder and the file, and other users may not read them; else nothing is
//     published.
//
// Everything read from a file is validated.
//
// Thread safety: all of it. A forked child shows its own allocators, not its parent's. Cost: a
// getenv when an allocator is set up; a thread if enabled, else nothing more.
export module vmm.observe:top;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// The kind of a publisher.
export enum class top_kind : std::uint64_t {
  pool = 0,
  manager = 1,
  handle_cache = 2,  ///< the preload library's mode cache: live bytes are the program's handles
};

/// Figures of one allocator, in bytes and counts.
export struct top_sample {
  static constexpr std::size_t policy_chars = 24;
  static constexpr std::size_t driver_chars = 32;

  std::uint64_t number = 0;  ///< of the allocator within its process, from 1
  top_kind kind = top_kind::pool;
  std::uint64_t time_ns = 0;  ///< since the system started
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_held_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t peak_live_bytes = 0;  ///< 0: not counted
  std::uint64_t free_bytes = 0;
  std::uint64_t reserved_bytes = 0;  ///< addresses
  std::uint64_t budget_bytes = 0;    ///< 0: none
  std::uint64_t live_count = 0;
  std::uint64_t slow_count = 0;
  std::uint64_t moved_bytes = 0;
  std::array<char, policy_chars> policy{};  ///< ends with a 0
  std::array<char, driver_chars> driver{};

  /// Truncates long names.
  void set_names(std::string_view policy_name, std::string_view driver_name) noexcept;
};

// ---- the file ------------------------------------------------------------------------

/// Its first bytes. A reader of another version refuses the file.
export struct top_head {
  static constexpr std::uint64_t magic_number = 0x0a31706f746d6d76;  // "vmmtop1\n"
  static constexpr std::uint32_t version_number = 1;

  std::uint64_t magic = magic_number;
  std::uint32_t version = version_number;
  std::uint32_t slot_count = 0;
  std::uint64_t process = 0;
  std::uint64_t hidden_count = 0;  ///< allocators without a slot
  std::array<char, 16> program{};  ///< ends with a 0
  std::array<std::uint64_t, 2> reserved{};
};
/// One allocator's slot. A sequence of 0: never used. A sample whose number is 0: no longer used.
export struct top_slot {
  static constexpr std::size_t word_count = 23;
  std::uint64_t sequence = 0;
  std::array<std::uint64_t, word_count> words{};
};
/// The number of slots of a process.
export inline constexpr std::uint32_t top_slot_count = 64;
/// The size of a process's file.
export inline constexpr std::size_t top_file_bytes =
    sizeof(top_head) + top_slot_count * sizeof(top_slot);
static_assert(sizeof(top_head) == 64 && sizeof(top_slot) == 192);

/// The words of a slot, and back. Errors: invalid_argument (words that no sample has).
export [[nodiscard]] std::array<std::uint64_t, top_slot::word_count> encode_sample(
    const top_sample& from) noexcept;
export [[nodiscard]] result<top_sample> decode_sample(
    const std::array<std::uint64_t, top_slot::word_count>& from) noexcept;
/// Whether this is the head of a file of this version, of the process. Errors: invalid_argument,
/// not_supported (another version).
export [[nodiscard]] status check_head(const top_head& read, std::uint64_t process) noexcept;

/// The folders of this user's files, the first of them for new ones: "vmm" in XDG_RUNTIME_DIR, if
/// that is an absolute path of this user, and /tmp/vmm-UID.
export [[nodiscard]] std::vector<std::string> top_folders();
/// What other users may do in a folder of this user.
export enum class folder_rule : std::uint8_t { others_may_read, is_private };
/// Opens the folder. Errors: unavailable (it does not exist; with the system's code), not_permitted
/// (another user owns it, others may do more, or it is not a folder).
export [[nodiscard]] result<int> open_own_folder(const std::string& path,
                                                 folder_rule rule) noexcept;

// ---- publishing ----------------------------------------------------------------------

/// An allocator whose statistics can be queried from any thread, until end().
export struct top_source {
  const void* of = nullptr;
  void (*sample)(const void* of, top_sample& out) noexcept = nullptr;
};

/// The slot of one allocator, for its life.
export class top_use {
 public:
  top_use() noexcept = default;
  top_use(const top_use&) = delete;
  top_use& operator=(const top_use&) = delete;
  ~top_use() { end(); }
  /// Effects: publishes the source from now on if `is_wanted`, VMM_TOP or publish_allocators()
  /// enables it. A failure is reported on stderr, once in a process. Errors: none.
  void publish(const top_source& source, bool is_wanted) noexcept;
  /// Effects: after return the source is not queried any more. Cost: waits for its sample.
  void end() noexcept;

 private:
  std::uint64_t number_ = 0;  // 0: not shown
  process_mark made_in_;
};

/// Sets whether allocators that are set up from now on are published, as with VMM_TOP=1. Returns
/// the previous value.
export bool publish_allocators(bool on) noexcept;

}  // namespace vmm
