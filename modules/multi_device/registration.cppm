// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.multi_device:registration - memory for libraries that register it (NCCL, UCX, network
// cards), and calls around every change of it.
//
// registrable_options   options of a manager whose blocks such a library accepts
// check_registrable     the reasons for which it would refuse a block, in advance
// pool_registrations    registers a pool's mappings, and deregisters them before they change
// registered_blocks     the same for a manager's blocks, around allocate, resize and free
//
// I1  Registered ranges are mapped: `leave` is called before the memory behind one changes, `enter`
//     after that.
// I2  Each range that was entered is left once; one whose `enter` failed is not left.
//
// Thread safety: registered_blocks is for one thread at a time; pool_registrations is called by the
// pool, one notice at a time. Cost: that of the hooks, and a list entry for each range.
export module vmm.multi_device:registration;

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.std;
import vmm.stream;

namespace vmm {

/// A library's two calls. `enter` gets whole mappings; if it returns an error, the range stays
/// unregistered. Neither may call the allocator.
export struct registration_hooks {
  status (*enter)(void* context, address_range range) noexcept = nullptr;
  void (*leave)(void* context, address_range range) noexcept = nullptr;
  void* context = nullptr;
};

/// `base` with the properties that registration requires: each shareable kind that this process may
/// use (posix_fd; fabric if a trial works), memory that RDMA reaches if the device has it, and
/// blocks of one handle each. Errors: not_supported (no shareable kind), driver errors.
export [[nodiscard]] result<manager_options> registrable_options(driver_interface& driver,
                                                                 const manager_options& base = {});

/// The properties of a range that matter for registration.
export struct registration_report {
  std::uint64_t segment_count = 0;
  share_kind shareable = share_kind::none;  ///< of all segments
  bool rdma_capable = false;                ///< all segments
  bool on_device = false;                   ///< all segments
  bool is_aligned = false;  ///< base and sizes are multiples of the recommended granularity

  /// Whether NCCL accepts it as a window: see docs/multi_device.md.
  [[nodiscard]] bool is_registrable() const noexcept {
    return shareable != share_kind::none && on_device && is_aligned;
  }
};
/// Errors: as manager::segments, those of query_granularity and get_properties.
export [[nodiscard]] result<registration_report> check_registrable(manager& owner, address at);

/// Registers the mappings that a pool makes during this object's life.
export class pool_registrations final : public remap_listener {
 public:
  /// Requires: the pool outlives this object; hooks, both. Errors: as stream_pool::subscribe.
  [[nodiscard]] static result<std::unique_ptr<pool_registrations>> watch(
      stream_pool& pool, const registration_hooks& hooks);
  pool_registrations(const pool_registrations&) = delete;
  pool_registrations& operator=(const pool_registrations&) = delete;
  /// Calls `leave` for every registered range.
  ~pool_registrations();

  /// For the pool: calls `leave` for ranges that are about to change.
  void before_change(const remap_notice& notice) noexcept override;
  /// For the pool: calls `enter` for ranges that have memory again.
  void after_change(const remap_notice& notice) noexcept override;
  /// The number of registered ranges. Cost: O(1).
  [[nodiscard]] std::size_t size() const;
  /// Ranges whose `enter` failed, or for which host memory ran out.
  [[nodiscard]] std::uint64_t refused_count() const;

 private:
  pool_registrations(stream_pool& pool, const registration_hooks& hooks) noexcept
      : pool_(pool), hooks_(hooks) {}
  stream_pool& pool_;
  registration_hooks hooks_;
  remap_subscription subscription_ = remap_subscription::none;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // base to size
  std::uint64_t refused_count_ = 0;
};

/// Registered blocks of a manager. A suspension of the manager leaves them all before it releases
/// their memory, and a resumption enters the live ones.
export class registered_blocks final : public suspension_listener {
 public:
  /// Requires: the manager outlives this object; hooks, both. No other thread uses this object
  /// while the manager is being suspended or resumed.
  registered_blocks(manager& owner, const registration_hooks& hooks) noexcept;
  registered_blocks(const registered_blocks&) = delete;
  registered_blocks& operator=(const registered_blocks&) = delete;
  /// Calls `leave` for all registered blocks, which stay live in the manager.
  ~registered_blocks();

  /// Allocates and registers a block. Errors: as manager::allocate, those of `enter` (the block is
  /// freed), out_of_host_memory.
  [[nodiscard]] result<address> allocate(const allocate_request& request);
  /// Deregisters the block, resizes it, and registers it at its new address. Errors: as
  /// manager::resize; the block is as before, and registered if `enter` succeeds again. If the hook
  /// fails after the resize, the block is live at the returned address and is_registered() is
  /// false.
  [[nodiscard]] result<address> resize(const resize_request& request);
  /// Deregisters the block and frees it. Errors: as manager::free; the block is as before, and
  /// registered if `enter` succeeds again.
  [[nodiscard]] status free(address at);
  [[nodiscard]] bool is_registered(address at) const;
  /// Blocks of a suspended manager count.
  [[nodiscard]] std::size_t size() const noexcept { return ranges_.size(); }

  /// For the manager: calls `leave` for every block.
  void memory_leaves() noexcept override;
  /// For the manager: calls `enter` for every block; a block that the hook refuses is not
  /// registered.
  void memory_returned() noexcept override;

 private:
  [[nodiscard]] status enter(address at);
  void leave(address at) noexcept;
  manager& owner_;
  use_of owner_use_;
  registration_hooks hooks_;
  std::map<std::uint64_t, std::uint64_t> ranges_;
  bool is_away_ = false;  // the memory is suspended: the library has none of the ranges
};

}  // namespace vmm
