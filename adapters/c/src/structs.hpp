// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Structs that grow: struct_size is the size of the caller's version. Members that only this
// library has keep their defaults; members that only the caller has must be 0, or the call is
// refused.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "errors.hpp"
#include "vmm.h"

namespace vmm_c {

// The size of a struct in its first version, the smallest possible, and its name.
struct struct_version {
  std::size_t size_bytes = 0;
  const char* name = "";
};
template <class Struct>
inline constexpr struct_version first_version{};
template <>
inline constexpr struct_version first_version<vmm_error_info>{64, "vmm_error_info"};
template <>
inline constexpr struct_version first_version<vmm_driver_info>{48, "vmm_driver_info"};
template <>
inline constexpr struct_version first_version<vmm_pool_options>{88, "vmm_pool_options"};
template <>
inline constexpr struct_version first_version<vmm_trim_report>{32, "vmm_trim_report"};
template <>
inline constexpr struct_version first_version<vmm_preallocate_report>{40, "vmm_preallocate_report"};
template <>
inline constexpr struct_version first_version<vmm_pool_statistics>{176, "vmm_pool_statistics"};
template <>
inline constexpr struct_version first_version<vmm_shortage>{80, "vmm_shortage"};
template <>
inline constexpr struct_version first_version<vmm_remap_notice>{40, "vmm_remap_notice"};
template <>
inline constexpr struct_version first_version<vmm_manager_options>{88, "vmm_manager_options"};
template <>
inline constexpr struct_version first_version<vmm_block_request>{40, "vmm_block_request"};
template <>
inline constexpr struct_version first_version<vmm_resize_request>{40, "vmm_resize_request"};
template <>
inline constexpr struct_version first_version<vmm_copy_request>{48, "vmm_copy_request"};
template <>
inline constexpr struct_version first_version<vmm_block_info>{56, "vmm_block_info"};
template <>
inline constexpr struct_version first_version<vmm_manager_statistics>{168,
                                                                      "vmm_manager_statistics"};
template <>
inline constexpr struct_version first_version<vmm_share_options>{48, "vmm_share_options"};
template <>
inline constexpr struct_version first_version<vmm_export_request>{72, "vmm_export_request"};
template <>
inline constexpr struct_version first_version<vmm_import_request>{16, "vmm_import_request"};
template <>
inline constexpr struct_version first_version<vmm_shared_info>{88, "vmm_shared_info"};
template <>
inline constexpr struct_version first_version<vmm_share_event>{32, "vmm_share_event"};
template <>
inline constexpr struct_version first_version<vmm_growable_options>{40, "vmm_growable_options"};
template <>
inline constexpr struct_version first_version<vmm_growable_request>{56, "vmm_growable_request"};
template <>
inline constexpr struct_version first_version<vmm_growable_info>{80, "vmm_growable_info"};
template <>
inline constexpr struct_version first_version<vmm_suspender_options>{24, "vmm_suspender_options"};
template <>
inline constexpr struct_version first_version<vmm_suspend_request>{48, "vmm_suspend_request"};
template <>
inline constexpr struct_version first_version<vmm_suspend_report>{64, "vmm_suspend_report"};
template <>
inline constexpr struct_version first_version<vmm_suspender_info>{32, "vmm_suspender_info"};

// No struct will be larger; a larger number is invalid, and reading that many bytes would read past
// the struct.
inline constexpr std::uint64_t struct_bytes_max = 4096;
// Every struct has a size that is a multiple of this; others would cut a member in two.
inline constexpr std::uint64_t struct_alignment = alignof(std::uint64_t);

template <class Struct>
[[nodiscard]] constexpr bool is_size_of(std::uint64_t struct_size) noexcept {
  constexpr std::size_t first_bytes = first_version<Struct>.size_bytes;
  static_assert(first_bytes != 0 && first_bytes <= sizeof(Struct));
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  static_assert(alignof(Struct) == struct_alignment && first_bytes % struct_alignment == 0);
  return struct_size >= first_bytes && struct_size <= struct_bytes_max &&
         struct_size % struct_alignment == 0;
}
template <class Struct>
[[nodiscard]] bool is_sized(const Struct& given) noexcept {
  return is_size_of<Struct>(given.struct_size);
}
template <class Struct>
vmm_status fail_size(std::uint64_t struct_size) noexcept {
  constexpr struct_version first = first_version<Struct>;
  return fail_size(struct_size, {first.name, first.size_bytes, sizeof(Struct), struct_bytes_max});
}
template <class Struct>
vmm_status fail_size(const Struct& given) noexcept {
  return fail_size<Struct>(given.struct_size);
}

// Over the defaults that `into` has.
template <class Struct>
[[nodiscard]] vmm_status read_struct(const Struct& given, Struct& into) noexcept {
  if (!is_sized(given)) return fail_size(given);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&given);
  const std::size_t size = given.struct_size;
  for (std::size_t at = sizeof(Struct); at < size; ++at) {
    if (bytes[at] != 0)
      return fail(VMM_ERROR_NOT_SUPPORTED,
                  "a member of the struct that is newer than this version of vmm is not 0");
  }
  std::memcpy(&into, bytes, std::min(size, sizeof(Struct)));
  into.struct_size = sizeof(Struct);
  return VMM_SUCCESS;
}

// Requires is_sized(into).
template <class Struct>
void write_struct(Struct& into, const Struct& from) noexcept {
  auto* const bytes = reinterpret_cast<unsigned char*>(&into);
  const std::size_t size = into.struct_size;
  std::memcpy(bytes + sizeof(into.struct_size),
              reinterpret_cast<const unsigned char*>(&from) + sizeof(into.struct_size),
              std::min(size, sizeof(Struct)) - sizeof(into.struct_size));
  if (size > sizeof(Struct)) std::memset(bytes + sizeof(Struct), 0, size - sizeof(Struct));
}

// Implements vmm_*_options_init(): the library's defaults, and 0 for members that only the caller
// has. A call with an impossible size clears struct_size, which every struct has: no call accepts
// the struct, also where the caller overlooks the status.
template <class Struct, class Fill>
vmm_status init_struct(Struct* out, std::uint64_t struct_size, Fill&& fill) noexcept {
  if (out == nullptr) return fail_null();
  out->struct_size = 0;
  if (!is_size_of<Struct>(struct_size)) return fail_size<Struct>(struct_size);
  Struct full{};
  fill(full);
  out->struct_size = struct_size;
  write_struct(*out, full);
  return VMM_SUCCESS;
}

// A flag, 0 or 1, and the error for any other value.
struct flag_member {
  std::uint32_t value;
  const char* refusal;
};

inline vmm_status check_flags(vmm_status refused, std::initializer_list<flag_member> all) noexcept {
  for (const flag_member& each : all) {
    if (each.value > 1) return fail_value(refused, each.value, each.refusal);
  }
  return VMM_SUCCESS;
}

// Elements of arrays never grow.
static_assert(sizeof(vmm_driver_entry) == 24 && sizeof(vmm_pool_region) == 40 &&
              sizeof(vmm_extent) == 40 && sizeof(vmm_growable_part) == 16);

}  // namespace vmm_c
