// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranges by NVTX's core, counters by its extension, which toolkits from CUDA 13 on have.
module;
#include <nvtx3/nvToolsExt.h>
#if __has_include(<nvtx3/nvToolsExtCounters.h>)
#include <nvtx3/nvToolsExtPayload.h>

#include <nvtx3/nvToolsExtCounters.h>
#define VMM_NVTX_COUNTERS 1
#else
#define VMM_NVTX_COUNTERS 0
#endif

module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

struct nvtx_ranges::state {
  nvtxDomainHandle_t domain = nullptr;
  std::uint64_t live_counter = 0;
  std::uint64_t footprint_counter = 0;
  std::uint64_t live_bytes = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> sizes{};  // of blocks with an event
};

namespace {

[[nodiscard]] nvtxEventAttributes_t named(const char* name, std::uint64_t bytes) noexcept {
  check(name != nullptr, "a range has no name");
  nvtxEventAttributes_t out{};
  out.version = NVTX_VERSION;
  out.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  out.messageType = NVTX_MESSAGE_TYPE_ASCII;
  out.message.ascii = name;
  out.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  out.payload.ullValue = bytes;
  return out;
}

[[nodiscard]] std::uint64_t make_counter(nvtxDomainHandle_t domain, const char* name) noexcept {
  check(name != nullptr, "a counter has no name");
#if VMM_NVTX_COUNTERS
  nvtxCounterAttr_t what{};
  what.structSize = sizeof(what);
  what.schemaId = NVTX_PAYLOAD_ENTRY_TYPE_INT64;
  what.name = name;
  return nvtxCounterRegister(domain, &what);
#else
  (void)domain;
  return 0;
#endif
}

void sample(nvtxDomainHandle_t domain, std::uint64_t counter, std::uint64_t bytes) noexcept {
  check(bytes <= std::uint64_t{1} << 62, "more bytes are counted than exist");
#if VMM_NVTX_COUNTERS
  nvtxCounterSampleInt64(domain, counter, static_cast<std::int64_t>(bytes));
#else
  (void)domain;
  (void)counter;
#endif
}

}  // namespace

nvtx_ranges::nvtx_ranges(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {
  check(state_ != nullptr, "a listener that was moved from is used");
}
nvtx_ranges::~nvtx_ranges() = default;
bool nvtx_ranges::has_counters() noexcept { return VMM_NVTX_COUNTERS != 0; }

result<std::unique_ptr<nvtx_ranges>> nvtx_ranges::open() {
  if (!environment_is_trusted())
    return refuse(errc::not_permitted,
                  "a program with more rights than its caller loads no tool of NVTX");
  std::unique_ptr<state> made{new (std::nothrow) state};
  if (made != nullptr) {
    made->domain = nvtxDomainCreateA("vmm");
    made->live_counter = make_counter(made->domain, "live bytes");
    made->footprint_counter = make_counter(made->domain, "held bytes");
    std::unique_ptr<nvtx_ranges> opened{new (std::nothrow) nvtx_ranges(std::move(made))};
    if (opened != nullptr) return opened;
  }
  return refuse(errc::out_of_host_memory, "no host memory is left for ranges");
}

void nvtx_ranges::heard(const history_note& what) noexcept {
  const auto mark = [&](const char* name) {
    const nvtxEventAttributes_t of = named(name, what.where.size_bytes);
    nvtxDomainMarkEx(state_->domain, &of);
  };
  const auto push = [&](const char* name) {
    const nvtxEventAttributes_t of = named(name, what.where.size_bytes);
    (void)nvtxDomainRangePushEx(state_->domain, &of);
  };
  check(what.kind != history_kind::none, "an event without a kind is written");
  switch (what.kind) {
    case history_kind::grow: push("vmm: grow"); return;
    case history_kind::blocked: push("vmm: wait"); return;
    case history_kind::served:
    case history_kind::passed: (void)nvtxDomainRangePop(state_->domain); return;
    case history_kind::footprint:
      sample(state_->domain, state_->footprint_counter, what.where.size_bytes);
      return;
    case history_kind::trimmed: mark("vmm: trim"); return;
    case history_kind::short_of_memory: mark("vmm: short of memory"); return;
    case history_kind::suspended: mark("vmm: suspended"); return;
    case history_kind::resumed: mark("vmm: resumed"); return;
    default: count_block(what); return;
  }
}

void nvtx_ranges::count_block(const history_note& what) noexcept {
  const std::uint64_t at = what.where.base.value;
  const bool begins = what.kind == history_kind::allocated || what.kind == history_kind::captured ||
                      what.kind == history_kind::resized;
  const bool ends = what.kind == history_kind::freed || what.kind == history_kind::kept ||
                    what.kind == history_kind::resized;
  if (!begins && !ends) return;
  const auto gone = state_->sizes.find(what.kind == history_kind::resized ? what.detail : at);
  if (ends && gone != state_->sizes.end()) {
    check(state_->live_bytes >= gone->second, "more bytes are freed than were live");
    state_->live_bytes -= gone->second;
    state_->sizes.erase(gone);
  }
  try {
    if (begins && state_->sizes.emplace(at, what.where.size_bytes).second)
      state_->live_bytes += what.where.size_bytes;
  } catch (const std::bad_alloc&) {
    return;  // the counter leaves the block out
  }
  sample(state_->domain, state_->live_counter, state_->live_bytes);
}

}  // namespace vmm
