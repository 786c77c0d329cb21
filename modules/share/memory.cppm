// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.share:memory - memory that is lent to other processes, and memory that is borrowed.
//
// exported_block  a block of this process: memory of its own, or a manager's block
// received_block  a received block: its description and its handles
// imported_block  a block of another process, mapped here
//
// I1  An imported block has exactly the addresses of its size, and its parts in their order.
// I2  Release is in this order: mappings, addresses, handles. A refusal stops it; a later call
//     continues. The destructor tries three times, and reports the rest on stderr.
// I3  A manager's block that was exported as pinned is neither freed nor moved before the last loan
//     and the exported_block have ended. Exported memory never serves another block.
//
// A failed call leaves a block as it was. In a forked child every call returns not_permitted, and
// destroying changes nothing.
//
// Thread safety: a block is for one thread at a time. Cost: driver calls by the number of parts.
export module vmm.share:memory;

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.std;
import :wire;

namespace vmm {

/// Handles of one driver, adjacent in a reservation of exactly their size.
class mapped_parts {
 public:
  explicit mapped_parts(driver_ref driver) noexcept : driver_(driver), use_(driver.use()) {}
  mapped_parts(const mapped_parts&) = delete;
  mapped_parts& operator=(const mapped_parts&) = delete;
  ~mapped_parts();

  /// Takes ownership of a handle. Errors: out_of_host_memory; the caller keeps the handle.
  [[nodiscard]] status add(physical_handle handle, std::uint64_t size_bytes) noexcept;
  /// Reserves the addresses, maps every part, and gives `rights` to the driver's home and to
  /// `where`, the place of the memory. All or nothing; the next call of map() or close() undoes
  /// steps that could not be undone.
  [[nodiscard]] status map(location where, access rights) noexcept;
  /// I2. Errors: those of unmap, free_reservation and release.
  [[nodiscard]] status close() noexcept;
  [[nodiscard]] status unmap() noexcept;

  [[nodiscard]] driver_interface& driver() const noexcept { return *driver_; }
  /// Copy it to keep it: the reference is part of this object, the driver outlives it.
  [[nodiscard]] const driver_ref& reference() const noexcept { return driver_; }
  [[nodiscard]] bool is_here() const noexcept { return made_in_.is_here(); }
  [[nodiscard]] bool is_mapped() const noexcept {
    check(!mapped_ || mapped_count_ == parts_.size(), "a block is mapped only in part");
    return mapped_;
  }
  [[nodiscard]] address_range where() const noexcept {
    check(where_.empty() == !where_.base, "a block has addresses and no place");
    return where_;
  }
  [[nodiscard]] std::span<const block_part> parts() const noexcept { return parts_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;

 private:
  driver_ref driver_;
  use_of use_;
  process_mark made_in_;
  std::vector<block_part> parts_;
  address_range where_{};
  std::size_t mapped_count_ = 0;  // the leading parts that are mapped
  bool mapped_ = false;           // all of them, with access
};

// ---- exporting -----------------------------------------------------------------------

/// A request for memory to lend.
export struct export_request {
  std::uint64_t size_bytes = 0;    ///< not 0; rounded up to the granularity
  std::uint64_t handle_bytes = 0;  ///< 0: one handle; else handles of this size, the last smaller
  share_kind kind = share_kind::posix_fd;
  std::optional<location> placement{};  ///< none: the driver's home
  bool compressible = false;
  bool rdma_capable = false;
  share_label label{};
};

/// Options of the export of a manager's block.
export struct block_export {
  export_rule rule = export_rule::pinned;
  share_kind kind = share_kind::posix_fd;
  bool one_handle = false;  ///< refuse a block that has more than one handle
  share_label label{};
};

/// The memory of an exported block. Connections that lend the block share it with its owner.
class export_state {
 public:
  explicit export_state(driver_ref driver) noexcept : own(driver) {}
  export_state(const export_state&) = delete;
  export_state& operator=(const export_state&) = delete;
  ~export_state();

  /// The block as it is now, and its handles. Errors: as manager::exports().begin().
  [[nodiscard]] result<share_description> refresh() noexcept;

  mapped_parts own;          // memory of the block's own
  manager* owner = nullptr;  // of a manager's block
  std::optional<use_of> owner_use;
  address at{};
  export_rule rule = export_rule::pinned;
  bool one_handle = false;
  std::uint64_t number = 0;  // of a manager's block: exported_range::number
  share_description block{};
  std::vector<block_part> parts;  // of a manager's block, as refresh() found them
};

/// A block of this process that can be lent to others. An importer may read and write it: read-only
/// lending does not exist.
export class exported_block {
 public:
  exported_block() = default;
  /// Creates memory of its own, and maps it for reading and writing. Its contents are unspecified.
  /// Errors: invalid_argument (size 0, a handle size that is not whole
  /// granules, more than share_parts_max handles), not_supported (the kind, the placement), those
  /// of create, reserve, map and set_access.
  [[nodiscard]] static result<exported_block> make(driver_ref driver,
                                                   const export_request& request) noexcept;
  /// A manager's block. Requires: the manager outlives the block and its loans. Errors: as
  /// manager::exports().begin(); not_supported (the kind), invalid_argument (too many handles, or
  /// more than one if one was requested).
  [[nodiscard]] static result<exported_block> from(manager& owner, address at,
                                                   const block_export& how = {}) noexcept;

  exported_block(exported_block&&) noexcept = default;
  exported_block& operator=(exported_block&&) noexcept = default;
  exported_block(const exported_block&) = delete;
  exported_block& operator=(const exported_block&) = delete;
  /// Ends the block once its last loan has ended. Requires: no unfinished work uses it then.
  ~exported_block() = default;

