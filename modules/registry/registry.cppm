// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.registry - drivers by name, for programs that choose one at run time.
//
// Code with a fixed driver imports that driver's module instead.
//
// Thread safety: any call from any thread, as long as none changes the environment.
// Cost: that of opening the driver; with a log, a line for each of its calls from then on.
export module vmm.registry;

export import vmm.backend;
import vmm.market;
import vmm.observe;
import vmm.std;

namespace vmm {

/// One name that open_backend accepts.
export struct backend_entry {
  std::string_view name{};
  bool available = false;
  const char* reason = "";  ///< the reason if it is not available; static storage
};
/// The number of names that open_backend accepts.
export inline constexpr std::size_t backend_entry_count = 7;

/// Effects: opens and closes each driver that open_backend accepts. Returns every name, in the
/// order in which open_backend tries them, and whether it can be opened now. Errors: none; an entry
/// has the reason why its driver cannot be opened. Cost: up to a second with a GPU. Thread safety:
/// any thread, as long as none changes the environment.
export [[nodiscard]] std::array<backend_entry, backend_entry_count> backend_names() noexcept;

/// Effects: opens a driver: "cuda" (device 0), "cuda:N", "level_zero" (device 0), "level_zero:N",
/// "host", "fake" (which emulates CUDA), "fake:cuda", "fake:level_zero" or "fake:host". An empty
/// name stands for the variable VMM_BACKEND, or, if that is not set, for the first that is
/// available. VMM_LOG ("off", "stderr" or a path) logs every call. With VMM_OWNER (auto, or a
/// directory) the memory of the driver is that of the device's owner: see vmm.market:driver.
/// Errors: bad_option (no such name, a log that cannot be written, a malformed VMM_BACKEND or
/// VMM_CUDA_MEMORY, also if this call does not use it, a variable such as
/// VMM_CUDA_LIBRARY that names no driver's library), unavailable (no such driver
/// here; the detail has the reason), out_of_host_memory, driver errors; with VMM_OWNER those of
/// open_tenant, and not_supported (a driver other than cuda and host). Cost: that of opening the
/// driver.
/// Thread safety: as backend_names.
export [[nodiscard]] result<any_backend> open_backend(std::string_view name = {}) noexcept;

/// Errors: bad_option, as open_backend() returns it for the name or the variable VMM_BACKEND. Cost:
/// no driver call. Thread safety: as backend_names.
export [[nodiscard]] status check_backend_name(std::string_view name = {}) noexcept;

/// The B inside a backend that open_backend made, also behind a log or a tenant's driver; nullptr
/// if it is another type. Requires: a backend that was not moved from. Cost: four dynamic_casts.
export template <backend B>
[[nodiscard]] B* driver_in(any_backend& opened) noexcept {
  any_backend* inside = &opened;
  if (B* found = inside->get_if<B>()) return found;
  if (auto* logged = inside->get_if<observed_backend<any_backend, call_log>>())
    inside = &logged->driver();
  if (auto* tenant = inside->get_if<tenant_driver>()) inside = tenant->owned();
  return inside == nullptr ? nullptr : inside->get_if<B>();
}

}  // namespace vmm
