// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - results of failing calls, planned faults, misuse and resource counts.
module;
#include <cstdio>

module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;
using fake::misuse_kind;

namespace fake {

namespace {

// ---- the sets of error codes ----

constexpr native_error cuda_invalid_value{errc::invalid_argument, 1, "CUDA_ERROR_INVALID_VALUE"};
constexpr native_error cuda_out_of_memory{errc::out_of_memory, 2, "CUDA_ERROR_OUT_OF_MEMORY"};
constexpr native_error cuda_out_of_addresses{errc::out_of_addresses, 2, "CUDA_ERROR_OUT_OF_MEMORY"};
constexpr native_error cuda_invalid_device{errc::invalid_argument, 101,
                                           "CUDA_ERROR_INVALID_DEVICE"};
constexpr native_error cuda_invalid_handle{errc::invalid_argument, 400,
                                           "CUDA_ERROR_INVALID_HANDLE"};
constexpr native_error cuda_illegal_state{errc::in_use, 401, "CUDA_ERROR_ILLEGAL_STATE"};
constexpr native_error cuda_illegal_address{errc::foreign_error, 700, "CUDA_ERROR_ILLEGAL_ADDRESS"};
constexpr native_error cuda_not_permitted{errc::not_permitted, 800, "CUDA_ERROR_NOT_PERMITTED"};
constexpr native_error cuda_not_supported{errc::not_supported, 801, "CUDA_ERROR_NOT_SUPPORTED"};
constexpr native_error cuda_unknown{errc::internal, 999, "CUDA_ERROR_UNKNOWN"};

constexpr native_error ze_device_lost{errc::device_lost, 0x70000001, "ZE_RESULT_ERROR_DEVICE_LOST"};
constexpr native_error ze_no_host_memory{errc::out_of_host_memory, 0x70000002,
                                         "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY"};
constexpr native_error ze_no_memory{errc::out_of_memory, 0x70000003,
                                    "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"};
constexpr native_error ze_no_addresses{errc::out_of_addresses, 0x70000003,
                                       "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"};
constexpr native_error ze_no_permission{errc::not_permitted, 0x70010000,
                                        "ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS"};
constexpr native_error ze_unsupported{errc::not_supported, 0x78000003,
                                      "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"};
constexpr native_error ze_argument{errc::invalid_argument, 0x78000004,
                                   "ZE_RESULT_ERROR_INVALID_ARGUMENT"};
constexpr native_error ze_null_handle{errc::invalid_argument, 0x78000005,
                                      "ZE_RESULT_ERROR_INVALID_NULL_HANDLE"};
constexpr native_error ze_in_use{errc::in_use, 0x78000006, "ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE"};
constexpr native_error ze_size{errc::invalid_argument, 0x78000009,
                               "ZE_RESULT_ERROR_UNSUPPORTED_SIZE"};

constexpr native_error posix_einval{errc::invalid_argument, 22, "EINVAL"};
constexpr native_error posix_ebadf{errc::invalid_argument, 9, "EBADF"};
constexpr native_error posix_eexist{errc::overlap, 17, "EEXIST"};
constexpr native_error posix_efault{errc::invalid_argument, 14, "EFAULT"};
constexpr native_error posix_enomem{errc::out_of_memory, 12, "ENOMEM"};
constexpr native_error posix_no_addresses{errc::out_of_addresses, 12, "ENOMEM"};
constexpr native_error posix_no_mappings{errc::out_of_mappings, 12, "ENOMEM"};
constexpr native_error posix_eopnotsupp{errc::not_supported, 95, "EOPNOTSUPP"};
constexpr native_error posix_eperm{errc::not_permitted, 1, "EPERM"};
constexpr native_error posix_ebusy{errc::in_use, 16, "EBUSY"};

using code_table = std::array<native_error, static_cast<std::size_t>(refusal::count)>;

// In the order of `refusal`.
constexpr code_table cuda_codes{
    cuda_invalid_value, cuda_invalid_device, cuda_invalid_value,    cuda_invalid_handle,
    cuda_invalid_value, cuda_invalid_value,  cuda_invalid_value,    cuda_invalid_value,
    cuda_invalid_value, cuda_out_of_memory,  cuda_out_of_addresses, cuda_out_of_memory,
    cuda_not_supported, cuda_not_permitted,  cuda_illegal_state,    cuda_invalid_value};
constexpr code_table ze_codes{ze_size,        ze_argument,      ze_null_handle,  ze_null_handle,
                              ze_argument,    ze_argument,      ze_argument,     ze_argument,
                              ze_in_use,      ze_no_memory,     ze_no_addresses, ze_no_memory,
                              ze_unsupported, ze_no_permission, ze_in_use,       ze_argument};
constexpr code_table posix_codes{
    posix_einval,     posix_einval, posix_ebadf,        posix_ebadf,
    posix_einval,     posix_einval, posix_eexist,       posix_einval,
    posix_ebusy,      posix_enomem, posix_no_addresses, posix_no_mappings,
    posix_eopnotsupp, posix_eperm,  posix_ebusy,        posix_efault};

// ---- what each call may return ----

constexpr std::array cuda_common{cuda_invalid_value, cuda_illegal_address, cuda_unknown};
constexpr std::array cuda_reserve{cuda_invalid_value, cuda_out_of_addresses, cuda_not_permitted,
                                  cuda_not_supported, cuda_illegal_address,  cuda_unknown};
constexpr std::array cuda_create{cuda_invalid_value, cuda_out_of_memory, cuda_invalid_device,
                                 cuda_not_permitted, cuda_not_supported, cuda_illegal_address,
                                 cuda_unknown};
constexpr std::array cuda_join{cuda_invalid_value, cuda_out_of_memory,   cuda_not_permitted,
                               cuda_not_supported, cuda_illegal_address, cuda_unknown};
constexpr std::array cuda_access{cuda_invalid_value, cuda_invalid_device,  cuda_not_supported,
                                 cuda_out_of_memory, cuda_illegal_address, cuda_unknown};
constexpr std::array cuda_undo{cuda_invalid_value, cuda_not_permitted, cuda_illegal_address,
                               cuda_unknown};
constexpr std::array cuda_stream{cuda_invalid_value, cuda_invalid_handle, cuda_illegal_address,
                                 cuda_unknown};
constexpr std::array cuda_object{cuda_invalid_value, cuda_out_of_memory, cuda_illegal_address,
                                 cuda_unknown};
constexpr std::array cuda_team{cuda_invalid_value, cuda_invalid_device, cuda_out_of_memory,
                               cuda_illegal_state, cuda_not_permitted,  cuda_not_supported,
                               cuda_unknown};

constexpr std::array ze_common{ze_argument, ze_device_lost};
constexpr std::array ze_take{ze_size,           ze_argument,    ze_no_memory,
                             ze_no_host_memory, ze_unsupported, ze_device_lost};
constexpr std::array ze_reserve{ze_size, ze_argument, ze_no_addresses, ze_no_host_memory,
                                ze_device_lost};
constexpr std::array ze_undo{ze_argument, ze_in_use, ze_no_host_memory, ze_device_lost};

constexpr std::array posix_common{posix_einval};
constexpr std::array posix_take{posix_einval, posix_enomem, posix_eperm, posix_eopnotsupp};
constexpr std::array posix_reserve{posix_einval, posix_no_addresses, posix_no_mappings};
constexpr std::array posix_join{posix_einval, posix_ebadf, posix_eexist, posix_no_mappings,
                                posix_eperm};
constexpr std::array posix_access{posix_einval, posix_no_mappings, posix_efault};
constexpr std::array posix_undo{posix_einval, posix_no_mappings};

std::span<const native_error> cuda_errors(call where) noexcept {
  switch (where) {
    case call::none: return {};
    case call::reserve: return cuda_reserve;
    case call::create: return cuda_create;
    case call::map:
    case call::import_handle:
    case call::export_handle: return cuda_join;
    case call::set_access: return cuda_access;
    case call::free_reservation:
    case call::release:
    case call::unmap: return cuda_undo;
    case call::create_stream:
    case call::create_event: return cuda_object;
    case call::create_multicast:
    case call::add_multicast_device:
    case call::bind_multicast:
    case call::unbind_multicast: return cuda_team;
    case call::destroy_stream:
    case call::synchronize_stream:
    case call::destroy_event:
    case call::record_event:
    case call::record_all:
    case call::query_event:
    case call::wait_event:
    case call::synchronize_event:
    case call::synchronize_all:
    case call::copy:
    case call::fill: return cuda_stream;
    default: return cuda_common;
  }
}

std::span<const native_error> ze_errors(call where) noexcept {
  switch (where) {
    case call::none: return {};
    case call::reserve: return ze_reserve;
    case call::create:
    case call::map:
    case call::set_access:
    case call::create_stream:
    case call::create_event:
    case call::import_handle:
    case call::export_handle: return ze_take;
    case call::free_reservation:
    case call::release:
    case call::unmap: return ze_undo;
    default: return ze_common;
  }
}

std::span<const native_error> posix_errors(call where) noexcept {
  switch (where) {
    case call::none: return {};
    case call::reserve: return posix_reserve;
    case call::create:
    case call::import_handle:
    case call::export_handle: return posix_take;
    case call::map: return posix_join;
    case call::set_access: return posix_access;
    case call::free_reservation:
    case call::unmap: return posix_undo;
    default: return posix_common;
  }
}

}  // namespace

const native_error& native(error_code_set codes, refusal why) noexcept {
  const auto index = static_cast<std::size_t>(why);
  check(index < static_cast<std::size_t>(refusal::count), "a refusal has no reason");
  switch (codes) {
    case error_code_set::cuda: break;
    case error_code_set::level_zero: return ze_codes[index];
    case error_code_set::posix: return posix_codes[index];
  }
  return cuda_codes[index];
}

const char* name_of(misuse_kind kind) noexcept {
  switch (kind) {
    case misuse_kind::leak: return "leak";
    case misuse_kind::double_map: return "double map";
    case misuse_kind::use_after_unmap: return "use after unmap";
    case misuse_kind::no_access: return "no access";
    case misuse_kind::past_the_end: return "past the end";
    case misuse_kind::stale_handle: return "stale handle";
    case misuse_kind::cut_mapping: return "cut mapping";
    case misuse_kind::access_over_hole: return "access over a hole";
    case misuse_kind::freed_while_mapped: return "freed while mapped";
    case misuse_kind::released_while_mapped: return "released while mapped";
    case misuse_kind::in_flight: return "in flight";
    case misuse_kind::unordered: return "unordered";
    case misuse_kind::wrong_contents: return "wrong contents";
  }
  return "unknown misuse";
}

// ---- failing ----

error fake_state::refuse_as(call where, refusal why, const char* detail) const noexcept {
  const native_error& code = native(emulated.codes, why);
  check(code.code != errc::none, "a refusal has no code");
  return error{code.code, where, code.native, code.native_name, detail};
}

std::optional<error> fake_state::struck(call where) noexcept {
  std::optional<error> failure;
  for (auto next = faults.begin(); next != faults.end();) {
    const bool fits = next->plan.where == call::none || next->plan.where == where;
    if (fits) ++next->seen;
    const bool due =
        fits && (next->plan.forever ? next->seen >= next->plan.nth : next->seen == next->plan.nth);
    if (!due || failure) {
      ++next;
      continue;
    }
    const native_error& code = next->plan.failure;
    check(code.code != errc::none, "a planned fault has no code");
    failure = error{code.code, where, code.native, code.native_name, "injected by a planned fault"};
    ++faults_struck;
    next = next->plan.forever ? next + 1 : faults.erase(next);
  }
  return failure;
}

// ---- reporting ----

void fake_state::misused(misuse_kind kind, call where, address_range range, std::uint64_t object,
                         const char* detail) noexcept {
  if (misuse_fatal) {
    std::fprintf(
        stderr, "vmm.fake: misuse: %s in %s: %s (addresses 0x%llx to 0x%llx, object 0x%llx)\n",
        name_of(kind), name_of(where), detail, static_cast<unsigned long long>(range.base.value),
        static_cast<unsigned long long>(range.end().value),
        static_cast<unsigned long long>(object));
    std::abort();
  }
  if (misuses.size() < fake_driver::max_misuses) {
    try {
      misuses.push_back({kind, where, range, object, detail});
    } catch (const std::bad_alloc&) {  // counted all the same
    }
  }
  check(static_cast<std::size_t>(kind) < misuse_counts.size(), "a misuse is of no kind");
  ++misuse_total;
  ++misuse_counts[static_cast<std::size_t>(kind)];
}

void fake_state::charge_us(double us) noexcept {
  check(us >= 0, "a call has a negative cost");
  const auto ns = static_cast<std::uint64_t>(us * 1000.0 + 0.5);
  now_ns += ns;
  busy_ns += ns;
  check(busy_ns <= now_ns, "fake I2: calls took more time than has passed");
  machine->now_ns = std::max(machine->now_ns, now_ns);
}

std::uint64_t fake_state::read_ns() const noexcept {
  const std::lock_guard<std::mutex> locked(machine->mutex);
  check(busy_ns <= now_ns, "calls took more time than has passed");
  return busy_ns;
}

void fake_state::raise_marks() noexcept {
  check(counts.mapped_bytes <= counts.reserved_bytes, "more is mapped than is reserved");
  counts.memories_max = std::max(counts.memories_max, counts.memories);
  counts.memory_bytes_max = std::max(counts.memory_bytes_max, counts.memory_bytes);
  counts.reserved_bytes_max = std::max(counts.reserved_bytes_max, counts.reserved_bytes);
  counts.mapped_bytes_max = std::max(counts.mapped_bytes_max, counts.mapped_bytes);
}

}  // namespace fake

