// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "manager_object.hpp"
#include "objects.hpp"
#include "python.hpp"

import vmm.manager;

namespace vmm_c {
namespace {

class range_use {
 public:
  explicit range_use(manager_object& of) noexcept : of_(of) { of_.growable_count.fetch_add(1); }
  ~range_use() { of_.growable_count.fetch_sub(1); }
  range_use(const range_use&) = delete;
  range_use& operator=(const range_use&) = delete;

 private:
  manager_object& of_;
};

// What the handle of a growable range stands for. Its manager counts it as a user.
struct growable_object {
  static constexpr handle_kind kind = handle_kind::growable;
  growable_object(manager_object& on, const vmm::growable_options& options)
      : owner(on), use(on), range(on.manager, options) {}

  [[nodiscard]] bool has_users() const noexcept {
    return made_in.is_here() && range.statistics().pin_count != 0;
  }

  manager_object& owner;
  const range_use use;  // it ends after the range has left the manager
  const made_here made_in;
  vmm::growable_range range;
};

// A call on a range: `work` gets it.
template <class Work>
vmm_status on_growable(vmm_growable* handle, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const call_on<growable_object> on(handle);
    const handler_scope handlers;
    return on ? work(*on) : fail_handle();
  });
}

vmm_status create(manager_object& memory, const vmm_growable_options& given, vmm_growable** out) {
  if (!memory.made_in.is_here()) return fail_forked();
  vmm_growable_options full;
  (void)vmm_growable_options_init(&full, sizeof(full));
  if (const vmm_status read = read_struct(given, full); read != VMM_SUCCESS) return read;
  const vmm_status flags = check_flags(
      VMM_ERROR_BAD_OPTION,
      {{full.keep_dirty, "keep_dirty is 0 or 1"}, {full.gives_tail, "gives_tail is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  const vmm::growable_options options{.segment_bytes_max = full.segment_bytes_max,
                                      .segment_count = full.segment_count,
                                      .handle_bytes = full.handle_bytes,
                                      .zero_new = full.keep_dirty == 0,
                                      .gives_tail = full.gives_tail != 0};
  auto made = std::make_unique<growable_object>(memory, options);
  if (const vmm::status reserved = made->range.reserve(); !reserved) return fail(reserved.error());
  void* const handle = add_handle(growable_object::kind, made.get());
  if (handle == nullptr)
    return fail(VMM_ERROR_OUT_OF_HOST_MEMORY,
                "no handle is left: at most 65,536 can exist at a time");
  (void)made.release();
  *out = static_cast<vmm_growable*>(handle);
  return VMM_SUCCESS;
}

vmm_status check_change(const vmm_growable_request& request) noexcept {
  if (request.change > VMM_GROWABLE_SHRINK) {
    return fail_value(VMM_ERROR_INVALID_ARGUMENT, request.change,
                      "change is one of VMM_GROWABLE_ANY, VMM_GROWABLE_GROW, VMM_GROWABLE_SHRINK");
  }
  if (request.reserved == 0) return VMM_SUCCESS;
  return fail(VMM_ERROR_INVALID_ARGUMENT, "a reserved member of a request is 0");
}

vmm_status resize(growable_object& on, const vmm_growable_request& given) {
  vmm_growable_request request{};
  if (const vmm_status read = read_struct(given, request); read != VMM_SUCCESS) return read;
  if (const vmm_status change = check_change(request); change != VMM_SUCCESS) return change;
  const vmm_status flags = check_flags(
      VMM_ERROR_INVALID_ARGUMENT,
      {{request.one_handle, "one_handle is 0 or 1"}, {request.no_wait, "no_wait is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  const driver_object& driver = on.owner.driver;
  if (!names_stream(driver, request.stream)) return fail_stream();
  return answer(on.range.resize({.size_bytes = request.size_bytes,
                                 .first_segment = request.first_segment,
                                 .segment_count = request.segment_count,
                                 .stream = stream_of(driver, request.stream),
                                 .change = static_cast<vmm::growable_change>(request.change),
                                 .one_handle = request.one_handle != 0,
                                 .may_wait = request.no_wait == 0}));
}

void query(growable_object& on, vmm_growable_info& out) noexcept {
  const vmm::growable_statistics now = on.range.statistics();
  vmm_growable_info info{};
  info.base = pointer_to(now.base);
  info.segment_count = now.segment_count;
  info.segment_bytes_max = now.segment_bytes_max;
  info.stride_bytes = now.stride_bytes;
  info.handle_bytes = now.handle_bytes;
  info.size_bytes = now.size_bytes;
  info.physical_bytes = now.physical_bytes;
  info.handle_count = now.handle_count;
  info.pin_count = now.pin_count;
  write_struct(out, info);
}

vmm_status destroy_growable(growable_object& gone, handle_slot& slot, vmm_stream last_use) {
  if (!gone.made_in.is_here()) return VMM_SUCCESS;
  if (slot.has_long_callers() || gone.has_users()) {
    return fail(VMM_ERROR_IN_USE,
                "a view or pin uses the growable range, or a call on it is in progress");
  }
  const driver_object& driver = gone.owner.driver;
  if (!names_stream(driver, last_use)) return fail_stream();
  close_handle(slot);  // a listener may call
  return answer(gone.range.close(stream_of(driver, last_use)));
}

}  // namespace
}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_growable_options_init(vmm_growable_options* options,
                                     uint64_t struct_size) VMM_NOEXCEPT {
  return init_struct(options, struct_size,
                     [](vmm_growable_options& out) { out.segment_count = 1; });
}

vmm_status vmm_growable_create(vmm_manager* manager, const vmm_growable_options* options,
                               vmm_growable** growable) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (growable == nullptr) return fail_null();
    *growable = nullptr;
    if (options == nullptr) return fail_null();
    const call_on<manager_object> on(manager);
    return on ? create(*on, *options, growable) : fail_handle();
  });
}

