// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The simulated Level Zero driver: the loader's entry points, drivers, devices and contexts, and
// the test's controls. The loader finds it through ZE_ENABLE_ALT_DRIVERS.

#include "state.h"

import vmm.backend;
import vmm.fake;

namespace simulated {

namespace {

thread_local unsigned long long calls_here = 0;
thread_local ze_result_t last_here = ZE_RESULT_SUCCESS;

// A driver's static objects go when the process ends; a call after that would use them. Misuse
// since the last reset is reported then: a program that does not query it fails by that.
struct until_exit {
  bool is_over = false;
  bool has_begun = false;
  ~until_exit();
};
until_exit life;

// ZE_AFFINITY_MASK, as the specification has it: numbers of devices with commas, and behind a point
// those of parts, which this driver's devices do not have. What is not there is passed over. The
// devices keep their order.
void read_mask(state& s) {
  s.visible.clear();
  const char* const mask = std::getenv("ZE_AFFINITY_MASK");
  const bool shows_all = mask == nullptr || *mask == '\0';
  for (int i = 0; i < s.device_count(); ++i) {
    bool is_named = shows_all;
    for (const char* at = mask; !shows_all && at != nullptr && *at != '\0';) {
      char* end = nullptr;
      const long number = std::strtol(at, &end, 10);
      is_named = is_named || (end != at && number == i);
      at = std::strchr(end, ',');
      if (at != nullptr) ++at;
    }
    if (is_named) s.visible.push_back(i);
  }
}

// A driver from before virtual memory: the loader queries the tables once, when it starts.
bool has_virtual_memory() { return std::getenv("VMM_ZE_WITHOUT_VIRTUAL_MEMORY") == nullptr; }

void start(state& s) {
  vmm::fake::profile plays = vmm::fake::profile::level_zero();
  plays.device_count = std::max(s.device_count(), 1);
  if (s.setup.device_bytes != 0) plays.device_memory_bytes = s.setup.device_bytes;
  s.fake = {new vmm::fake_driver(plays),
            [](void* fake) { delete static_cast<vmm::fake_driver*>(fake); }};
  for (int i = 0; i < device_count_max; ++i) s.devices[static_cast<std::size_t>(i)].ordinal = i;
  read_mask(s);
}

template <class Body>
ze_result_t answer(const char* symbol, Body&& body) noexcept {
  return answer_with<vmm::fake_driver>(symbol, body);
}

// A counted call: the count without an array, else as many as fit.
template <class Out, class Make>
ze_result_t give(std::uint32_t* count, Out* out, std::uint32_t there, Make&& make) {
  if (out == nullptr || *count == 0) {
    *count = there;
    return ZE_RESULT_SUCCESS;
  }
  *count = std::min(*count, there);
  for (std::uint32_t i = 0; i < *count; ++i) make(out[i], i);
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL init(ze_init_flags_t) {
  return answer("zeInit", [](auto&) { return ZE_RESULT_SUCCESS; });
}

ze_result_t ZE_APICALL driver_get(std::uint32_t* count, ze_driver_handle_t* drivers) {
  return answer("zeDriverGet", [&](auto&) {
    return give(count, drivers, 1, [](auto& to, std::uint32_t) { to = &the().driver; });
  });
}

ze_result_t ZE_APICALL driver_get_api_version(ze_driver_handle_t, ze_api_version_t* version) {
  return answer("zeDriverGetApiVersion", [&](auto&) {
    *version = ZE_API_VERSION_1_3;
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL driver_get_properties(ze_driver_handle_t, ze_driver_properties_t* about) {
  return answer("zeDriverGetProperties", [&](auto&) {
    about->driverVersion = 7;
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL device_get(ze_driver_handle_t, std::uint32_t* count,
                                  ze_device_handle_t* devices) {
  return answer("zeDeviceGet", [&](auto&) {
    const int leaving = devices == nullptr ? the().setup.device_count_leaving : 0;
    state& s = the();
    const auto there =
        static_cast<std::uint32_t>(s.visible.size()) + static_cast<std::uint32_t>(leaving);
    return give(count, devices, there, [&](auto& to, std::uint32_t i) {
      to = &s.devices[static_cast<std::size_t>(s.visible[i])];
    });
  });
}

ze_result_t ZE_APICALL device_get_properties(ze_device_handle_t, ze_device_properties_t* about) {
  return answer("zeDeviceGetProperties", [&](auto&) {
    about->type = ZE_DEVICE_TYPE_GPU;
    about->vendorId = 0x8086;
    about->deviceId = 0x56c0;
    about->flags = the().setup.on_demand_pages ? ZE_DEVICE_PROPERTY_FLAG_ONDEMANDPAGING : 0u;
    std::strncpy(about->name, "vmm simulated GPU", sizeof about->name - 1);
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL device_get_memory(ze_device_handle_t device, std::uint32_t* count,
                                         ze_device_memory_properties_t* out) {
  return answer("zeDeviceGetMemoryProperties", [&](vmm::fake_driver& fake) {
    const auto info = fake.query_memory(vmm::device(device->ordinal));
    if (!info) return code_of(info);
    return give(count, out, 1, [&](auto& to, std::uint32_t) { to.totalSize = info->total_bytes; });
  });
}

ze_result_t ZE_APICALL device_get_queue_groups(ze_device_handle_t, std::uint32_t* count,
                                               ze_command_queue_group_properties_t* out) {
  return answer("zeDeviceGetCommandQueueGroupProperties", [&](auto&) {
    // The first group only copies: a program that takes it without a check cannot compute.
    return give(count, out, 2, [](auto& to, std::uint32_t i) {
      to.flags = i == 0 ? ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY
                        : ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY |
                              ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
      to.maxMemoryFillPatternSize = 16;
      to.numQueues = 1;
    });
  });
}

ze_result_t ZE_APICALL context_create(ze_driver_handle_t, const ze_context_desc_t*,
                                      ze_context_handle_t* context) {
  return answer("zeContextCreate", [&](auto&) {
    ++locked(the())->object_count;
    *context = new _ze_context_handle_t;
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL context_destroy(ze_context_handle_t context) {
  return answer("zeContextDestroy", [&](auto&) {
    --locked(the())->object_count;
    delete context;
    return ZE_RESULT_SUCCESS;
  });
}

}  // namespace

state& the() {
  static state* const only = [] {
    auto* const made = new state;  // never destroyed: threads may outlive main
    start(*made);
    return made;
  }();
  return *only;
}

until_exit::~until_exit() {
  is_over = true;
  if (!has_begun) return;
  const auto& fake = *static_cast<const vmm::fake_driver*>(the().fake.get());
  if (!the().misuse.empty())
    std::fprintf(stderr, "the simulated driver: misuse: %s\n", the().misuse.c_str());
  if (fake.misuse_count() == 0) return;
  const vmm::fake::misuse first = fake.misuses().front();
  std::fprintf(stderr, "the simulated driver: misuse: %llu times; the first: %s: %s\n",
               static_cast<unsigned long long>(fake.misuse_count()), name_of(first.kind),
               first.detail);
}

ze_result_t enter(const char* symbol) {
  if (life.is_over) {
    std::fprintf(stderr, "the simulated driver: %s after its end\n", symbol);
    std::abort();
  }
  const locked s(the());
  life.has_begun = true;
  ++calls_here;
  ++s->calls[symbol];
  return s->failures.strike(symbol).value_or(ZE_RESULT_SUCCESS);
}

ze_result_t leave(ze_result_t code) noexcept {
  last_here = code;
  return code;
}

void misused(const char* what) {
  const locked s(the());
  if (s->misuse.empty()) s->misuse = what;
}

}  // namespace simulated

// ---- the loader's entry points
// -------------------------------------------------------------------

extern "C" {

ze_result_t zeGetGlobalProcAddrTable(ze_api_version_t, ze_global_dditable_t* to) {
  to->pfnInit = simulated::init;
  return ZE_RESULT_SUCCESS;
}

ze_result_t zeGetDriverProcAddrTable(ze_api_version_t, ze_driver_dditable_t* to) {
  to->pfnGet = simulated::driver_get;
  to->pfnGetApiVersion = simulated::driver_get_api_version;
  to->pfnGetProperties = simulated::driver_get_properties;
  return ZE_RESULT_SUCCESS;
}

ze_result_t zeGetDeviceProcAddrTable(ze_api_version_t, ze_device_dditable_t* to) {
  to->pfnGet = simulated::device_get;
  to->pfnGetProperties = simulated::device_get_properties;
  to->pfnGetMemoryProperties = simulated::device_get_memory;
  to->pfnGetCommandQueueGroupProperties = simulated::device_get_queue_groups;
  return ZE_RESULT_SUCCESS;
}

ze_result_t zeGetContextProcAddrTable(ze_api_version_t, ze_context_dditable_t* to) {
  to->pfnCreate = simulated::context_create;
  to->pfnDestroy = simulated::context_destroy;
  return ZE_RESULT_SUCCESS;
}

ze_result_t zeGetVirtualMemProcAddrTable(ze_api_version_t, ze_virtual_mem_dditable_t* to) {
  if (simulated::has_virtual_memory()) simulated::fill_memory(*to);
  return ZE_RESULT_SUCCESS;
}
ze_result_t zeGetPhysicalMemProcAddrTable(ze_api_version_t, ze_physical_mem_dditable_t* to) {
  if (simulated::has_virtual_memory()) simulated::fill_memory(*to);
  return ZE_RESULT_SUCCESS;
}
#define WORK_TABLE(name, type)                                         \
  ze_result_t zeGet##name##ProcAddrTable(ze_api_version_t, type* to) { \
    simulated::fill_work(*to);                                         \
    return ZE_RESULT_SUCCESS;                                          \
  }
WORK_TABLE(CommandList, ze_command_list_dditable_t)
WORK_TABLE(EventPool, ze_event_pool_dditable_t)
WORK_TABLE(Event, ze_event_dditable_t)
#undef WORK_TABLE

// Tables of calls that this driver does not have: nothing is filled in. Loader 1.8 refuses a driver
// that lacks one of these tables.
#define EMPTY_ZE_TABLE(name, type) \
  ze_result_t zeGet##name##ProcAddrTable(ze_api_version_t, type*) { return ZE_RESULT_SUCCESS; }
EMPTY_ZE_TABLE(DeviceExp, ze_device_exp_dditable_t)
EMPTY_ZE_TABLE(CommandQueue, ze_command_queue_dditable_t)
EMPTY_ZE_TABLE(Image, ze_image_dditable_t)
EMPTY_ZE_TABLE(ImageExp, ze_image_exp_dditable_t)
EMPTY_ZE_TABLE(Fence, ze_fence_dditable_t)
EMPTY_ZE_TABLE(EventExp, ze_event_exp_dditable_t)
EMPTY_ZE_TABLE(Module, ze_module_dditable_t)
EMPTY_ZE_TABLE(ModuleBuildLog, ze_module_build_log_dditable_t)
EMPTY_ZE_TABLE(Kernel, ze_kernel_dditable_t)
EMPTY_ZE_TABLE(KernelExp, ze_kernel_exp_dditable_t)
EMPTY_ZE_TABLE(Sampler, ze_sampler_dditable_t)
EMPTY_ZE_TABLE(Mem, ze_mem_dditable_t)
EMPTY_ZE_TABLE(FabricVertexExp, ze_fabric_vertex_exp_dditable_t)
EMPTY_ZE_TABLE(FabricEdgeExp, ze_fabric_edge_exp_dditable_t)
ze_result_t vmm_ze_empty_table(ze_api_version_t, void*) { return ZE_RESULT_SUCCESS; }
#define EMPTY(name) name##ProcAddrTable __attribute__((alias("vmm_ze_empty_table")))
decltype(vmm_ze_empty_table) EMPTY(zetGetDevice), EMPTY(zetGetContext), EMPTY(zetGetCommandList),
    EMPTY(zetGetKernel), EMPTY(zetGetModule), EMPTY(zetGetDebug), EMPTY(zetGetMetric),
    EMPTY(zetGetMetricGroup), EMPTY(zetGetMetricGroupExp), EMPTY(zetGetMetricQuery),
    EMPTY(zetGetMetricQueryPool), EMPTY(zetGetMetricStreamer), EMPTY(zetGetTracerExp),
    EMPTY(zesGetDriver), EMPTY(zesGetDevice), EMPTY(zesGetScheduler),
    EMPTY(zesGetPerformanceFactor), EMPTY(zesGetPower), EMPTY(zesGetFrequency), EMPTY(zesGetEngine),
    EMPTY(zesGetStandby), EMPTY(zesGetFirmware), EMPTY(zesGetMemory), EMPTY(zesGetFabricPort),
    EMPTY(zesGetTemperature), EMPTY(zesGetPsu), EMPTY(zesGetFan), EMPTY(zesGetLed),
    EMPTY(zesGetRas), EMPTY(zesGetDiagnostics);
#undef EMPTY
#undef EMPTY_ZE_TABLE

// ---- the test's controls ------------------------------------------------------------------------

unsigned long long vmm_ze_reset(const vmm_ze_setup* setup) {
  const locked s(simulated::the());
  auto& fake = *static_cast<vmm::fake_driver*>(s->fake.get());
  const vmm::fake::resource_counts left = fake.resource_counts();
  const unsigned long long count = s->object_count + s->reserved.size() + left.reservations +
                                   left.handles + left.mappings + left.streams + left.events;
  s->setup = setup != nullptr ? *setup : vmm_ze_setup{};
  s->reserved.clear();
  s->last_reserved = 0;
  s->calls.clear();
  s->failures.clear();
  s->misuse.clear();
  s->object_count = 0;
  simulated::start(simulated::the());
  return count;
}

void* vmm_ze_fake() { return simulated::the().fake.get(); }

void vmm_ze_fail(const char* symbol, int code, unsigned nth, bool forever) {
  locked(simulated::the())->failures.add(symbol, code, nth, forever);
}

void vmm_ze_clear_failures() { locked(simulated::the())->failures.clear(); }

unsigned long long vmm_ze_calls(const char* symbol) {
  const locked s(simulated::the());
  const auto found = s->calls.find(std::string_view(symbol));
  return found == s->calls.end() ? 0 : found->second;
}

const char* vmm_ze_misuse() { return locked(simulated::the())->misuse.c_str(); }

void vmm_ze_last(unsigned long long* count, int* code) {
  *count = simulated::calls_here;
  *code = static_cast<int>(simulated::last_here);
}

}  // extern "C"