std::span<const fake::native_error> fake_driver::possible_errors(call where) const noexcept {
  check(state_ != nullptr, fake::moved_from);
  switch (state_->emulated.codes) {
    case fake::error_code_set::cuda: break;
    case fake::error_code_set::level_zero: return fake::ze_errors(where);
    case fake::error_code_set::posix: return fake::posix_errors(where);
  }
  return fake::cuda_errors(where);
}

fake::resource_counts fake_driver::resource_counts() const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  fake::resource_counts counts = state_->counts;
  check(counts.handles == state_->handles.live() && counts.mappings == state_->mappings.size(),
        "the counts of live objects are wrong");
  state_->machine->descriptors.each([&](std::uint64_t, const fake::descriptor_record& each) {
    counts.descriptors += each.owner == state_.get() ? 1U : 0U;
  });
  return counts;
}

namespace {

struct leftover {
  misuse_kind kind = misuse_kind::leak;
  const char* what = "";
  std::uint64_t serial = 0;
  address_range range{};
  std::uint64_t object = 0;
};

// Everything that is alive, in the order in which it was made.
std::vector<leftover> leftovers(const fake_state& s) {
  std::vector<leftover> all;
  const auto add = [&](const char* what, std::uint64_t serial, address_range range,
                       std::uint64_t object) {
    all.push_back({misuse_kind::leak, what, serial, range, object});
  };
  for (const auto& [base, each] : s.reservations) {
    add("reservation", each.serial, {address{base}, each.size_bytes}, base);
  }
  s.handles.each([&](std::uint64_t token, const fake::handle_record& each) {
    const auto* behind = s.machine->memories.find(each.memory);
    check(behind != nullptr, "a handle has no memory");
    add("handle", each.serial, {address{}, behind->made_as.size_bytes}, token);
  });
  for (const auto& [base, each] : s.mappings) {
    add("mapping", each.serial, {address{base}, each.size_bytes}, each.memory);
  }
  s.streams.each([&](std::uint64_t token, const fake::stream_record& each) {
    add("stream", each.serial, {}, token);
  });
  s.events.each([&](std::uint64_t token, const fake::event_record& each) {
    add("event", each.serial, {}, token);
  });
  s.graphs.each([&](std::uint64_t token, const fake::graph_record& each) {
    add("graph", each.serial, {}, token);
  });
  s.machine->descriptors.each([&](std::uint64_t token, const fake::descriptor_record& each) {
    if (each.owner == &s) add("descriptor", 0, {}, token);
  });
  for (const fake::work_queue& each : s.queues) {
    for (const fake::work& queued : each.works) {
      if (queued.what != fake::work::kind::wait) add(queued.name, queued.serial, {}, queued.serial);
    }
  }
  check(all.size() >= s.reservations.size() + s.handles.live() + s.mappings.size(),
        "a live object is left out");
  std::sort(all.begin(), all.end(),
            [](const leftover& a, const leftover& b) { return a.serial < b.serial; });
  return all;
}

}  // namespace

