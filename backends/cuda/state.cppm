// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda:state (internal) - the state of a cuda_driver: the driver's calls, the device, its
// context, and the memory that reservations are made of.
//
// I1  Every driver call goes through run(), with the context current, in the process of open().
// Exception: querying whether a stream is captured needs no context.
//
// The state is constant after open(); `memory` has a lock of its own.
//
// Thread safety: all of it. Cost: run() queries the current context once, and pushes the device's
// if it is another.
module;
#include "loader.h"

module vmm.cuda:state;

import vmm.backend;
import vmm.base;
import vmm.std;
import :description;
import :native;

namespace vmm::cuda {

/// The driver's result as an error of vmm.
[[nodiscard]] error error_of(const entry_points& cu, call where, CUresult code) noexcept;

/// The text of a check on an object that was moved from.
inline constexpr const char* moved_from = "a cuda_driver is used that was moved from";

/// Makes `mine` current for the guard's life and restores the previous context. One cheap query if
/// it already is.
class current_context {
 public:
  current_context(const entry_points& cu, CUcontext mine) noexcept;
  ~current_context();
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;

  [[nodiscard]] CUresult failure() const noexcept { return failure_; }

 private:
  const entry_points& cu_;
  CUcontext mine_;
  CUresult failure_ = CUDA_SUCCESS;
  bool pushed_ = false;
};

/// The calls of a driver that make, place and share memory: either the driver's own virtual memory
/// (:mapped) or memory that lies under every reservation from the start (:plain). open() chooses
/// one. Each member keeps docs/contract.md for the call of its name.
class address_memory {
 public:
  address_memory() = default;
  virtual ~address_memory() = default;
  address_memory(const address_memory&) = delete;
  address_memory& operator=(const address_memory&) = delete;

  [[nodiscard]] virtual result<address_range> reserve(const reserve_request& request) = 0;
  [[nodiscard]] virtual status free_reservation(address_range range) = 0;
  [[nodiscard]] virtual result<physical_handle> create(const physical_request& request) = 0;
  [[nodiscard]] virtual status release(physical_handle handle) = 0;
  [[nodiscard]] virtual status map(const map_request& request) = 0;
  [[nodiscard]] virtual status unmap(address_range range) = 0;
  [[nodiscard]] virtual status set_access(address_range range,
                                          std::span<const access_grant> grants) = 0;
  [[nodiscard]] virtual result<access> get_access(address at, location place) = 0;
  [[nodiscard]] virtual result<physical_handle> retain(address at) = 0;
  [[nodiscard]] virtual result<physical_properties> get_properties(physical_handle handle) = 0;
  [[nodiscard]] virtual result<shared_handle> export_handle(physical_handle handle,
                                                            share_kind kind) = 0;
  [[nodiscard]] virtual result<physical_handle> import_handle(const shared_handle& shared) = 0;
};

struct cuda_state {
  process_mark made_in;
  entry_points cu;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream transfers = nullptr;  // read and write run here
  std::int32_t ordinal = 0;
  bool multicast_allowed = false;
  features can;
  cuda_description description;
  std::unique_ptr<address_memory> memory;  // set at the end of open()

  cuda_state() = default;
  ~cuda_state();
  cuda_state(const cuda_state&) = delete;
  cuda_state& operator=(const cuda_state&) = delete;

  [[nodiscard]] location home() const noexcept { return vmm::device(ordinal); }

  /// The error of a call that the device or the driver lacks. In a forked child the error is
  /// unavailable instead.
  [[nodiscard]] error lacks(call where, const char* detail) const noexcept {
    check(detail != nullptr, "a refusal has no text");
    if (!made_in.is_here()) return refuse_forked(where);
    return {errc::not_supported, where, 0, "", detail};
  }

  /// Runs `body(cu)`, which returns a CUresult, with the context current, and translates the
  /// result.
  template <class Body>
  [[nodiscard]] status run(call where, Body&& body) {
    if (!made_in.is_here()) [[unlikely]]
      return refuse_forked(where);
    check(context != nullptr, "I1: the driver is called before there is a context");
    const current_context current(cu, context);
    CUresult code = current.failure();
    if (code == CUDA_SUCCESS) code = body(cu);
    if (code != CUDA_SUCCESS) [[unlikely]]
      return error_of(cu, where, code);
    return {};
  }

  /// The same for calls that return a handle: `made` holds it after `body` succeeded.
  template <class Handle, class Body>
  [[nodiscard]] result<Handle> make(call where, CUmemGenericAllocationHandle& made, Body&& body) {
    if (const status outcome = run(where, body); !outcome) return outcome.error();
    check(made != 0, "the driver created an object and returned no handle");
    return static_cast<Handle>(made);
  }

  /// Errors: those of cuda_driver::open().
  [[nodiscard]] static result<std::unique_ptr<cuda_state>> open(const cuda_options& options);

  // Opening, in this order.
  [[nodiscard]] status find_device();
  [[nodiscard]] status read_device();
  [[nodiscard]] status take_context();
  [[nodiscard]] status choose_memory(bool is_plain);
  [[nodiscard]] int attribute(CUdevice_attribute which) const noexcept;
  void read_description() noexcept;
};

}  // namespace vmm::cuda
