// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "accounts.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <new>
#include <string_view>

#include "account_records.h"
#include "call_clock.h"
#include "file_name.h"
#include "ipc.h"
#include "output_file.h"
#include "settings.h"
#include "trace.h"

import vmm.base;

namespace vmm::preload::accounts {
namespace {

// ---- counters -----------------------------------------------------------------------------------

std::atomic<thread_counters*> all_records = nullptr;
thread_local thread_counters* mine [[gnu::tls_model("initial-exec")]] = nullptr;

// The cached values of a thread's present call.
struct call_state {
  bool is_counted = false;
  bool has_device = false;
  bool has_slot = false;
  int device = -1;
  std::size_t slot = 0;
};
thread_local call_state call_now [[gnu::tls_model("initial-exec")]];
call_clock calls_clock;
pthread_key_t thread_end;
totals own_totals;
std::atomic<totals*> all_totals = &own_totals;

totals& now_counted() noexcept { return *all_totals.load(std::memory_order_relaxed); }

thread_counters* take_record() noexcept {
  for (thread_counters* each = all_records.load(std::memory_order_acquire); each != nullptr;
       each = each->next) {
    bool taken = false;
    if (each->is_taken.compare_exchange_strong(taken, true, std::memory_order_acq_rel)) return each;
  }
  auto* made = new (std::nothrow) thread_counters;
  if (made == nullptr) return nullptr;
  made->is_taken.store(true, std::memory_order_relaxed);
  made->next = all_records.load(std::memory_order_relaxed);
  while (!all_records.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return made;
}

thread_counters* my_record() noexcept {
  if (mine != nullptr) return mine;
  mine = take_record();
  if (mine != nullptr) (void)pthread_setspecific(thread_end, mine);
  return mine;
}

void leave_record(void* record) noexcept {
  mine = nullptr;
  static_cast<thread_counters*>(record)->is_taken.store(false, std::memory_order_release);
}

// One thread adds; others only read.
void add_to(std::atomic<std::uint64_t>& counter, std::uint64_t more) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

void raise_to(std::atomic<std::uint64_t>& peak, std::uint64_t value) noexcept {
  std::uint64_t before = peak.load(std::memory_order_relaxed);
  while (before < value && !peak.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

// ---- live memory
// ---------------------------------------------------------------------------------

struct alignas(64) shard {
  std::mutex lock;
  flat_table<live_entry> entries;
};
constexpr std::size_t shard_count = 64;
constexpr std::size_t kind_count = 2;
using shard_list = std::array<shard, shard_count * kind_count>;

shard_list& shards() noexcept {
  static shard_list* const only = new shard_list;
  return *only;
}

shard& shard_of(live_kind kind, std::uint64_t at) noexcept {
  const std::uint64_t mixed = at * 0x9E37'79B9'7F4A'7C15u >> 58;
  return shards()[static_cast<std::size_t>(kind) * shard_count + mixed];
}

live_totals& totals_of(live_kind kind, std::size_t slot) noexcept {
  return now_counted().live[static_cast<std::size_t>(kind)][slot];
}

// ---- start and end ------------------------------------------------------------------------------

std::atomic<bool> has_started = false;
std::atomic<bool> has_used_driver = false;
once_here starting;
// A child whose parent was forked while it started has the handlers of both.
thread_local int forks_begun [[gnu::tls_model("initial-exec")]] = 0;

// In the order in which others take them: a shard's over the trace's.
void before_fork() noexcept {
  if (++forks_begun != 1) return;
  for (shard& each : shards()) each.lock.lock();
  trace::before_fork();
  ipc::before_fork();
}

void after_fork(bool is_child) noexcept {
  if (--forks_begun != 0) return;
  ipc::after_fork(is_child);
  trace::after_fork(is_child);
  for (shard& each : shards()) each.lock.unlock();
  if (is_child && has_used_driver.load(std::memory_order_relaxed)) become_passive();
}

void report_to(const char* pattern) noexcept {
  const settings& s = chosen_settings();
  if (std::string_view(pattern) == "stderr") {
    (void)write_report(STDERR_FILENO, s.report_as_json);
    return;
  }
  file_name name(pattern);
  const int descriptor = open_output(name.c_str(), existing_file::appended);
  int failure = descriptor < 0 ? -descriptor : write_report(descriptor, s.report_as_json);
  if (descriptor >= 0 && close(descriptor) != 0 && failure == 0) failure = errno;
  if (failure != 0) complain_of("the report cannot be written: ", name.c_str(), failure);
}

void on_signal(int) noexcept {
  const int before = errno;
  const char* to = chosen_settings().report_to;
  if (!is_passive()) report_to(*to == '\0' ? "stderr" : to);
  errno = before;
}

// The signal belongs to the program: it is taken only if no handler is set, and a later handler
// replaces it.
void take_signal() noexcept {
  struct sigaction now{};
  if (sigaction(SIGUSR1, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  (void)sigaction(SIGUSR1, &ours, nullptr);
}

[[gnu::destructor]] void report_at_exit() noexcept {
  if (!has_started.load(std::memory_order_acquire) || is_passive()) return;
  ipc::finish();
  if (*chosen_settings().trace_to != '\0') trace::finish();
  if (*chosen_settings().report_to != '\0') report_to(chosen_settings().report_to);
}

}  // namespace

void start(entry_id entry) noexcept {
  if (!has_started.load(std::memory_order_acquire)) [[unlikely]] {
    starting.run([] {
      (void)shards();
      calls_clock.start();
      (void)pthread_key_create(&thread_end, leave_record);
      (void)pthread_atfork(before_fork, [] { after_fork(false); }, [] { after_fork(true); });
      if (chosen_settings().report_on_signal) take_signal();
      has_started.store(true, std::memory_order_release);
    });
  }
  const bool is_look_up =
      entry == entry_id::cuGetProcAddress || entry == entry_id::cuGetProcAddress_v2;
  if (!is_look_up && !has_used_driver.load(std::memory_order_relaxed)) {
    has_used_driver.store(true, std::memory_order_relaxed);
  }
}

std::uint64_t now() noexcept { return calls_clock.now(); }
std::uint64_t nanoseconds(std::uint64_t spent) noexcept { return calls_clock.nanoseconds(spent); }

namespace {

int ask_for_device() noexcept {
  using function = result_code (*)(device_id*);
  static std::atomic<function> known = nullptr;
  function ask = known.load(std::memory_order_acquire);
  if (ask == nullptr) {
    ask = reinterpret_cast<function>(driver_symbol("cuCtxGetDevice"));
    if (ask == nullptr) return -1;
    known.store(ask, std::memory_order_release);
  }
  device_id device = -1;
  return ask(&device) == code::success ? device : -1;
}

}  // namespace

int current_device() noexcept {
  if (call_now.has_device) return call_now.device;
  const int device = ask_for_device();
  call_now.device = device;
  call_now.has_device = call_now.is_counted;
  return device;
}

context_id current_context() noexcept {
  using function = result_code (*)(context_id*);
  static std::atomic<function> known = nullptr;
  function ask = known.load(std::memory_order_acquire);
  if (ask == nullptr) {
    ask = reinterpret_cast<function>(driver_symbol("cuCtxGetCurrent"));
    if (ask == nullptr) return nullptr;
    known.store(ask, std::memory_order_release);
  }
  context_id current = nullptr;
  return ask(&current) == code::success ? current : nullptr;
}

std::size_t slot_of(int device) noexcept {
  const auto slot = static_cast<std::size_t>(device);
  return device < 0 || slot >= device_slots ? device_slots - 1 : slot;
}

void begin_call() noexcept {
  call_now = {};
  call_now.is_counted = true;
}

void count_call_for(std::size_t slot) noexcept {
  call_now.slot = slot;
  call_now.has_slot = call_now.is_counted;
}

void note_call(entry_id entry, result_code code, std::uint64_t spent) noexcept {
  const std::size_t slot = call_now.has_slot ? call_now.slot : slot_of(current_device());
  call_now = {};
  thread_counters* record = my_record();
  if (record == nullptr) return;
  call_counters& counters = record->calls[slot][static_cast<std::size_t>(entry)];
  add_to(counters.count, 1);
  add_to(counters.spent, spent);
  if (code != code::success) add_to(counters.failed, 1);
}

void note_unmanaged(unmanaged_reason why) noexcept {
  now_counted().unmanaged[static_cast<std::size_t>(why)].fetch_add(1, std::memory_order_relaxed);
}

void note_made(const made& what) noexcept {
  live_totals& totals = totals_of(what.kind, what.slot);
  const auto live = totals.live_bytes.fetch_add(what.size_bytes, std::memory_order_relaxed);
  raise_to(totals.peak_bytes, live + what.size_bytes);
  const auto count = totals.live_count.fetch_add(1, std::memory_order_relaxed);
  raise_to(totals.peak_count, count + 1);
  if (thread_counters* record = my_record(); record != nullptr) {
    const std::uint64_t last = what.size_bytes == 0 ? 0 : what.size_bytes - 1;
    const auto slot = static_cast<std::size_t>(64 - __builtin_clzll(last | 1));
    add_to(record->sizes[what.slot][last == 0 ? 0 : std::min(slot, size_slots - 1)], 1);
  }
  live_entry entry{what.size_bytes, 0, what.context, static_cast<std::uint8_t>(what.slot), false};
  if (*chosen_settings().trace_to != '\0' && what.size_bytes != 0) {
    entry.number = trace::add(what.slot, what.size_bytes, what.stream_key);
    entry.is_traced = entry.number != 0;
  }
  put_back(what.kind, what.at, entry);
}

bool take_live(live_kind kind, std::uint64_t at, live_entry& into) noexcept {
  shard& home = shard_of(kind, at);
  const std::lock_guard<std::mutex> turn(home.lock);
  return home.entries.take(at, into);
}

void note_gone(live_kind kind, const live_entry& what) noexcept {
  live_totals& totals = totals_of(kind, what.slot);
  totals.live_bytes.fetch_sub(what.size_bytes, std::memory_order_relaxed);
  totals.live_count.fetch_sub(1, std::memory_order_relaxed);
  if (what.is_traced) trace::remove(what.slot, what.number);
}

// Without host memory the block has no record: it stays live in the sums.
void put_back(live_kind kind, std::uint64_t at, const live_entry& what) noexcept {
  shard& home = shard_of(kind, at);
  const std::lock_guard<std::mutex> turn(home.lock);
  if (!home.entries.put(at, what)) {
    now_counted().forgotten.fetch_add(1, std::memory_order_relaxed);
  }
}

namespace {

template <class IsGone>
void end_memory(IsGone&& is_gone) noexcept {
  for (std::size_t i = 0; i < shard_count; ++i) {
    shard& home = shards()[i];  // those of live_kind::memory
    const std::lock_guard<std::mutex> turn(home.lock);
    home.entries.erase_if([&](const live_entry& each) {
      if (!is_gone(each)) return false;
      note_gone(live_kind::memory, each);
      return true;
    });
  }
}

}  // namespace

void note_reset(std::size_t slot) noexcept {
  end_memory([&](const live_entry& each) { return each.slot == slot; });
}

void note_context_ended(context_id gone) noexcept {
  end_memory([&](const live_entry& each) { return gone != nullptr && each.context == gone; });
}

const totals& sums() noexcept { return now_counted(); }

void show(void* page) noexcept { all_totals.store(::new (page) totals, std::memory_order_relaxed); }
const thread_counters* first_record() noexcept {
  return all_records.load(std::memory_order_acquire);
}

}  // namespace vmm::preload::accounts
