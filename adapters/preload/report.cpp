// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The report, as text and as JSON. It runs in a signal handler: nothing here takes a lock or host
// memory.
#include <errno.h>
#include <unistd.h>

#include <string_view>

#include "account_records.h"
#include "accounts.h"
#include "cache.h"
#include "serving_counts.h"
#include "settings.h"
#include "trace.h"
#include "writer.h"

namespace vmm::preload::accounts {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

struct call_sum {
  std::uint64_t count = 0;
  std::uint64_t failed = 0;
  std::uint64_t spent_ns = 0;
};

call_sum sum_of(std::size_t slot, std::size_t entry) noexcept {
  call_sum sum;
  for (const thread_counters* each = first_record(); each != nullptr; each = each->next) {
    const call_counters& counters = each->calls[slot][entry];
    sum.count += counters.count.load(std::memory_order_relaxed);
    sum.failed += counters.failed.load(std::memory_order_relaxed);
    sum.spent_ns += counters.spent.load(std::memory_order_relaxed);
  }
  sum.spent_ns = nanoseconds(sum.spent_ns);
  return sum;
}

std::uint64_t sizes_in(std::size_t slot, std::size_t size) noexcept {
  std::uint64_t sum = 0;
  for (const thread_counters* each = first_record(); each != nullptr; each = each->next) {
    sum += each->sizes[slot][size].load(std::memory_order_relaxed);
  }
  return sum;
}

bool is_used(std::size_t slot) noexcept {
  for (std::size_t entry = 0; entry < entry_count; ++entry) {
    if (sum_of(slot, entry).count != 0) return true;
  }
  return false;
}

std::string_view name_of(unmanaged_reason why) noexcept {
  switch (why) {
    case unmanaged_reason::no_context: return "no_context";
    case unmanaged_reason::per_thread_stream: return "per_thread_stream";
    case unmanaged_reason::capture: return "capture";
    case unmanaged_reason::pool_of_the_user: return "pool_of_the_user";
    case unmanaged_reason::no_virtual_memory: return "no_virtual_memory";
    case unmanaged_reason::plain_for_ipc: return "plain_for_ipc";
    case unmanaged_reason::short_of_memory: return "short_of_memory";
    case unmanaged_reason::over_budget: return "over_budget";
    case unmanaged_reason::refused: return "refused";
    case unmanaged_reason::other_memory: return "other_memory";
    case unmanaged_reason::count: break;
  }
  return "";
}

std::uint64_t unmanaged(std::size_t why) noexcept {
  return sums().unmanaged[why].load(std::memory_order_relaxed);
}

// ---- text ---------------------------------------------------------------------------------------

void write_live(writer& to, std::string_view what, const live_totals& live) noexcept {
  if (live.peak_count.load(std::memory_order_relaxed) == 0) return;
  to.text("  ").text_in(what, 18);
  to.text("peak ").fraction(live.peak_bytes.load(std::memory_order_relaxed), mebibyte, 12);
  to.text(" MiB in at most ").number(live.peak_count.load(std::memory_order_relaxed));
  to.text("; live now ").fraction(live.live_bytes.load(std::memory_order_relaxed), mebibyte, 1);
  to.text(" MiB in ").number(live.live_count.load(std::memory_order_relaxed)).text("\n");
}

void write_calls(writer& to, std::size_t slot) noexcept {
  to.text("  ").text_in("call", 34).text("     count    failed     total ms      mean us\n");
  for (std::size_t entry = 0; entry < entry_count; ++entry) {
    const call_sum sum = sum_of(slot, entry);
    if (sum.count == 0) continue;
    to.text("  ").text_in(symbol_of(static_cast<entry_id>(entry)), 34);
    to.number_in(sum.count, 10).number_in(sum.failed, 10);
    to.fraction(sum.spent_ns, 1'000'000, 13).fraction(sum.spent_ns / sum.count, 1000, 13);
    to.text("\n");
  }
}

void write_sizes(writer& to, std::size_t slot) noexcept {
  bool has_any = false;
  for (std::size_t size = 0; size < size_slots; ++size) {
    const std::uint64_t count = sizes_in(slot, size);
    if (count == 0) continue;
    if (!has_any) to.text("  allocations up to bytes: count\n");
    has_any = true;
    to.text("  ").number_in(std::uint64_t{1} << size, 18).number_in(count, 12).text("\n");
  }
}

void write_text(writer& to) noexcept {
  to.text("vmm_preload: process ").number(static_cast<std::uint64_t>(getpid()));
  to.text(", mode ").text(mode_name(chosen_settings().mode)).text("\n");
  for (std::size_t slot = 0; slot < device_slots; ++slot) {
    if (!is_used(slot)) continue;
    if (slot + 1 == device_slots) {
      to.text("without a device, or on one above 7:\n");
    } else {
      to.text("device ").number(slot).text(":\n");
    }
    write_live(to, "memory", sums().live[0][slot]);
    write_live(to, "physical handles", sums().live[1][slot]);
    write_calls(to, slot);
    write_sizes(to, slot);
  }
  for (std::size_t why = 0; why < sums().unmanaged.size(); ++why) {
    if (unmanaged(why) == 0) continue;
    to.text("passed to the driver unmanaged, ").text(name_of(static_cast<unmanaged_reason>(why)));
    to.text(": ").number(unmanaged(why)).text("\n");
  }
  if (const auto kept = cache::figures(); kept.reused_count + kept.kept_count != 0) {
    to.text("handles reused ").number(kept.reused_count).text(", kept now ");
    to.number(kept.kept_count).text(" of ").fraction(kept.kept_bytes, mebibyte, 1).text(" MiB\n");
  }
  if (const auto pool = managed::figures(); pool.blocks_served != 0) {
    to.text("blocks served by the pool ")
        .number(pool.blocks_served)
        .text(", frees put behind all ");
    to.text("work ").number(pool.frees_behind_all).text(", times the host waited ");
    to.number(pool.host_waits).text(", copies remapped ").number(pool.copies_remapped);
    to.text("\n");
  }
  if (trace::is_incomplete()) to.text("the trace is incomplete\n");
}

// ---- JSON ---------------------------------------------------------------------------------------

writer& key(writer& to, std::string_view name) noexcept {
  return to.text("\"").text(name).text("\":");
}

void write_live_json(writer& to, std::string_view what, const live_totals& live) noexcept {
  key(to, what).text("{");
  key(to, "peak_bytes").number(live.peak_bytes.load(std::memory_order_relaxed)).text(",");
  key(to, "peak_count").number(live.peak_count.load(std::memory_order_relaxed)).text(",");
  key(to, "live_bytes").number(live.live_bytes.load(std::memory_order_relaxed)).text(",");
  key(to, "live_count").number(live.live_count.load(std::memory_order_relaxed)).text("},");
}

void write_device_json(writer& to, std::size_t slot) noexcept {
  to.text("{");
  if (slot + 1 == device_slots) {
    key(to, "device").text("null,");
  } else {
    key(to, "device").number(slot).text(",");
  }
  write_live_json(to, "memory", sums().live[0][slot]);
  write_live_json(to, "physical", sums().live[1][slot]);
  key(to, "calls").text("{");
  std::string_view comma;
  for (std::size_t entry = 0; entry < entry_count; ++entry) {
    const call_sum sum = sum_of(slot, entry);
    if (sum.count == 0) continue;
    to.text(comma);
    key(to, symbol_of(static_cast<entry_id>(entry))).text("{");
    key(to, "count").number(sum.count).text(",");
    key(to, "failed").number(sum.failed).text(",");
    key(to, "ns").number(sum.spent_ns).text("}");
    comma = ",";
  }
  to.text("},");
  key(to, "sizes").text("{");
  comma = "";
  for (std::size_t size = 0; size < size_slots; ++size) {
    const std::uint64_t count = sizes_in(slot, size);
    if (count == 0) continue;
    to.text(comma).text("\"").number(std::uint64_t{1} << size).text("\":").number(count);
    comma = ",";
  }
  to.text("}}");
}

void write_json(writer& to) noexcept {
  to.text("{");
  key(to, "process").number(static_cast<std::uint64_t>(getpid())).text(",");
  key(to, "mode").text("\"").text(mode_name(chosen_settings().mode)).text("\",");
  key(to, "devices").text("[");
  std::string_view comma;
  for (std::size_t slot = 0; slot < device_slots; ++slot) {
    if (!is_used(slot)) continue;
    to.text(comma);
    write_device_json(to, slot);
    comma = ",";
  }
  to.text("],");
  key(to, "unmanaged").text("{");
  comma = "";
  for (std::size_t why = 0; why < sums().unmanaged.size(); ++why) {
    if (unmanaged(why) == 0) continue;
    to.text(comma);
    key(to, name_of(static_cast<unmanaged_reason>(why))).number(unmanaged(why));
    comma = ",";
  }
  const auto kept = cache::figures();
  const auto pool = managed::figures();
  to.text("},");
  key(to, "handles_reused").number(kept.reused_count).text(",");
  key(to, "handles_kept").number(kept.kept_count).text(",");
  key(to, "handles_kept_bytes").number(kept.kept_bytes).text(",");
  key(to, "blocks_served").number(pool.blocks_served).text(",");
  key(to, "frees_behind_all").number(pool.frees_behind_all).text(",");
  key(to, "host_waits").number(pool.host_waits).text(",");
  key(to, "copies_remapped").number(pool.copies_remapped).text(",");
  key(to, "trace_complete").text(trace::is_incomplete() ? "false}\n" : "true}\n");
}

}  // namespace

int write_report(int descriptor, bool as_json) noexcept {
  writer to(descriptor);
  if (as_json) {
    write_json(to);
  } else {
    write_text(to);
  }
  to.flush();
  return to.failure();
}

}  // namespace vmm::preload::accounts

extern "C" [[gnu::visibility("default"), gnu::used]] int vmm_preload_report(int descriptor,
                                                                            int as_json) {
  if (vmm::preload::is_passive()) return 0;
  (void)vmm::preload::accounts::write_report(descriptor, as_json != 0);
  return 1;
}
