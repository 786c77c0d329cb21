// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:policy - the differences of the policies, as values of one engine.
//
// Thread safety: values only. Cost: none.
export module vmm.manager:policy;

import vmm.backend;
import vmm.optimizer;
import vmm.std;

namespace vmm {

export using vmm::memory_options;
export using vmm::contents_rule;
export using vmm::memory_segment;
export using vmm::poison_byte;

/// The use of a freed block.
export enum class free_rule : std::uint8_t {
  unmap,        // it is unmapped, and its handles are retained
  keep_mapped,  // it stays mapped, and serves the next request of its size without a driver call
};

/// How the manager reuses memory. Presets carry the names that options and tools use.
export struct manager_policy {
  const char* name = "va_pool";
  free_rule on_free = free_rule::unmap;
  bool grow_cached = false;  ///< if only smaller ranges are retained: grow the largest of them
  bool unbind_cached =
      false;  ///< if only larger ranges are retained: split the smallest into its handles
  double fragment_ratio =
      0.25;  ///< the share of a request that a retained handle must have to serve it
  std::uint64_t chunk_bytes = 0;  ///< size of new handles; 0: one handle for all missing memory

  /// Unmap when freed; use retained handles of any size from a quarter of the request on.
  ///
  [[nodiscard]] static manager_policy va_pool() noexcept;
  /// Keep freed ranges mapped for requests of exactly their size, else as va_pool.
  [[nodiscard]] static manager_policy keep_mapped() noexcept;
  /// Cases 1 to 4 over chunks of 20 MiB.
  [[nodiscard]] static manager_policy virtual_caching() noexcept;
  /// One of the above. Errors: bad_option, whose detail lists the names.
  [[nodiscard]] static result<manager_policy> by_name(std::string_view name) noexcept;

  /// The options that have a range: fragment_ratio from 0 to 1, chunk_bytes to 2^56.
  [[nodiscard]] static std::span<const option_row<manager_policy>> ranges() noexcept;
  /// Errors: bad_option; the detail names the option and its range.
  [[nodiscard]] status validate() const noexcept;
};

/// The options of a manager.
export struct manager_options : memory_options {
  manager_policy policy = manager_policy::va_pool();
  share_kind shareable = share_kind::none;  ///< properties of all physical memory
  bool compressible = false;
  bool rdma_capable = false;

  /// Checks without a device that each option is within its range (memory_options, policy).
  /// Errors: bad_option; the detail names the option and its range. Cost: constant, no driver call.
  [[nodiscard]] status validate() const noexcept;

  /// `base`, with the values of VMM_POLICY, VMM_FRAG_RATIO, VMM_CHUNK_SIZE, VMM_VA_SIZE and
  /// VMM_BUDGET that are set. Errors: bad_option; the detail names the variable and its valid
  /// values, or the option of `base` that validate() refuses.
  [[nodiscard]] static result<manager_options> from_environment(
      const manager_options& base) noexcept;
};

/// Checks that the driver does not refuse every request of the manager. Only a trial shows whether
/// a process may share fabric handles, and the driver may decline compression. Errors:
/// not_supported.
[[nodiscard]] status check_properties(const manager_options& options, const features& can) noexcept;

}  // namespace vmm
