// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:types - requests of a manager, and what they name.
export module vmm.manager:types;

import vmm.backend;
import vmm.std;

namespace vmm {

/// A request for a block.
export struct allocate_request {
  std::uint64_t size_bytes = 0;  ///< not 0; rounded up to the granularity
  std::uint64_t growth_bytes =
      0;  ///< address space kept free behind the block, so that it can grow in place
  std::uint64_t alignment_bytes = 0;  ///< a power of two; below the granularity it costs nothing;
                                      ///< kept when the block moves
  stream_handle stream = stream_handle::default_stream;  ///< the stream that uses the block first
};

/// A live block, and its new size.
export struct resize_request {
  address at{};                    ///< the address that allocate returned
  std::uint64_t size_bytes = 0;    ///< not 0
  std::uint64_t growth_bytes = 0;  ///< addresses to reserve behind the block if it moves
  bool may_move = true;       ///< false: grow at the same address or fail with out_of_addresses
  bool names_stream = false;  ///< the block's stream exists, and waits instead of the caller
};

/// The permitted effects of a copy on its source.
export enum class copy_mode : std::uint8_t {
  copy,   // bytes are copied; source and target are independent afterwards
  alias,  // both addresses may show the same memory until one of them is freed: write to neither
  // before that, and before the work submitted for the freed one has finished. The target's
  // contents behind the copied bytes are unspecified afterwards
  move,  // as alias; the source's memory may move to the target, so it may only be freed afterwards
};

/// How a block is exported.
export enum class export_rule : std::uint8_t {
  pinned,    // it is neither freed nor resized nor remapped until exports().end()
  followed,  // it may change; the exporter then queries its handles again
};

/// One driver's handle of a block.
export struct block_part {
  physical_handle handle = physical_handle::none;  ///< the manager's: not to be released
  std::uint64_t size_bytes = 0;
};

/// The memory of an exported block.
export struct exported_range {
  address base{};
  std::uint64_t size_bytes = 0;  ///< whole granules: the mapped size
  share_kind shareable = share_kind::none;
  physical_properties granted{};
  std::vector<block_part> parts;  ///< in address order
  std::uint64_t number = 0;       ///< of the allocation: no other one of the manager has it
};

/// Notified when a suspension releases the memory behind all of a manager's blocks, and when it is
/// back, for code that registers it elsewhere. Neither function may call the manager.
export class suspension_listener {
 public:
  suspension_listener() = default;
  suspension_listener(const suspension_listener&) = delete;
  suspension_listener& operator=(const suspension_listener&) = delete;
  /// Called before the first block loses its memory.
  virtual void memory_leaves() noexcept = 0;
  /// Called when each live block has memory at its address again.
  virtual void memory_returned() noexcept = 0;

 protected:
  ~suspension_listener() = default;

 private:
  friend class manager_suspension;  // NOLINT: final where it is defined
  suspension_listener* next_ = nullptr;
};

}  // namespace vmm
