// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:driver - a driver whose memory of its home is of a source, as an owner's tenant.
//
// create() takes a lot, release() and unmap() give it back with its last handle and mapping. A lot
// is one handle; its parts are imported once each and mapped side by side. Everything else, memory
// at other places too, is the driver's inside.
//
// create() under an allocator's lock gets only memory that the owner has free. Without one it waits
// for other tenants. Allocators that are short borrow without their locks (relief_loan), and their
// next create() calls on that thread use the loan.
//
// D1  A lot lives while a handle or a mapping refers to it; then it is given back at once.
// D2  Memory with bytes of another job is cleared before set_access() makes it accessible.
// D3  No lock of this driver is held over take() and give(). ask() takes none that a thread holds
//     while it waits for other tenants, except an observer's, for at most 100 ms.
// D4  The device's memory is the tenant's share: total is its guarantee, or its limit; free is what
//     its own charge leaves of it, lendable what it leaves of all that the tenant can have.
//     query_granularity() refuses a size that the owner can never lend to it: out_of_memory.
// D5  Memory under a fill that the driver refuses to wait for is neither unmapped nor given back.
//
// Lent memory is not shared with other processes: a descriptor of it cannot be revoked. Without the
// features for it, a shareable or RDMA request returns not_supported.
//
// Thread safety: that of the driver inside. Cost: create() a message to the owner and its reply, an
// import for each new part; map and unmap a lock and O(log mappings) beside the driver's.
export module vmm.market:driver;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :source;

namespace vmm {

/// Options of a tenant's driver.
export struct tenant_driver_options {
  std::uint64_t wait_ns = 10'000'000'000;  ///< that a request waits for memory of other tenants
};

/// Gives memory back on request, after idle memory: frees, discards or copies out. Returns the
/// bytes given. Called on a thread of the source. Requires: it takes no lock that a caller of
/// create() holds.
export struct tenant_giver {
  void* of = nullptr;
  std::uint64_t (*give)(void* of, const timed_bytes& what) noexcept = nullptr;
  bool gives_idle = false;  ///< it gives only memory that no work uses: also for only_idle
};

struct tenant_lot;
class lot_table;
class lot_fills;

/// A driver over a source.
export class tenant_driver final : public forwarding_driver {
 public:
  /// Makes the source with the driver's callbacks.
  using source_maker =
      std::function<result<std::unique_ptr<memory_source>>(const source_callbacks&)>;

  /// Requires: `inside` outlives the driver. Effects: joins. Errors: not_supported (a driver
  /// without descriptors, copies, or unmapping of several mappings), those of `make`.
  [[nodiscard]] static result<std::unique_ptr<tenant_driver>> open(
      driver_interface& inside, const source_maker& make,
      const tenant_driver_options& options = {});
  /// The same for a driver that it owns.
  [[nodiscard]] static result<std::unique_ptr<tenant_driver>> open(
      any_backend inside, const source_maker& make, const tenant_driver_options& options = {});
  /// Unmaps and gives back all that is left. Requires: no unfinished work uses it.
  ~tenant_driver() override;

  /// Effects: adds a giver; they are called in the order in which they were added. Requires: it can
  /// be called until the driver's end.
  void add_giver(const tenant_giver& giver);
  /// Effects: gets memory for the next create() calls of this thread, and waits for it at most
  /// `what.within_ns`. 0 bytes: what is left of it goes back. Returns the bytes, 0 if they are
  /// refused. Requires: no lock is held that ask() takes.
  std::uint64_t borrow(const timed_bytes& what) noexcept;
  /// Effects: leaves the market. Requires: no memory of it is left, and no other call is in
  /// progress or follows, except those that need no memory of the owner.
  void leave() noexcept;
  /// The source. Errors: none.
  [[nodiscard]] memory_source& source() const noexcept { return *source_; }
  /// The driver inside.
  [[nodiscard]] driver_interface& below() const noexcept { return inside(); }
  /// The backend that it owns, or null.
  [[nodiscard]] any_backend* owned() const noexcept { return owned_.get(); }
  /// The pools and managers over this object.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  [[nodiscard]] const features& feature_set() const override { return can_; }
  [[nodiscard]] result<granularity> query_granularity(const physical_request& request) override;
  [[nodiscard]] result<memory_info> query_memory(location where) override;
  [[nodiscard]] result<address_range> reserve(const reserve_request& request) override;
  [[nodiscard]] result<physical_handle> create(const physical_request& request) override;
  [[nodiscard]] status release(physical_handle handle) override;
  [[nodiscard]] status map(const map_request& request) override;
  [[nodiscard]] status unmap(address_range range) override;
  [[nodiscard]] status set_access(address_range range,
                                  std::span<const access_grant> grants) override;
  [[nodiscard]] result<physical_handle> retain(address at) override;
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle) override;
  [[nodiscard]] result<shared_handle> export_handle(physical_handle handle,
                                                    share_kind kind) override;
  [[nodiscard]] result<dma_buf> export_range(address_range range) override;
  [[nodiscard]] status bind_multicast(const multicast_binding& binding) override;

 private:
  tenant_driver(driver_interface& inside, const tenant_driver_options& options);
  [[nodiscard]] status join(const source_maker& make);
  [[nodiscard]] std::uint64_t ask(const recall_request& what) noexcept;
  [[nodiscard]] std::uint64_t lend(std::uint64_t wanted_bytes, std::int64_t& until_ns) noexcept;
  [[nodiscard]] status take(std::uint64_t size_bytes, lent_list& out);
  void drop(std::uint64_t id) noexcept;
  [[nodiscard]] result<physical_handle> import_once(const lent_handle& lent);
  void give_back(lent_list& gone) noexcept;
  [[nodiscard]] status clear_in(address_range range, std::span<const access_grant> grants);
  [[nodiscard]] status clear_apart(tenant_lot& of);
  [[nodiscard]] status unmap_now(address_range range);
  [[nodiscard]] status finish_late();

  std::unique_ptr<any_backend> owned_;  // the driver inside, or null
  const tenant_driver_options options_;
  features can_;
  user_count users_;
  const process_mark made_in_;
  std::mutex mutex_;  // over no call
  const std::unique_ptr<lot_table> lots_;
  std::unordered_map<std::uint64_t, physical_handle> imports_;  // by handle
  std::vector<tenant_giver> givers_;
  std::mutex clearing_;  // over a clearing
  const std::unique_ptr<lot_fills> fills_;
  std::unique_ptr<memory_source> source_;
  relief_member relief_;
};

/// A driver over the source of an owner. Errors: those of join_market and tenant_driver::open.
export [[nodiscard]] result<std::unique_ptr<tenant_driver>> open_tenant(
    any_backend inside, const tenant_options& options, const tenant_driver_options& how = {});

}  // namespace vmm