  /// Effects: none; true after a move from it. Cost: O(1).
  [[nodiscard]] bool empty() const noexcept { return state_ == nullptr; }
  /// Requires: not empty. Effects: none; returns the block's range in this process. Cost: O(1).
  [[nodiscard]] address data_address() const noexcept;
  /// Whole granules: the size that an importer maps.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  [[nodiscard]] std::size_t part_count() const noexcept;
  [[nodiscard]] bool is_lent() const noexcept { return state_.use_count() > 1; }

  /// The address to which resize() of the manager moved a followed block. share_channel::update
  /// sends it.
  /// Errors: invalid_argument (a block that is not followed), not_allocated (another block is
  /// there: this one was freed), as manager::exports().begin().
  [[nodiscard]] status moved_to(address at) noexcept;

  /// Ends the block now. Errors: in_use (it is lent), not_permitted (a forked child), driver
  /// errors; a later call continues.
  [[nodiscard]] status release() noexcept;

  /// The description of the block, with its fabric handles, for any transport to another process.
  /// Errors: as export_handle of the driver.
  [[nodiscard]] result<share_description> describe() const noexcept;
  /// One handle for each part; the caller closes descriptors. Requires: space for part_count()
  /// handles. Errors: as export_handle; handles made before are closed.
  [[nodiscard]] status export_handles(std::span<shared_handle> to) const noexcept;

 private:
  friend class share_channel;
  explicit exported_block(std::shared_ptr<export_state> state) noexcept : state_(std::move(state)) {
    check(state_ != nullptr, "an invalid block is exported");
  }

  std::shared_ptr<export_state> state_;
};

// ---- importing -----------------------------------------------------------------------

/// A received block. It owns the descriptors that came with it.
export class received_block {
 public:
  received_block() = default;
  /// Of handles received without a share_channel, which stay the caller's.
  /// Errors: invalid_argument (not as many handles as parts), as check_share_description.
  [[nodiscard]] static result<received_block> of(const share_description& block,
                                                 std::span<const shared_handle> handles) noexcept;
  received_block(received_block&& other) noexcept;
  received_block& operator=(received_block&& other) noexcept;
  received_block(const received_block&) = delete;
  received_block& operator=(const received_block&) = delete;
  ~received_block() { close(); }

  /// Effects: none; returns the exporter's description of the block, checked. Cost: O(1).
  [[nodiscard]] const share_description& block() const noexcept { return block_; }
  /// One part, for import_handle. This object keeps the descriptor.
  [[nodiscard]] shared_handle handle(std::size_t index) const noexcept;
  void close() noexcept;

 private:
  friend class share_channel;
  friend class imported_block;

  share_description block_{};
  std::uint64_t channel_ = 0;  // by which it came; 0: by none
  std::array<std::int64_t, share_parts_max> descriptors_{};
  std::size_t descriptor_count_ = 0;
  bool owns_ = false;
};

/// Options of the mapping of another process's block.
export struct import_options {
  access rights = access::read_write;  ///< of the driver's home, and of the memory's place
  /// Accept another device number of the exporter (CUDA_VISIBLE_DEVICES): the driver's own place of
  /// the handle counts.
  bool any_device = false;
};

/// A block of another process. Its bytes stay while it is imported, even if the exporter ends.
export class imported_block {
 public:
  imported_block() = default;
  /// Imports the handles, and checks the driver's properties of them against the peer's
  /// description. Errors: foreign_error (they do not agree), not_supported, those of import_handle.
  [[nodiscard]] static result<imported_block> import_block(
      driver_ref driver, const received_block& from, const import_options& options = {}) noexcept;

  imported_block(imported_block&&) noexcept = default;
  imported_block& operator=(imported_block&&) noexcept = default;
  imported_block(const imported_block&) = delete;
  imported_block& operator=(const imported_block&) = delete;
  /// Requires: no unfinished work uses the block.
  ~imported_block() = default;

  /// Reserves exactly the block's size, maps it and gives access. A second call returns its range.
  /// Errors: those of reserve, map and set_access.
  [[nodiscard]] result<address> map() noexcept;
  /// Access for each location and range. Requires: a range of whole parts, unless the driver has
  /// partial_access. Errors: invalid_argument (not mapped, or outside), those of set_access.
  [[nodiscard]] status set_access(address_range range,
                                  std::span<const access_grant> grants) noexcept;
  /// Applies an update: imports the new memory, maps it if the block was mapped, and then undoes
  /// the old mapping. Requires: no unfinished work uses the block. Effects: returns the block's
  /// range; empty if it is not mapped. Errors: invalid_argument (another block's update), as
  /// import_block and map; the block is as before.
  [[nodiscard]] result<address> update(const received_block& from) noexcept;
  /// I2. Requires: no unfinished work uses the block. Errors: not_permitted (a forked child), those
  /// of unmap, free_reservation and release.
  [[nodiscard]] status release() noexcept;

  /// Effects: none; true after release() or a move from it. Cost: O(1).
  [[nodiscard]] bool empty() const noexcept { return parts_ == nullptr; }
  /// Effects: none; returns the number of the block on both sides. Cost: O(1).
  [[nodiscard]] std::uint64_t id() const noexcept { return block_.id; }
  /// Effects: none; returns the description in the last update. Cost: O(1).
  [[nodiscard]] const share_description& block() const noexcept { return block_; }
  /// None if it is not mapped.
  [[nodiscard]] address data_address() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return block_.size_bytes; }
  /// The memory's place as this driver reports it.
  [[nodiscard]] location where() const noexcept { return where_; }

 private:
  friend class share_channel;

  std::unique_ptr<mapped_parts> parts_;
  share_description block_{};
  std::uint64_t channel_ = 0;  // received_block's
  location where_{};
  import_options options_{};
};

}  // namespace vmm
