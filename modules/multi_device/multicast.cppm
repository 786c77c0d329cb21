// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.multi_device:multicast - a multicast object as a state machine.
//
//   gathering  devices are added, each once, until the requested number is reached
//   binding    each device binds memory of its own, until every byte has memory of every device
//   ready      the object may be mapped and used: a write reaches the memory of every device
//
// If a step comes too early, some drivers block and others return various errors; here each wrong
// step is refused before the driver is called.
//
// I1  Nothing is mapped before every device has bound all of the object, and nothing is unbound
//     while it is mapped.
// I2  Destruction is in this order: mapping, addresses, bindings, object. Bound memory stays with
//     its owner.
//
// The CUDA backend refuses these calls with not_permitted unless it was opened with
// cuda_options::allow_multicast: multicast uses resources of the whole machine.
//
// Thread safety: one thread at a time. Cost: a driver call a step.
export module vmm.multi_device:multicast;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// The phase of a team: it accepts devices, then memory, and then it is mapped.
export enum class multicast_phase : std::uint8_t { gathering, binding, ready, mapped, gone };

/// Memory of a device, from `memory_offset_bytes` on, for a part of the object.
export struct multicast_part {
  location device{};
  physical_handle memory = physical_handle::none;
  std::uint64_t memory_offset_bytes = 0;
  std::uint64_t offset_bytes = 0;  ///< in the object
  std::uint64_t size_bytes = 0;
};

/// Several devices whose memory is written and reduced at one address. A call in the wrong phase is
/// refused.
export class multicast_team {
 public:
  multicast_team() = default;
  /// Creates an object without devices; the size is rounded up to the granularity. Errors:
  /// invalid_argument (no size, no device), out_of_host_memory, not_supported, not_permitted, those
  /// of query_multicast_granularity and create_multicast.
  [[nodiscard]] static result<multicast_team> create(driver_ref driver,
                                                     const multicast_request& request);
  multicast_team(multicast_team&&) noexcept = default;
  multicast_team& operator=(multicast_team&&) noexcept = default;
  multicast_team(const multicast_team&) = delete;
  multicast_team& operator=(const multicast_team&) = delete;
  /// Requires: no unfinished work uses the object.
  ~multicast_team() = default;

  /// Errors: in_use (all devices were added), invalid_argument (it was added before, or is not a
  /// device), those of add_multicast_device.
  [[nodiscard]] status add(location device);
  /// Errors: in_use (devices are missing, or the object is mapped), invalid_argument (not a device
  /// of the object, not whole granules, outside, or bound there before), out_of_host_memory, those
  /// of bind_multicast.
  [[nodiscard]] status bind(const multicast_part& part);
  /// The same for memory that is mapped at `memory`, of `device`.
  struct mapped_part {
    location device{};
    address_range memory{};
    std::uint64_t offset_bytes = 0;
  };
  [[nodiscard]] status bind(const mapped_part& part);
  /// Reserves addresses, maps the object and gives access. Errors: in_use (devices or memory are
  /// missing, or it is mapped), those of reserve, map and set_access; after an error it is not
  /// mapped.
  [[nodiscard]] result<address_range> map(std::span<const access_grant> grants);
  /// Errors: in_use (it is not mapped), those of set_access.
  [[nodiscard]] status set_access(std::span<const access_grant> grants);
  /// Requires: no unfinished work uses the object. Errors: in_use (it is not mapped), those of
  /// unmap and free_reservation; a later call continues.
  [[nodiscard]] status unmap();
  /// Undoes one binding: that of the device at this offset. Errors: in_use (it is mapped),
  /// invalid_argument (nothing is bound there), those of unbind_multicast.
  [[nodiscard]] status unbind(location device, std::uint64_t offset_bytes);
  /// I2. Errors: those of the driver's calls; a later call continues.
  [[nodiscard]] status release();

  /// Effects: none. Cost: O(1), of phase() O(bindings).
  [[nodiscard]] multicast_phase phase() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  [[nodiscard]] std::uint64_t granularity_bytes() const noexcept;
  /// None if it is not mapped.
  [[nodiscard]] address_range where() const noexcept;

 private:
  struct state {
    explicit state(driver_ref with) noexcept : driver(with), use(with.use()) {}
    state(const state&) = delete;
    state& operator=(const state&) = delete;
    ~state();
    [[nodiscard]] multicast_phase phase() const noexcept;
    [[nodiscard]] status check_part(location device, std::uint64_t offset_bytes,
                                    std::uint64_t size_bytes) const noexcept;
    [[nodiscard]] status unmap();
    [[nodiscard]] status close();

    driver_ref driver;
    use_of use;
    process_mark made_in;
    multicast_handle team = multicast_handle::none;
    std::uint64_t size_bytes = 0;
    std::uint64_t unit_bytes = 0;
    std::uint32_t device_count = 0;
    std::vector<location> devices;
    std::vector<multicast_binding> bindings;
    address_range where{};
    bool mapped = false;
  };
  explicit multicast_team(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}
  [[nodiscard]] status check_here() const noexcept;
  std::unique_ptr<state> state_;
};

/// The name of a phase.
export [[nodiscard]] const char* name_of(multicast_phase phase) noexcept;

}  // namespace vmm
