// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:lot_table (internal) - the lots of a tenant's driver and their mappings, as records.
//
// I1  A lot is in the table while a handle or a mapping refers to it.
// I2  Mappings do not overlap.
//
// Thread safety: none; the driver has a lock. Cost: O(log n), and O(1) for each mapping in a range.
module vmm.market:lot_table;

import vmm.backend;
import vmm.std;
import :driver;
import :source;

namespace vmm {

// A part of a lot.
struct lot_part {
  lent_handle lent{};  // must_clear: not cleared yet
  physical_handle import = physical_handle::none;
  std::uint64_t offset_bytes = 0;  // in the lot

  [[nodiscard]] std::uint64_t end_bytes() const noexcept { return offset_bytes + lent.size_bytes; }
};

// Memory of one create() call.
struct tenant_lot {
  std::uint64_t token = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t handle_count = 1;
  std::uint32_t mapping_count = 0;
  std::vector<lot_part> parts;

  [[nodiscard]] bool is_dirty() const noexcept {
    return std::any_of(parts.begin(), parts.end(),
                       [](const lot_part& each) { return each.lent.must_clear; });
  }
};

struct lot_mapping {
  std::uint64_t size_bytes = 0;
  std::uint64_t offset_bytes = 0;  // in the lot
  tenant_lot* of = nullptr;
};

class lot_table {
 public:
  using mapping_map = std::map<std::uint64_t, lot_mapping>;                        // by address
  using lot_map = std::unordered_map<std::uint64_t, std::unique_ptr<tenant_lot>>;  // by token

  // Whether a handle is a lot's, and not the driver's inside.
  [[nodiscard]] static bool is_token(physical_handle handle) noexcept {
    return (static_cast<std::uint64_t>(handle) & token_bit) != 0;
  }
  // Throws std::bad_alloc, without an effect.
  [[nodiscard]] physical_handle add(std::unique_ptr<tenant_lot> made);
  // Null if the handle was released, or never made.
  [[nodiscard]] tenant_lot* find(physical_handle handle) noexcept;
  // One handle less. The last reference ends the lot, whose handles `gone` gets.
  void drop_handle(tenant_lot& of, lent_list& gone);

  // Requires: nothing is mapped there. Throws std::bad_alloc, without an effect.
  void map(address at, const lot_mapping& what);
  // Takes the mappings of the range out; what a cut leaves of one stays.
  void unmap(address_range range, lent_list& gone);
  // Null if no lot is mapped there.
  [[nodiscard]] tenant_lot* find_mapped(address at) noexcept;
  [[nodiscard]] bool any_in(address_range range) noexcept;
  // Whether an end of the range lies inside a mapping.
  [[nodiscard]] bool is_cut(address_range range) noexcept;
  // visitor(address, const lot_mapping&) for each mapping that the range touches.
  template <class Visitor>
  void visit_in(address_range range, Visitor&& visitor) {
    const std::uint64_t end = range.end().value;
    for (auto at = first_at(range.base.value); at != mappings_.end() && at->first < end; ++at)
      visitor(address{at->first}, at->second);
  }

  [[nodiscard]] const lot_map& lots() const noexcept { return lots_; }
  [[nodiscard]] const mapping_map& mappings() const noexcept { return mappings_; }

 private:
  // Set in every token. No driver's handle has it: they are pointers and small numbers.
  static constexpr std::uint64_t token_bit = std::uint64_t{1} << 63;

  // The first mapping that ends behind the address.
  [[nodiscard]] mapping_map::iterator first_at(std::uint64_t address) noexcept;
  void end_if_unused(tenant_lot& of, lent_list& gone);

  std::uint64_t last_token_ = 0;
  lot_map lots_;
  mapping_map mappings_;
};

// The fills of lots that are cleared, on a stream of the driver. Under the driver's lock of
// clearing, except is_late().
class lot_fills {
 public:
  explicit lot_fills(driver_interface& inside) noexcept : inside_(inside) {}
  lot_fills(const lot_fills&) = delete;
  lot_fills& operator=(const lot_fills&) = delete;

  // Fills the parts that are not cleared, of a lot that is mapped whole at the base.
  [[nodiscard]] status fill(address base, const tenant_lot& of);
  // Waits for all fills. Repeated for a fault that occurs once.
  [[nodiscard]] status finish() noexcept;
  // Whether a fill was not waited for, or take_late() has ranges.
  [[nodiscard]] bool is_late() const noexcept { return is_late_; }
  // Room for one more range. Errors: out_of_host_memory.
  [[nodiscard]] status provide_room() noexcept;
  // Requires: provide_room(). A range that is to be unmapped once its fills have finished.
  void add_late(address_range range) noexcept;
  // After finish().
  [[nodiscard]] std::vector<address_range> take_late() noexcept;
  // Requires: no other call follows.
  void end() noexcept;

 private:
  driver_interface& inside_;
  stream_handle stream_ = stream_handle::default_stream;
  bool has_stream_ = false;
  std::vector<address_range> late_;
  std::atomic<bool> is_late_ = false;
};

}  // namespace vmm