std::string fake_driver::report(std::size_t lines_max) const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  const std::vector<leftover> all = leftovers(*state_);
  std::string text;
  for (std::size_t i = 0; i < std::min(all.size(), lines_max); ++i) {
    char line[160];
    std::snprintf(line, sizeof line, "#%llu %s 0x%llx: %llu bytes at 0x%llx\n",
                  static_cast<unsigned long long>(all[i].serial), all[i].what,
                  static_cast<unsigned long long>(all[i].object),
                  static_cast<unsigned long long>(all[i].range.size_bytes),
                  static_cast<unsigned long long>(all[i].range.base.value));
    text += line;
  }
  if (all.size() > lines_max) text += "and " + std::to_string(all.size() - lines_max) + " more\n";
  return text;
}

bool fake_driver::check_empty() {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  const std::vector<leftover> all = leftovers(*state_);
  for (const leftover& each : all) {
    state_->misused(misuse_kind::leak, call::none, each.range, each.object, each.what);
  }
  return all.empty();
}

std::vector<fake::misuse> fake_driver::misuses() const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  check(state_->misuses.size() <= state_->misuse_total, "a listed misuse is not counted");
  return state_->misuses;
}

std::uint64_t fake_driver::misuse_count() const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  return state_->misuse_total;
}

std::uint64_t fake_driver::misuse_count(fake::misuse_kind kind) const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  check(static_cast<std::size_t>(kind) < state_->misuse_counts.size(), "a misuse is of no kind");
  return state_->misuse_counts[static_cast<std::size_t>(kind)];
}

void fake_driver::clear_misuses() {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  state_->misuses.clear();
  state_->misuse_total = 0;
  state_->misuse_counts = {};
}

void fake_driver::set_misuse_fatal(bool fatal) {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  state_->misuse_fatal = fatal;
}

void fake_driver::set_gone_streams_undefined(bool undefined) {
  check(state_ != nullptr, fake::moved_from);
  state_->gone_streams_undefined = undefined;
}

}  // namespace vmm
