// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.suspend:backup - storage of contents while their memory is released.
//
// One arena for each suspender. It has spaces; a space holds one region at a time, is retained
// afterwards, and serves the next region that fits. A program that suspends the same regions again
// creates its spaces once.
//
// I1  A space that is taken belongs to one region; no other space has its bytes.
// I2  Memory that the driver refuses to release stays in the arena, and is retried when spaces are
//     released.
//
// A forked child's copy leaves its spaces where they are.
//
// Thread safety: none of its own; the suspender has a lock. Cost: take() is O(spaces), and creates
// a space if none fits.
export module vmm.suspend:backup;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// The kinds of storage for contents.
export enum class backup_tier : std::uint8_t {
  best,      // pinned if the driver has host memory and streams, else pageable
  pinned,    // physical memory of the host, which the device copies to and from
  pageable,  // memory of the process
  file,      // a file without a name in suspend_options::directory
};

// Bytes for the contents of one region.
struct backup_space {
  backup_tier tier = backup_tier::pageable;
  std::uint64_t size_bytes = 0;
  bool is_taken = false;
  bool is_whole = false;               // false: a partly created space, to be released
  bool is_busy = false;                // in use by a copy that could not be waited for: it stays
  std::byte* bytes = nullptr;          // pageable, file
  driver_interface* driver = nullptr;  // pinned
  address_range range{};               // pinned
  std::vector<physical_handle> handles;
  std::uint64_t handle_bytes = 0;
  std::size_t mapped_count = 0;  // of the leading handles
};

class backup_arena {
 public:
  backup_arena() = default;
  backup_arena(const backup_arena&) = delete;
  backup_arena& operator=(const backup_arena&) = delete;
  ~backup_arena();

  struct wanted {
    driver_interface& driver;
    backup_tier tier = backup_tier::best;
    std::uint64_t size_bytes = 0;
    const char* directory = "";
  };
  /// A space of this size or more. Errors: not_supported (no pinned memory), bad_option (the
  /// directory takes no file), out_of_host_memory (no room in the directory, too), those of create,
  /// reserve, map and set_access.
  [[nodiscard]] result<backup_space*> take(const wanted& want);
  /// Frees the space for the next region.
  void give_back(backup_space& done) noexcept;
  /// Destroys the unused spaces of one driver or, with null, of all. Errors: those of unmap,
  /// release and free_reservation; the next call retries the rest.
  [[nodiscard]] status release_unused(const driver_interface* of) noexcept;
  /// The bytes of all spaces, and of those in use.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  [[nodiscard]] std::uint64_t taken_bytes() const noexcept;

 private:
  [[nodiscard]] backup_space* find(const wanted& want) noexcept;
  [[nodiscard]] static status make(const wanted& want, backup_space& into);
  [[nodiscard]] static status make_pinned(const wanted& want, backup_space& into);
  [[nodiscard]] static status end(backup_space& gone) noexcept;

  const process_mark made_in_;
  std::vector<std::unique_ptr<backup_space>> spaces_;
};

// Whether a file can be made in the directory: suspend_options::validate().
[[nodiscard]] status check_directory(const char* directory);

// The tier that `best` is on this driver.
[[nodiscard]] backup_tier resolve(backup_tier tier, const features& can) noexcept;

}  // namespace vmm
