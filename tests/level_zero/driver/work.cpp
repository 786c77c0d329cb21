// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The simulated Level Zero driver: command lists, events, bytes. A list is a stream of the fake
// driver, whose order is stricter than a list's: commands without a barrier between them are noted.

#include "state.h"

import vmm.backend;
import vmm.fake;

namespace simulated {
namespace {

template <class Body>
ze_result_t answer(const char* symbol, Body&& body) noexcept {
  return answer_with<vmm::fake_driver>(symbol, body);
}

vmm::stream_handle stream_of(ze_command_list_handle_t list) {
  return static_cast<vmm::stream_handle>(list->stream);
}
vmm::event_handle event_of(std::uint64_t event) { return static_cast<vmm::event_handle>(event); }
vmm::address at_of(const void* at) { return {reinterpret_cast<std::uintptr_t>(at)}; }

void count_object(long long change) {
  locked(the())->object_count += static_cast<unsigned long long>(change);
}

bool is_device_memory(const void* at) {
  const locked s(the());
  auto after = s->reserved.upper_bound(at_of(at).value);
  if (after == s->reserved.begin()) return false;
  --after;
  return at_of(at).value - after->first < after->second;
}

// An event of the fake driver behind all that is in the stream; none when it has no memory.
std::uint64_t mark(vmm::fake_driver& fake, vmm::stream_handle stream) {
  const auto made = fake.create_event();
  if (!made || !fake.record_event(*made, stream)) return 0;
  return static_cast<std::uint64_t>(*made);
}

bool has_passed(vmm::fake_driver& fake, std::uint64_t event) {
  const auto answer = fake.query_event(event_of(event));
  return answer && *answer;
}

// Nothing signals or waits for the event any more.
bool is_idle(vmm::fake_driver& fake, _ze_event_handle_t& event) {
  bool idle = !event.is_queued || has_passed(fake, event.event);
  for (const std::uint64_t wait : event.waits) idle = has_passed(fake, wait) && idle;
  return idle;
}

void drop_waits(vmm::fake_driver& fake, _ze_event_handle_t& event) {
  for (const std::uint64_t wait : event.waits)
    static_cast<void>(fake.destroy_event(event_of(wait)));
  event.waits.clear();
}

// A passed event shows that the commands before its signal have finished.
void note_seen(const _ze_event_handle_t& event) {
  std::uint64_t before = event.of->seen_count;
  while (before < event.after_count &&
         !event.of->seen_count.compare_exchange_weak(before, event.after_count)) {
  }
}

// What the list is given now would run beside the command before it.
void note_order(ze_command_list_handle_t list) {
  if (list->needs_barrier) misused("two commands of a list without a barrier between them");
  list->needs_barrier = !list->is_synchronous;
}

// ---- lists --------------------------------------------------------------------------------------

ze_result_t ZE_APICALL list_create(ze_context_handle_t, ze_device_handle_t,
                                   const ze_command_queue_desc_t* like,
                                   ze_command_list_handle_t* list) {
  return answer("zeCommandListCreateImmediate", [&](vmm::fake_driver& fake) {
    if (like->stype != ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC || like->ordinal != 1)
      return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    const auto made = fake.create_stream();
    if (!made) return code_of(made);
    count_object(1);
    const bool is_synchronous = like->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
    *list = new _ze_command_list_handle_t{static_cast<std::uint64_t>(*made), is_synchronous};
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL list_destroy(ze_command_list_handle_t list) {
  return answer("zeCommandListDestroy", [&](vmm::fake_driver& fake) {
    const std::uint64_t end = mark(fake, stream_of(list));
    const bool idle = has_passed(fake, end);
    static_cast<void>(fake.destroy_event(event_of(end)));
    if (!idle) {
      misused("zeCommandListDestroy while the list's work is unfinished");
      return ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE;
    }
    if (!list->is_synchronous && list->progress->seen_count < list->progress->appended_count) {
      misused("zeCommandListDestroy of a list whose last commands were not seen to finish");
      return ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE;
    }
    const auto outcome = fake.destroy_stream(stream_of(list));
    if (!outcome) return code_of(outcome);
    count_object(-1);
    delete list;
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL append_barrier(ze_command_list_handle_t list, ze_event_handle_t signal,
                                      std::uint32_t count, ze_event_handle_t* waits) {
  return answer("zeCommandListAppendBarrier", [&](vmm::fake_driver& fake) {
    list->needs_barrier = false;
    if (signal != nullptr && signal->is_queued) {
      misused("an event is signalled twice without being set back");
      return ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      if (!waits[i]->is_queued) {
        misused("a wait for an event whose signal is not queued");
        return ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT;
      }
      const auto waited = fake.wait_event(stream_of(list), event_of(waits[i]->event));
      if (!waited) return code_of(waited);
      const std::uint64_t passed = mark(fake, stream_of(list));
      const locked s(the());  // lists of several threads wait for it
      waits[i]->waits.push_back(passed);
    }
    ++list->progress->appended_count;
    if (signal == nullptr) return ZE_RESULT_SUCCESS;
    const auto recorded = fake.record_event(event_of(signal->event), stream_of(list));
    if (recorded) {
      signal->is_queued = true;
      signal->of = list->progress;
      signal->after_count = list->progress->appended_count;
    }
    return code_of(recorded);
  });
}

ze_result_t ZE_APICALL append_copy(ze_command_list_handle_t list, void* target, const void* source,
                                   std::size_t size, ze_event_handle_t, std::uint32_t,
                                   ze_event_handle_t*) {
  return answer("zeCommandListAppendMemoryCopy", [&](vmm::fake_driver& fake) {
    note_order(list);
    ++list->progress->appended_count;
    const bool to_device = is_device_memory(target);
    const bool from_device = is_device_memory(source);
    if (to_device && from_device) {
      return code_of(fake.copy({at_of(target), at_of(source), size, stream_of(list)}));
    }
    if (!list->is_synchronous) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    if (to_device) {
      return code_of(fake.write(at_of(target), {static_cast<const std::byte*>(source), size}));
    }
    return code_of(fake.read({static_cast<std::byte*>(target), size}, at_of(source)));
  });
}

ze_result_t ZE_APICALL append_fill(ze_command_list_handle_t list, void* target, const void* pattern,
                                   std::size_t pattern_size, std::size_t size, ze_event_handle_t,
                                   std::uint32_t, ze_event_handle_t*) {
  return answer("zeCommandListAppendMemoryFill", [&](vmm::fake_driver& fake) {
    note_order(list);
    ++list->progress->appended_count;
    if (pattern_size != 1) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    const auto value = *static_cast<const std::uint8_t*>(pattern);
    return code_of(fake.fill({{at_of(target), size}, value, stream_of(list)}));
  });
}

// ---- events -------------------------------------------------------------------------------------

ze_result_t ZE_APICALL pool_create(ze_context_handle_t, const ze_event_pool_desc_t* like,
                                   std::uint32_t, ze_device_handle_t*,
                                   ze_event_pool_handle_t* pool) {
  return answer("zeEventPoolCreate", [&](auto&) {
    count_object(1);
    *pool = new _ze_event_pool_handle_t{like->count};
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL pool_destroy(ze_event_pool_handle_t pool) {
  return answer("zeEventPoolDestroy", [&](auto&) {
    count_object(-1);
    delete pool;
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL event_create(ze_event_pool_handle_t pool, const ze_event_desc_t* like,
                                    ze_event_handle_t* event) {
  return answer("zeEventCreate", [&](vmm::fake_driver& fake) {
    if (like->index >= pool->count) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    const auto made = fake.create_event();
    if (!made) return code_of(made);
    count_object(1);
    *event = new _ze_event_handle_t{static_cast<std::uint64_t>(*made)};
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL event_destroy(ze_event_handle_t event) {
  return answer("zeEventDestroy", [&](vmm::fake_driver& fake) {
    if (!is_idle(fake, *event)) misused("zeEventDestroy while work signals it or waits for it");
    drop_waits(fake, *event);
    static_cast<void>(fake.destroy_event(event_of(event->event)));
    count_object(-1);
    delete event;
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL event_query(ze_event_handle_t event) {
  return answer("zeEventQueryStatus", [&](vmm::fake_driver& fake) {
    const bool passed = event->is_queued && has_passed(fake, event->event);
    if (passed) note_seen(*event);
    return passed ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
  });
}

ze_result_t ZE_APICALL event_synchronize(ze_event_handle_t event, std::uint64_t) {
  return answer("zeEventHostSynchronize", [&](vmm::fake_driver& fake) {
    if (!event->is_queued) {
      misused("zeEventHostSynchronize for an event whose signal is not queued");
      return ZE_RESULT_NOT_READY;
    }
    const auto outcome = fake.synchronize_event(event_of(event->event));
    if (outcome) note_seen(*event);
    return code_of(outcome);
  });
}

ze_result_t ZE_APICALL event_reset(ze_event_handle_t event) {
  return answer("zeEventHostReset", [&](vmm::fake_driver& fake) {
    if (!is_idle(fake, *event)) misused("zeEventHostReset while work signals it or waits for it");
    drop_waits(fake, *event);
    event->is_queued = false;
    return ZE_RESULT_SUCCESS;
  });
}

}  // namespace

void fill_work(ze_command_list_dditable_t& to) {
  to.pfnCreateImmediate = list_create;
  to.pfnDestroy = list_destroy;
  to.pfnAppendBarrier = append_barrier;
  to.pfnAppendMemoryCopy = append_copy;
  to.pfnAppendMemoryFill = append_fill;
}

void fill_work(ze_event_pool_dditable_t& to) {
  to.pfnCreate = pool_create;
  to.pfnDestroy = pool_destroy;
}

void fill_work(ze_event_dditable_t& to) {
  to.pfnCreate = event_create;
  to.pfnDestroy = event_destroy;
  to.pfnQueryStatus = event_query;
  to.pfnHostSynchronize = event_synchronize;
  to.pfnHostReset = event_reset;
}

}  // namespace simulated
