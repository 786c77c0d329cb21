// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.multi_device:alias - one memory at several addresses.
//
// A write through one view becomes visible through another by features::alias:
//
//   none        a second view is refused
//   after_work  when the writing work has finished. Work through another view is ordered behind it
//               by order() or an event. Two views in one kernel need the device's own fence, which
//               no host call replaces
//   coherent    at once
//
// Disjoint bytes may be used through different views at the same time.
//
// I1  Each view shows all of the memory from its start, at addresses of its own.
// I2  The memory is released with its last view.
//
// Thread safety: one thread at a time. Cost: a reservation, a map and a set-access for each view.
export module vmm.multi_device:alias;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// Memory to be mapped at several addresses.
export struct alias_request {
  std::uint64_t size_bytes = 0;         ///< not 0; rounded up to the granularity
  std::optional<location> placement{};  ///< none: the driver's home
  grant_list rights{};                  ///< of each view; empty: the home and the placement
};

/// Requires of every call: no unfinished work uses a view that the call ends.
export class aliased_memory {
 public:
  aliased_memory() = default;
  /// Memory with one view. Errors: invalid_argument (no size), those of the driver's calls.
  [[nodiscard]] static result<aliased_memory> make(driver_ref driver, const alias_request& request);
  aliased_memory(aliased_memory&&) noexcept = default;
  aliased_memory& operator=(aliased_memory&&) noexcept = default;
  aliased_memory(const aliased_memory&) = delete;
  aliased_memory& operator=(const aliased_memory&) = delete;
  ~aliased_memory() = default;

  /// Adds a view. Errors: not_supported (alias_level::none), invalid_argument (released),
  /// out_of_host_memory, those of reserve, map and set_access; nothing is changed.
  [[nodiscard]] result<address_range> add_mapping();
  /// Requires: another view stays, else release(). Errors: unknown_address (no view begins there),
  /// invalid_argument (the last one), those of unmap and free_reservation; a later call continues.
  [[nodiscard]] status drop_mapping(address at);
  /// Orders work submitted to `reader` from now on behind the work submitted to `writer` so far, on
  /// the device: a write through one view is then seen through the others. Does nothing if views
  /// are coherent and nothing is asynchronous. Errors: those of the driver's event calls.
  [[nodiscard]] status order(stream_handle writer, stream_handle reader);
  /// Ends all views, then the memory. Errors: those of unmap, free_reservation and release; a later
  /// call continues.
  [[nodiscard]] status release();

  /// Effects: none; the views in the order in which they were made. Cost: O(1).
  [[nodiscard]] std::span<const address_range> mappings() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  [[nodiscard]] alias_level level() const noexcept;

 private:
  struct state {
    explicit state(driver_ref with) noexcept : driver(with), use(with.use()) {}
    state(const state&) = delete;
    state& operator=(const state&) = delete;
    ~state();
    [[nodiscard]] status close();
    [[nodiscard]] status unmap_one(address_range mapping);

    driver_ref driver;
    use_of use;
    process_mark made_in;
    physical_handle memory = physical_handle::none;
    std::uint64_t size_bytes = 0;
    grant_list rights;
    std::vector<address_range> mappings;
    std::vector<address_range> unmapped;  // addresses that the driver refused to free
  };
  explicit aliased_memory(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}
  std::unique_ptr<state> state_;
};

}  // namespace vmm