vmm_status vmm_growable_destroy(vmm_growable* growable, vmm_stream last_use) VMM_NOEXCEPT {
  if (growable == nullptr) return VMM_SUCCESS;
  return run([&]() -> vmm_status {
    handle_slot* const slot = claim_handle(growable, growable_object::kind);
    if (slot == nullptr) return fail_handle();
    auto* const object = static_cast<growable_object*>(slot->object);
    const vmm_status closed = destroy_growable(*object, *slot, last_use);
    if (closed != VMM_SUCCESS) {
      keep_handle(*slot);
      return closed;
    }
    delete object;
    drop_handle(*slot);
    return VMM_SUCCESS;
  });
}

vmm_status vmm_growable_resize(vmm_growable* growable,
                               const vmm_growable_request* request) VMM_NOEXCEPT {
  return on_growable(growable, [&](growable_object& on) {
    return request == nullptr ? fail_null() : resize(on, *request);
  });
}

vmm_status vmm_growable_synchronize(vmm_growable* growable, vmm_stream stream) VMM_NOEXCEPT {
  return on_growable(growable, [&](growable_object& on) -> vmm_status {
    const driver_object& driver = on.owner.driver;
    if (!names_stream(driver, stream)) return fail_stream();
    return answer(on.range.synchronize(stream_of(driver, stream)));
  });
}

vmm_status vmm_growable_query(vmm_growable* growable, vmm_growable_info* info) VMM_NOEXCEPT {
  return on_growable(growable, [&](growable_object& on) -> vmm_status {
    if (info == nullptr) return fail_null();
    if (!is_sized(*info)) return fail_size(*info);
    query(on, *info);
    return VMM_SUCCESS;
  });
}

vmm_status vmm_growable_segment(vmm_growable* growable, uint64_t index, void** base,
                                uint64_t* size_bytes) VMM_NOEXCEPT {
  return on_growable(growable, [&](growable_object& on) -> vmm_status {
    if (base == nullptr || size_bytes == nullptr) return fail_null();
    const vmm::result<vmm::address> at = on.range.segment(index);
    if (!at) return fail(at.error());
    const vmm::result<std::uint64_t> size = on.range.size_bytes(index);
    if (!size) return fail(size.error());
    *base = pointer_to(*at);
    *size_bytes = *size;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_growable_parts(vmm_growable* growable, uint64_t index, vmm_growable_part* parts,
                              uint64_t capacity, uint64_t* count) VMM_NOEXCEPT {
  return on_growable(growable, [&](growable_object& on) -> vmm_status {
    if (count == nullptr || (parts == nullptr && capacity != 0)) return fail_null();
    const vmm::result<std::vector<vmm::block_part>> listed = on.range.parts(index);
    if (!listed) return fail(listed.error());
    *count = listed->size();
    for (std::size_t i = 0; i < listed->size() && i < capacity; ++i)
      parts[i] = {static_cast<std::uint64_t>((*listed)[i].handle), (*listed)[i].size_bytes};
    return VMM_SUCCESS;
  });
}

vmm_status vmm_growable_pin(vmm_growable* growable, uint64_t size_bytes, uint64_t first_segment,
                            uint64_t segment_count, uint64_t* pin) VMM_NOEXCEPT {
  return on_growable(growable, [&](growable_object& on) -> vmm_status {
    if (pin == nullptr) return fail_null();
    vmm::result<vmm::growable_pin> kept = on.range.pin(
        {.size_bytes = size_bytes, .first_segment = first_segment, .segment_count = segment_count});
    if (!kept) return fail(kept.error());
    *pin = kept->release();
    return VMM_SUCCESS;
  });
}

vmm_status vmm_growable_unpin(vmm_growable* growable, uint64_t pin) VMM_NOEXCEPT {
  return on_growable(growable, [&](growable_object& on) { return answer(on.range.unpin(pin)); });
}

vmm_status vmm_growable_validate(vmm_growable* growable) VMM_NOEXCEPT {
  return on_growable(growable, [](growable_object& on) -> vmm_status {
    if (!on.owner.made_in.is_here()) return fail_forked();
    if (on.range.validate()) return VMM_SUCCESS;
    return fail(VMM_ERROR_INTERNAL, "an invariant of the growable range does not hold");
  });
}

}  // extern "C"
