// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// NVML's queries of a device's memory, and of its processes: a tenant's share, and in the row of
// this process the memory that the tenant holds. The results of a MIG instance, of a device in MIG
// mode, and the rows of other processes stay NVML's.
//
// Thread safety: all of it. Cost: NVML's, and two more of its calls.
#include "nvml.h"

#include <unistd.h>

#include <array>
#include <new>
#include <string>
#include <string_view>

#include "routes.h"
#include "serve.h"
#include "settings.h"

namespace vmm::preload {
namespace {

template <class... Parameters>
bool call_nvml(const char* symbol, nvml::device_id device, Parameters... parameters) {
  using function = nvml::result_code(nvml::device_id, Parameters...);
  auto* const found = reinterpret_cast<function*>(nvml_symbol(symbol));
  return found != nullptr && found(device, parameters...) == nvml::success;
}

// As an owner has it: 32 small hexadecimal digits. "": an instance of MIG, or its device.
std::string uuid_of(nvml::device_id device) {
  unsigned is_mig = 0;
  unsigned is_later_mig = 0;
  constexpr unsigned text_bytes = 96;
  std::array<char, text_bytes> text{};
  if (call_nvml("nvmlDeviceGetMigMode", device, &is_mig, &is_later_mig) && is_mig != 0) return {};
  if (!call_nvml("nvmlDeviceGetUUID", device, text.data(), text_bytes)) return {};
  text.back() = '\0';
  const std::string_view uuid(text.data());
  constexpr std::string_view prefix = "GPU-";
  if (!uuid.starts_with(prefix)) return {};
  std::string digits(uuid.substr(prefix.size()));
  std::erase(digits, '-');
  return digits;
}

template <class Memory>
void set(const managed::device_share& share, Memory& memory) noexcept {
  const managed::device_share seen = share.within(memory.total_bytes);
  memory.total_bytes = seen.total_bytes;
  memory.free_bytes = seen.free_bytes;
  memory.used_bytes = seen.used_bytes();
}

void show(const managed::device_share& share, nvml::memory* memory) noexcept {
  set(share, *memory);
}

void show(const managed::device_share& share, nvml::memory_v2* memory) noexcept {
  if (memory->version != nvml::memory_v2_version) return;
  set(share, *memory);
  memory->reserved_bytes = 0;
}

template <class Row>
void show(const managed::device_share& share, const unsigned* count, Row* rows) noexcept {
  if (rows == nullptr) return;
  const std::uint64_t held_bytes = share.is_refused ? 0 : share.used_bytes();
  for (Row* each = rows; each != rows + *count; ++each) {
    if (each->pid == static_cast<unsigned>(getpid())) each->used_bytes = held_bytes;
  }
}

template <class... Results>
nvml::result_code query(nvml_entry entry, nvml::device_id device, Results... results) noexcept {
  using function = nvml::result_code(nvml::device_id, Results...);
  auto* const real = reinterpret_cast<function*>(real_of(entry));
  if (real == nullptr) return nvml::function_not_found;
  const nvml::result_code code = real(device, results...);
  if (code != nvml::success || is_passive() || !is_managed()) return code;
  try {
    const std::string uuid = uuid_of(device);
    managed::device_share share;
    if (!uuid.empty() && managed::find_share(uuid, share)) show(share, results...);
  } catch (const std::bad_alloc&) {
    return code;  // the device's
  }
  return code;
}

}  // namespace
}  // namespace vmm::preload

using namespace vmm::preload;  // NOLINT: the functions below are this file's only others

#define VMM_UNPACK(...) __VA_ARGS__
#define VMM_NVML_ENTRY(symbol, parameters, arguments)                             \
  extern "C" [[gnu::visibility("default")]] nvml::result_code symbol parameters { \
    return query(nvml_entry::symbol, VMM_UNPACK arguments);                       \
  }
#include "nvml_entries.inc"
#undef VMM_NVML_ENTRY
#undef VMM_UNPACK
