// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "managed.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device_driver.h"
#include "driver_calls.h"
#include "gate.h"
#include "ipc.h"
#include "routes.h"
#include "settings.h"

import vmm.environment;
import vmm.manager;
import vmm.stream;

namespace vmm::preload::managed {
namespace {

constexpr std::size_t devices_max = 64;
constexpr std::size_t marks_looked_at = 8;
// Without VMM_KEEP: freed memory up to this is kept, or up to a quarter of what was live at most.
constexpr std::uint64_t kept_bytes_least = std::uint64_t{512} << 20;
constexpr std::uint64_t kept_share = 4;

std::uint64_t number_of(const void* handle) noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(handle));
}
stream_handle handle_of(stream_id stream) noexcept {
  return static_cast<stream_handle>(number_of(stream));
}

// Points of work that must have passed before a block is free. Mostly one.
struct mark {
  context_id context = nullptr;
  event_id event = nullptr;
};

// Which of a device's allocators a block is of.
enum class home_of : std::uint8_t {
  now,      // the pool for calls without a stream
  ordered,  // the pool for calls with one
  whole,    // the manager, whose blocks are copied by remapping: VMM_COPY
};

struct freed_block {
  device_pointer at = 0;
  std::size_t size = 0;
  home_of home = home_of::now;
};

struct waiting_block {
  freed_block block;
  std::vector<mark> marks;
};
// An entry is made with its block and goes from list to list: a free needs no host memory.
using waiting_list = std::list<waiting_block>;

// Whose work may use a device's memory beside its own: a context, or a device as a whole.
struct peer {
  context_id context = nullptr;  // null: the device's primary one, where there is one
  device_id device = -1;

  [[nodiscard]] bool operator==(const peer&) const = default;
};

struct device_pools {
  explicit device_pools(any_backend&& opened, device_driver& inside) noexcept
      : calls(std::move(opened)), driver(inside) {}

  device_id device = 0;
  context_id context = nullptr;
  pool_id default_pool = nullptr;
  any_backend calls;      // what the pools call: the driver, or a log of their calls before it
  device_driver& driver;  // inside of it
  stream_handle quiet{};
  std::optional<stream_pool> now;
  std::optional<stream_pool> ordered;
  std::optional<manager> whole;  // if VMM_COPY requires it
  std::atomic<bool> has_pool_of_user = false;

  std::mutex lock;
  waiting_list waiting;
  waiting_list put_off;     // until no stream is captured
  std::vector<peer> peers;  // ended ones are removed under the exclusive gate
  std::atomic<std::uint64_t> waiting_bytes = 0;

  std::atomic<std::uint64_t> live_bytes = 0;
  std::atomic<std::uint64_t> peak_live_bytes = 0;
  std::atomic<std::uint64_t> freed_bytes = 0;  // since what is kept was last looked at

  void note_live(std::uint64_t size_bytes) noexcept {
    const std::uint64_t now_live =
        live_bytes.fetch_add(size_bytes, std::memory_order_relaxed) + size_bytes;
    std::uint64_t most = peak_live_bytes.load(std::memory_order_relaxed);
    while (most < now_live && !peak_live_bytes.compare_exchange_weak(most, now_live)) {
    }
  }
  void note_freed(std::uint64_t size_bytes) noexcept {
    live_bytes.fetch_sub(size_bytes, std::memory_order_relaxed);
    freed_bytes.fetch_add(size_bytes, std::memory_order_relaxed);
  }
};

struct live_block {
  std::size_t size = 0;
  std::uint64_t number = 0;
  device_pools* owner = nullptr;
  home_of home = home_of::now;
  waiting_list entry;  // one, for its free

  [[nodiscard]] bool is_ordered() const noexcept { return home == home_of::ordered; }
};

struct peer_grant {
  context_id owner = nullptr;
  context_id user = nullptr;
  device_id device = 0;
};

struct pool_grant {
  pool_id pool = nullptr;
  device_id device = 0;
};

struct captured_stream {
  stream_id stream = nullptr;
  pthread_t thread{};  // of a stream that each thread has for itself
  bool per_thread = false;
  context_id context = nullptr;
};

struct world {
  driver_calls cu;
  bool is_usable = false;
  reserved_ranges ranges;

  std::mutex opening;
  std::array<std::atomic<device_pools*>, devices_max> devices{};
  std::array<bool, devices_max> is_refused{};
  std::atomic<std::uint64_t> generation = 1;
  std::vector<peer_grant> grants;       // under `opening`
  std::vector<pool_grant> pool_grants;  // under `opening`
  // What cuDeviceSetMemPool chose, also before the device is known here. Under `opening`.
  std::array<pool_id, devices_max> chosen_pools{};
  // Shared by threads that iterate over the pools of all devices, or wait for an event; exclusive
  // for the end of a context.
  std::shared_mutex dropping;

  std::shared_mutex blocks_lock;
  std::map<device_pointer, live_block> blocks;
  std::atomic<std::uint64_t> last_number = 0;

  std::shared_mutex streams_lock;
  std::unordered_map<stream_id, context_id> streams;

  std::mutex captures_lock;
  std::vector<captured_stream> captures;
  std::atomic<std::size_t> capture_count = 0;
  std::atomic<bool> has_lost_count = false;  // no host memory for a capture: no marks any more
  // The first lock that is taken.
  capture_gate gate;

  std::mutex events_lock;
  std::unordered_map<context_id, std::vector<event_id>> spare_events;
};

std::atomic<std::uint64_t> served_count;
std::atomic<std::uint64_t> deferred_count;
std::atomic<std::uint64_t> waited_count;
std::atomic<std::uint64_t> remapped_count;

world& the() noexcept {
  static world* const only = [] {
    auto* made = new world;
    made->is_usable = made->cu.find();
    return made;
  }();
  return *only;
}

result<pool_options> wanted_options() noexcept {
  pool_options base;
  base.reservation_bytes = std::uint64_t{1} << 40;
  result<pool_options> wanted = pool_options::from_environment(base);
  if (!wanted) return wanted;
  wanted->capture = capture_rule::refuse;
  wanted->streams_forgotten = true;  // the library sees each cuStreamDestroy
  wanted->wait_when_short = false;   // try_harder waits, outside of the gate
  wanted->at_end.hook = nullptr;
  return wanted;
}

result<manager_options> wanted_whole_options() noexcept {
  manager_options base;
  base.reservation_bytes = std::uint64_t{1} << 40;
  result<manager_options> wanted = manager_options::from_environment(base);
  if (wanted) wanted->at_end.hook = nullptr;
  return wanted;
}

// Makes a context current for its life.
class current_context {
 public:
  explicit current_context(context_id wanted) noexcept : cu_(the().cu) {
    context_id now = nullptr;
    is_current_ = cu_.get_current(&now) == code::success && now == wanted;
    if (is_current_) return;
    is_pushed_ = cu_.push_current(wanted) == code::success;
    is_current_ = is_pushed_;
  }
  ~current_context() {
    context_id gone = nullptr;
    if (is_pushed_) (void)cu_.pop_current(&gone);
  }
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;

  /// False: the driver does not make it current. Nothing runs there.
  [[nodiscard]] bool is_current() const noexcept { return is_current_; }

 private:
  const driver_calls& cu_;
  bool is_pushed_ = false;
  bool is_current_ = false;
};

// For its life the thread's calls do not disturb captures that are under way.
class undisturbing {
 public:
  undisturbing() noexcept {
    const auto exchange = the().cu.exchange_capture_mode;
    if (exchange != nullptr) (void)exchange(&mode_);
  }
  ~undisturbing() {
    const auto exchange = the().cu.exchange_capture_mode;
    if (exchange != nullptr) (void)exchange(&mode_);
  }
  undisturbing(const undisturbing&) = delete;
  undisturbing& operator=(const undisturbing&) = delete;

 private:
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then what it was
};

// A device's primary context, or null; none is created.
context_id primary_of(device_id device) noexcept {
  const driver_calls& cu = the().cu;
  unsigned flags = 0;
  int is_active = 0;
  context_id primary = nullptr;
  if (cu.primary_state(device, &flags, &is_active) != code::success || is_active == 0 ||
      cu.retain_primary(&primary, device) != code::success) {
    return nullptr;
  }
  (void)cu.release_primary(device);
  return primary;
}

// ---- devices ------------------------------------------------------------------------------------

// What only the device refuses: an address space without room for a page, or more pages than it
// has. Said here, once, and not left to each request.
bool set_up_pools(device_pools& pools) {
  for (stream_pool* each : {&*pools.now, &*pools.ordered}) {
    const status ready = each->set_up();
    if (ready) continue;
    complain("a device is not managed (VMM_VA_SIZE, VMM_POOL_PAGE_SIZE, VMM_POOL_PAGES): ",
             ready.error().detail);
    return false;
  }
  if (!pools.whole) return true;
  if (const status ready = pools.whole->set_up(); !ready) {
    complain("copies are not remapped (VMM_VA_SIZE, VMM_CHUNK_SIZE): ", ready.error().detail);
    pools.whole.reset();
  }
  return true;
}

// Another device may use the memory, and its work is marked by a free. Under `opening`.
void add_user(device_pools& pools, const peer& user) {
  {
    const std::lock_guard<std::mutex> owned(pools.lock);
    if (std::ranges::find(pools.peers, user) == pools.peers.end()) pools.peers.push_back(user);
  }
  if (user.device == pools.device || pools.driver.add_peer(vmm::device(user.device))) return;
  complain("a device was not given access to managed memory of another one");
}

// The program's requests before the device's pools existed. Under `opening`.
void apply_choices(device_pools& pools) {
  world& w = the();
  for (const peer_grant& each : w.grants) {
    if (each.owner != pools.context) continue;
    add_user(pools, {each.user, each.device});
  }
  for (const pool_grant& each : w.pool_grants) {
    if (each.pool == pools.default_pool) add_user(pools, {nullptr, each.device});
  }
  const pool_id chosen = w.chosen_pools[static_cast<std::size_t>(pools.device)];
  pools.has_pool_of_user = chosen != nullptr && chosen != pools.default_pool;
}

// The log that VMM_LOG names, of all devices; null for none.
std::shared_ptr<call_log> open_log() {
  std::string_view destination = "off";
  read_text_option("VMM_LOG", destination);
  if (destination == "off") return nullptr;
  result<std::shared_ptr<call_log>> log = call_log::open(destination);
  if (log) return std::move(*log);
  complain("VMM_LOG is off, stderr, or the path of a writable file: nothing is logged");
  return nullptr;
}

// Under `opening`.
std::unique_ptr<device_pools> with_pools_to_come(cuda_driver&& opened) {
  static const std::shared_ptr<call_log> log = open_log();
  auto driver = std::make_unique<device_driver>(std::move(opened), the().ranges);
  device_driver& inside = *driver;
  result<any_backend> calls = any_backend::own(std::move(driver));
  if (calls && log != nullptr)
    calls = any_backend::own(observed_backend(std::move(*calls), std::shared_ptr(log)));
  if (!calls) return nullptr;
  return std::make_unique<device_pools>(std::move(*calls), inside);
}

std::unique_ptr<device_pools> make_pools(device_id device, context_id context, bool& is_refused) {
  world& w = the();
  cuda_options how;
  how.device = device;
  how.driver_library = driver_file();
  how.memory = cuda_memory::mapped;
  result<cuda_driver> opened = cuda_driver::open(how);
  if (!opened) {
    complain("a device is not managed: ", opened.error().detail);
    is_refused = true;
    return nullptr;
  }
  if (opened->native_context() != number_of(context)) return nullptr;
  auto made = with_pools_to_come(std::move(*opened));
  if (made == nullptr) return nullptr;
  made->device = device;
  made->context = context;
  made->driver.make_shareable(chosen_settings().ipc == ipc_rule::share);
  const result<stream_handle> quiet = made->driver.create_stream();
  result<pool_options> options = wanted_options();
  const result<manager_options> whole_options = wanted_whole_options();
  if (!quiet || !options || !whole_options) {
    is_refused = true;
    return nullptr;
  }
  made->quiet = *quiet;
  options->first_stream = *quiet;
  made->now.emplace(made->calls, *options);
  made->ordered.emplace(made->calls, *options);
  if (chosen_settings().copy != copy_rule::off) made->whole.emplace(made->calls, *whole_options);
  if (!set_up_pools(*made)) {
    is_refused = true;
    return nullptr;
  }
  if (w.cu.default_pool != nullptr) (void)w.cu.default_pool(&made->default_pool, device);
  apply_choices(*made);
  return made;
}

// The pools of a device whose primary context this is; created at their first use.
device_pools* open_device(device_id device, context_id context) noexcept {
  world& w = the();
  if (!w.is_usable || device < 0 || static_cast<std::size_t>(device) >= devices_max) return nullptr;
  const auto index = static_cast<std::size_t>(device);
  const std::lock_guard<std::mutex> turn(w.opening);
  if (device_pools* there = w.devices[index].load(std::memory_order_acquire); there != nullptr) {
    return there->context == context ? there : nullptr;
  }
  unsigned flags = 0;
  int is_active = 0;
  if (w.is_refused[index] || w.cu.primary_state(device, &flags, &is_active) != code::success ||
      is_active == 0) {
    return nullptr;
  }
  try {
    const undisturbing calls;
    auto made = make_pools(device, context, w.is_refused[index]);
    w.devices[index].store(made.get(), std::memory_order_release);
    return made.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

device_pools* pools_of_context(context_id context, device_id device) noexcept {
  world& w = the();
  struct known {
    context_id context = nullptr;
    device_pools* pools = nullptr;
    std::uint64_t generation = 0;
  };
  static thread_local known last;
  const std::uint64_t generation = w.generation.load(std::memory_order_acquire);
  if (last.context == context && last.generation == generation) return last.pools;
  last = {context, open_device(device, context), generation};
  return last.pools;
}

device_pools* pools_of_current() noexcept {
  world& w = the();
  if (!w.is_usable) return nullptr;
  context_id context = nullptr;
  device_id device = -1;
  if (w.cu.get_current(&context) != code::success || context == nullptr) return nullptr;
  if (w.cu.get_device(&device) != code::success) return nullptr;
  return pools_of_context(context, device);
}

// The pools that have this context; none are made.
device_pools* existing_pools(context_id context) noexcept {
  for (const auto& each : the().devices) {
    device_pools* pools = each.load(std::memory_order_acquire);
    if (pools != nullptr && pools->context == context) return pools;
  }
  return nullptr;
}

bool is_default(stream_name name) noexcept {
  const std::uint64_t number = number_of(name.stream);
  return number == legacy_stream || (number == 0 && !name.per_thread);
}

// Null where the driver does not know the stream.
context_id context_of(stream_name name) noexcept {
  world& w = the();
  context_id context = nullptr;
  if (is_default(name) || name.is_per_thread()) {
    return w.cu.get_current(&context) == code::success ? context : nullptr;
  }
  {
    const std::shared_lock<std::shared_mutex> turn(w.streams_lock);
    const auto found = w.streams.find(name.stream);
    if (found != w.streams.end()) return found->second;
  }
  if (w.cu.stream_context(name.stream, &context) != code::success) return nullptr;
  const std::unique_lock<std::shared_mutex> turn(w.streams_lock);
  try {
    w.streams[name.stream] = context;
  } catch (const std::bad_alloc&) {
    return context;
  }
  return context;
}

device_pools* pools_of(stream_name name) noexcept {
  if (!the().is_usable) return nullptr;
  if (is_default(name)) return pools_of_current();
  const context_id context = context_of(name);
  if (context == nullptr) return nullptr;
  device_pools* pools = existing_pools(context);
  if (pools != nullptr) return pools;
  context_id current = nullptr;
  if (the().cu.get_current(&current) != code::success || current != context) return nullptr;
  return pools_of_current();
}

// ---- captures -----------------------------------------------------------------------------------

bool is_any_captured() noexcept {
  const world& w = the();
  return w.capture_count.load(std::memory_order_acquire) != 0 ||
         w.has_lost_count.load(std::memory_order_relaxed);
}

bool is_captured(stream_name name) noexcept {
  if (!is_any_captured() || is_default(name)) return false;
  const driver_calls& cu = the().cu;
  int state = 0;
  const bool other_form = name.per_thread && cu.is_capturing_per_thread != nullptr;
  const auto ask = other_form ? cu.is_capturing_per_thread : cu.is_capturing;
  return ask(name.stream, &state) != code::success || state != 0;
}

bool is_on(const captured_stream& capture, stream_name stream) noexcept {
  if (capture.per_thread != stream.is_per_thread()) return false;
  return capture.per_thread ? pthread_equal(capture.thread, pthread_self()) != 0
                            : capture.stream == stream.stream;
}

// ---- marks --------------------------------------------------------------------------------------

event_id take_event(context_id context) noexcept {
  world& w = the();
  {
    const std::lock_guard<std::mutex> turn(w.events_lock);
    const auto spare = w.spare_events.find(context);
    if (spare != w.spare_events.end() && !spare->second.empty()) {
      const event_id taken = spare->second.back();
      spare->second.pop_back();
      return taken;
    }
  }
  const current_context entered(context);
  event_id made = nullptr;
  if (!entered.is_current() || w.cu.create_event(&made, event_without_timing) != code::success) {
    return nullptr;
  }
  return made;
}

void return_event(mark gone) noexcept {
  world& w = the();
  try {
    const std::lock_guard<std::mutex> turn(w.events_lock);
    w.spare_events[gone.context].push_back(gone.event);
  } catch (const std::bad_alloc&) {
    const current_context entered(gone.context);
    if (entered.is_current()) (void)w.cu.destroy_event(gone.event);
  }
}

void return_events(std::vector<mark>& passed) noexcept {
  for (const mark& each : passed) return_event(each);
  passed.clear();
}

// Adds an event of a context that `record` records. False also without host memory.
template <class Record>
bool add_mark(context_id context, std::vector<mark>& into, Record&& record) noexcept {
  const event_id event = take_event(context);
  if (event == nullptr) return false;
  try {
    into.push_back({context, event});
  } catch (const std::bad_alloc&) {
    return_event({context, event});
    return false;
  }
  if (record(event) == code::success) return true;
  into.pop_back();
  return_event({context, event});
  return false;
}

// A mark of everything that a context has been given, on streams of every kind: tests/preload/gpu
// looks at each. False: the driver has none to give.
bool mark_context(context_id context, std::vector<mark>& into) noexcept {
  world& w = the();
  if (w.cu.record_context_event == nullptr) return false;
  return add_mark(context, into,
                  [&](event_id event) { return w.cu.record_context_event(context, event); });
}

bool mark_stream(stream_name name, std::vector<mark>& into) noexcept {
  world& w = the();
  const context_id context = context_of(name);
  if (context == nullptr) return false;
  const bool other_form = name.per_thread && number_of(name.stream) == 0;
  const auto record = other_form ? w.cu.record_event_per_thread : w.cu.record_event;
  if (record == nullptr) return false;
  const current_context entered(context);
  if (!entered.is_current()) return false;
  return add_mark(context, into, [&](event_id event) { return record(event, name.stream); });
}

// Whether all marks have passed. One whose query fails has: its context is lost, and nothing runs
// there any more.
bool have_passed(const std::vector<mark>& marks) noexcept {
  const driver_calls& cu = the().cu;
  return std::ranges::all_of(
      marks, [&](const mark& each) { return cu.query_event(each.event) != code::not_ready; });
}

// Waits outside of the gate: work may wait for a thread that begins a capture. No context ends
// meanwhile.
void wait_for(shared_turn& turn, const std::vector<mark>& marks) noexcept {
  turn.unlock();
  {
    const std::shared_lock<std::shared_mutex> staying(the().dropping);
    const undisturbing calls;
    for (const mark& each : marks) (void)the().cu.synchronize_event(each.event);
  }
  turn.lock();
}

void keep_waiting(device_pools& pools, waiting_list&& one) noexcept {
  const std::lock_guard<std::mutex> turn(pools.lock);
  pools.waiting_bytes.fetch_add(one.front().block.size, std::memory_order_relaxed);
  pools.waiting.splice(pools.waiting.end(), one);
}

// What the pool has no host memory for is tried again with the next call.
void hand_back(device_pools& pools, waiting_list&& one) noexcept {
  const freed_block& block = one.front().block;
  status freed;
  switch (block.home) {
    case home_of::now: freed = pools.now->free({block.at}, pools.quiet); break;
    case home_of::ordered: freed = pools.ordered->free({block.at}, pools.quiet); break;
    case home_of::whole: freed = pools.whole->free_idle({block.at}); break;
  }
  if (freed) return;
  if (freed.error().code == errc::out_of_host_memory) return keep_waiting(pools, std::move(one));
  accounts::note_unmanaged(unmanaged_reason::refused);
}

// ---- free after everything ----------------------------------------------------------------------

// The contexts whose work may use the device's memory, the device's own first; null where one of
// them is none now.
context_id user_at(device_pools& pools, std::size_t index) noexcept {
  if (index == 0) return pools.context;
  peer user;
  {
    const std::lock_guard<std::mutex> turn(pools.lock);
    user = pools.peers[index - 1];
  }
  return user.context != nullptr ? user.context : primary_of(user.device);
}

std::size_t user_count(device_pools& pools) noexcept {
  const std::lock_guard<std::mutex> turn(pools.lock);
  return pools.peers.size() + 1;
}

bool is_marked(context_id context, const std::vector<mark>& marks) noexcept {
  return std::ranges::any_of(marks, [&](const mark& each) { return each.context == context; });
}

// Records an event behind all work submitted so far in every context that may use the device's
// memory. Without such an event in the driver, or without host memory, the host waits.
void mark_users(device_pools& pools, std::vector<mark>& into) noexcept {
  const std::size_t count = user_count(pools);
  for (std::size_t i = 0; i < count; ++i) {
    const context_id each = user_at(pools, i);
    if (each == nullptr || is_marked(each, into) || mark_context(each, into)) continue;
    const current_context entered(each);
    waited_count.fetch_add(1, std::memory_order_relaxed);
    if (entered.is_current()) (void)the().cu.synchronize_context();
  }
}

/// Gives a block back after all that the device, and the devices that may use its memory, have been
/// given so far; the caller does not wait where the driver has a mark of all work of a context.
/// While a stream is captured such a mark would invalidate the capture: the block waits for its
/// end, and a capture that another thread begins waits for the mark.
/// Where the driver has no such mark, the host waits, as for the driver's own cuMemFree.
void free_after_everything(shared_turn& turn, device_pools& pools, waiting_list&& one) noexcept {
  deferred_count.fetch_add(1, std::memory_order_relaxed);
  if (is_any_captured()) {
    const std::lock_guard<std::mutex> owned(pools.lock);
    pools.put_off.splice(pools.put_off.end(), one);
    return;
  }
  std::vector<mark>& marks = one.front().marks;
  mark_users(pools, marks);
  if (chosen_settings().is_free_waiting && !marks.empty()) {
    waited_count.fetch_add(marks.size(), std::memory_order_relaxed);
    wait_for(turn, marks);
    return_events(marks);
  }
  if (marks.empty()) {
    hand_back(pools, std::move(one));
  } else {
    keep_waiting(pools, std::move(one));
  }
}

// Removes passed entries from the list. Polls a few others.
waiting_list take_passed(device_pools& pools) noexcept {
  waiting_list passed;
  const std::lock_guard<std::mutex> owned(pools.lock);
  std::size_t looked_at = 0;
  for (auto each = pools.waiting.begin();
       each != pools.waiting.end() && looked_at < marks_looked_at;) {
    const auto it = each++;
    if (have_passed(it->marks)) {
      pools.waiting_bytes.fetch_sub(it->block.size, std::memory_order_relaxed);
      passed.splice(passed.end(), pools.waiting, it);
    } else {
      ++looked_at;
    }
  }
  return passed;
}

waiting_list take_first(waiting_list& of) noexcept {
  waiting_list one;
  one.splice(one.begin(), of, of.begin());
  return one;
}

// Blocks whose marks have passed become free; those that were put off get their mark.
void collect(shared_turn& turn, device_pools& pools) noexcept {
  if (is_any_captured()) return;
  waiting_list passed = take_passed(pools);
  waiting_list put_off;
  {
    const std::lock_guard<std::mutex> owned(pools.lock);
    put_off.swap(pools.put_off);
  }
  while (!passed.empty()) {
    return_events(passed.front().marks);
    hand_back(pools, take_first(passed));
  }
  while (!put_off.empty()) free_after_everything(turn, pools, take_first(put_off));
}

// Waits for the marks there are now. False: there are none.
bool wait_for_marks(shared_turn& turn, device_pools& pools) {
  std::vector<mark> marks;
  {
    const std::lock_guard<std::mutex> owned(pools.lock);
    for (const waiting_block& each : pools.waiting) {
      marks.insert(marks.end(), each.marks.begin(), each.marks.end());
    }
  }
  if (marks.empty() || is_any_captured()) return false;
  waited_count.fetch_add(1, std::memory_order_relaxed);
  wait_for(turn, marks);
  while (true) {
    const std::uint64_t before = pools.waiting_bytes.load(std::memory_order_relaxed);
    collect(turn, pools);
    if (pools.waiting_bytes.load(std::memory_order_relaxed) == before) return true;
  }
}

// Waits for what a stream has been given. False: it cannot be waited for now.
bool wait_for_stream(shared_turn& turn, stream_name stream) noexcept {
  if (is_captured(stream) || (is_default(stream) && is_any_captured())) return false;
  std::vector<mark> marks;
  if (!mark_stream(stream, marks)) return false;
  waited_count.fetch_add(1, std::memory_order_relaxed);
  wait_for(turn, marks);
  return_events(marks);
  return true;
}

// Waits for all that the device has been given. False: it cannot be waited for now.
bool wait_for_device(shared_turn& turn, device_pools& pools) noexcept {
  if (is_any_captured()) return false;
  waited_count.fetch_add(1, std::memory_order_relaxed);
  std::vector<mark> marks;
  if (mark_context(pools.context, marks)) {
    wait_for(turn, marks);
    return_events(marks);
    return true;
  }
  const current_context entered(pools.context);
  return entered.is_current() && the().cu.synchronize_context() == code::success;
}

// ---- what is kept -------------------------------------------------------------------------------

std::uint64_t keep_limit(const device_pools& pools) noexcept {
  const std::uint64_t wanted = chosen_settings().keep_bytes;
  if (wanted != keep_share) return wanted;
  const std::uint64_t most = pools.peak_live_bytes.load(std::memory_order_relaxed);
  return std::max(kept_bytes_least, most / kept_share);
}

// Waits for the block that was freed first, as the driver's cuMemFree would have. False: it has no
// mark yet.
bool wait_for_oldest(shared_turn& turn, device_pools& pools) {
  std::vector<mark> marks;
  {
    const std::lock_guard<std::mutex> owned(pools.lock);
    if (!pools.waiting.empty()) marks = pools.waiting.front().marks;
  }
  if (marks.empty()) return false;
  waited_count.fetch_add(1, std::memory_order_relaxed);
  wait_for(turn, marks);
  collect(turn, pools);
  return true;
}

/// Keeps what is freed within the limit: a host that runs ahead of the device waits, and what the
/// pools have free beyond it is released to the driver.
void keep_within_limit(shared_turn& turn, device_pools& pools) {
  const std::uint64_t limit = keep_limit(pools);
  if (pools.freed_bytes.load(std::memory_order_relaxed) <= limit / kept_share) return;
  if (is_any_captured()) return;
  while (pools.waiting_bytes.load(std::memory_order_relaxed) > limit) {
    // Nothing is collected while another thread captures: the block stays.
    if (is_any_captured() || !wait_for_oldest(turn, pools)) break;
  }
  pools.freed_bytes.store(0, std::memory_order_relaxed);
  for (stream_pool* each : {&*pools.now, &*pools.ordered}) {
    const pool_statistics seen = each->statistics();
    if (seen.mapped_bytes - std::min(seen.mapped_bytes, seen.live_bytes) > limit) {
      (void)each->trim(limit);
    }
  }
  if (pools.whole && !is_any_captured()) (void)pools.whole->trim(limit);
}

// ---- blocks -------------------------------------------------------------------------------------

// The entry that the block's free will need, with room for the marks that it needs now.
waiting_list entry_for(device_pools& pools, const freed_block& block) {
  waiting_list one(1);
  one.front().block = block;
  one.front().marks.reserve(user_count(pools));
  return one;
}

// False: no host memory, and `block` is as it was.
bool add_block(device_pointer at, live_block&& block) noexcept {
  world& w = the();
  const std::unique_lock<std::shared_mutex> turn(w.blocks_lock);
  try {
    w.blocks.insert_or_assign(at, std::move(block));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

std::optional<live_block> take_block(device_pointer at) noexcept {
  world& w = the();
  const std::unique_lock<std::shared_mutex> turn(w.blocks_lock);
  const auto found = w.blocks.find(at);
  if (found == w.blocks.end()) return std::nullopt;
  live_block taken = std::move(found->second);
  w.blocks.erase(found);
  taken.owner->note_freed(taken.size);
  ipc::forget(taken.number);
  return taken;
}

// Which pool a request is for, and on which of its streams.
struct wanted_block {
  home_of home = home_of::now;
  std::size_t size = 0;
  stream_name stream;  // of home_of::ordered
};

stream_pool& pool_for(device_pools& pools, home_of home) noexcept {
  return home == home_of::ordered ? *pools.ordered : *pools.now;
}

result<address> ask_pool(device_pools& pools, const wanted_block& wanted) {
  const bool has_stream = wanted.home == home_of::ordered;
  const stream_id named = is_default(wanted.stream) ? nullptr : wanted.stream.stream;
  return pool_for(pools, wanted.home)
      .allocate(wanted.size, has_stream ? handle_of(named) : pools.quiet);
}

// Free of cost: memory that the device's other allocators do not use.
void give_others_back(device_pools& pools, home_of but) {
  const home_of other = but == home_of::ordered ? home_of::now : home_of::ordered;
  (void)pool_for(pools, other).trim(0);
  // The manager's calls are not made for a process that captures.
  if (pools.whole && !is_any_captured()) (void)pools.whole->drain();
}

// The steps for a request for which the pool has no memory: first unused memory of others, then
// waiting for work whose memory was freed, the stream's own before that of others.
result<address> try_harder(shared_turn& turn, device_pools& pools, const wanted_block& wanted) {
  const auto is_done = [](const result<address>& made) {
    return made || !is_shortage(made.error().code);
  };
  give_others_back(pools, wanted.home);
  result<address> made = ask_pool(pools, wanted);
  if (is_done(made)) return made;
  if (wanted.home == home_of::ordered && wait_for_stream(turn, wanted.stream)) {
    made = ask_pool(pools, wanted);
    if (is_done(made)) return made;
  }
  if (wait_for_marks(turn, pools)) {
    give_others_back(pools, wanted.home);
    made = ask_pool(pools, wanted);
    if (is_done(made)) return made;
  }
  if (!wait_for_device(turn, pools)) return made;
  give_others_back(pools, wanted.home);
  return ask_pool(pools, wanted);
}

unmanaged_reason why_not(errc failure) noexcept {
  switch (failure) {
    case errc::not_permitted: return unmanaged_reason::capture;
    case errc::not_supported:
    case errc::unavailable: return unmanaged_reason::no_virtual_memory;
    default:
      return is_shortage(failure) ? unmanaged_reason::short_of_memory : unmanaged_reason::refused;
  }
}

// The block becomes known; one that cannot be goes back. Its entry was made before it.
answer hand_out(device_pools& pools, const freed_block& made, waiting_list&& entry) noexcept {
  const std::uint64_t number = the().last_number.fetch_add(1, std::memory_order_relaxed) + 1;
  entry.front().block = made;
  live_block block{made.size, number, &pools, made.home, std::move(entry)};
  if (!add_block(made.at, std::move(block))) {
    hand_back(pools, std::move(block.entry));  // NOLINT(bugprone-use-after-move): not added
    return {0, unmanaged_reason::refused};
  }
  pools.note_live(made.size);
  served_count.fetch_add(1, std::memory_order_relaxed);
  return {made.at, unmanaged_reason::count};
}

answer serve(shared_turn& turn, device_pools& pools, const wanted_block& wanted) {
  collect(turn, pools);
  keep_within_limit(turn, pools);
  waiting_list entry = entry_for(pools, {});
  result<address> made = ask_pool(pools, wanted);
  if (!made && is_shortage(made.error().code)) made = try_harder(turn, pools, wanted);
  if (!made) return {0, why_not(made.error().code)};
  return hand_out(pools, {made->value, wanted.size, wanted.home}, std::move(entry));
}

// A block of whole granules, which a copy can remap. Too small ones, and those that the manager has
// no memory for, are the pool's.
answer serve_whole(shared_turn& turn, device_pools& pools, std::size_t size) {
  collect(turn, pools);
  keep_within_limit(turn, pools);
  if (!is_any_captured() && pools.whole->set_up() && size >= pools.whole->granularity_bytes()) {
    waiting_list entry = entry_for(pools, {});
    allocate_request wanted;
    wanted.size_bytes = size;
    wanted.stream = pools.quiet;
    const result<address> made = pools.whole->allocate(wanted);
    if (made) return hand_out(pools, {made->value, size, home_of::whole}, std::move(entry));
  }
  return serve(turn, pools, {home_of::now, size, {}});
}

}  // namespace

bool stream_name::is_per_thread() const noexcept {
  const std::uint64_t number = number_of(stream);
  return number == per_thread_stream || (number == 0 && per_thread);
}

const char* check_settings() noexcept {
  const result<pool_options> wanted = wanted_options();
  if (!wanted) return wanted.error().detail;
  const result<manager_options> whole = wanted_whole_options();
  return whole ? nullptr : whole.error().detail;
}

counts figures() noexcept {
  return {
      served_count.load(std::memory_order_relaxed), deferred_count.load(std::memory_order_relaxed),
      waited_count.load(std::memory_order_relaxed), remapped_count.load(std::memory_order_relaxed)};
}

answer allocate(std::size_t size) noexcept {
  if (chosen_settings().ipc == ipc_rule::plain) return {0, unmanaged_reason::plain_for_ipc};
  shared_turn turn(the().gate);
  if (is_any_captured()) return {0, unmanaged_reason::capture};
  try {
    device_pools* pools = pools_of_current();
    if (pools == nullptr) return {0, unmanaged_reason::no_context};
    return pools->whole ? serve_whole(turn, *pools, size)
                        : serve(turn, *pools, {home_of::now, size, {}});
  } catch (const std::bad_alloc&) {
    return {0, unmanaged_reason::refused};
  }
}

answer allocate(std::size_t size, stream_name stream) noexcept {
  if (stream.is_per_thread()) return {0, unmanaged_reason::per_thread_stream};
  shared_turn turn(the().gate);
  try {
    device_pools* pools = pools_of(stream);
    if (pools == nullptr) return {0, unmanaged_reason::no_context};
    if (pools->has_pool_of_user.load(std::memory_order_relaxed)) {
      return {0, unmanaged_reason::pool_of_the_user};
    }
    return serve(turn, *pools, {home_of::ordered, size, stream});
  } catch (const std::bad_alloc&) {
    return {0, unmanaged_reason::refused};
  }
}

bool serves_pool(pool_id pool, stream_name stream) noexcept {
  const shared_turn turn(the().gate);
  device_pools* pools = pools_of(stream);
  const pool_id known = pools == nullptr ? nullptr : pools->default_pool;
  return known != nullptr && known == pool;
}

free_answer free_now(device_pointer at) noexcept {
  shared_turn turn(the().gate);
  std::optional<live_block> block = take_block(at);
  if (!block) return the().ranges.contains(at) ? free_answer::wrong : free_answer::foreign;
  collect(turn, *block->owner);
  free_after_everything(turn, *block->owner, std::move(block->entry));
  return free_answer::done;
}

free_answer free_async(device_pointer at, stream_name stream) noexcept {
  if (!the().ranges.contains(at)) return free_answer::foreign;
  shared_turn turn(the().gate);
  // A stream that the driver does not know is the driver's to refuse.
  if (is_captured(stream) || context_of(stream) == nullptr) return free_answer::foreign;
  std::optional<live_block> block = take_block(at);
  if (!block) return free_answer::wrong;
  device_pools& pools = *block->owner;
  collect(turn, pools);
  const bool is_simple =
      block->is_ordered() && !stream.is_per_thread() && pools_of(stream) == &pools;
  const stream_id named = is_default(stream) ? nullptr : stream.stream;
  if (is_simple && pools.ordered->free({at}, handle_of(named))) return free_answer::done;
  const bool may_mark = !is_default(stream) || !is_any_captured();
  if (may_mark && mark_stream(stream, block->entry.front().marks)) {
    keep_waiting(pools, std::move(block->entry));
  } else {
    free_after_everything(turn, pools, std::move(block->entry));
  }
  return free_answer::done;
}

place find(device_pointer at, block_facts& into) noexcept {
  world& w = the();
  if (!w.ranges.contains(at)) return place::elsewhere;
  const std::shared_lock<std::shared_mutex> turn(w.blocks_lock);
  auto found = w.blocks.upper_bound(at);
  if (found == w.blocks.begin()) return place::in_free_memory;
  --found;
  const live_block& block = found->second;
  if (at - found->first >= block.size) return place::in_free_memory;
  into = {found->first,
          block.size,
          block.number,
          block.owner->context,
          block.is_ordered() ? block.owner->default_pool : nullptr,
          block.is_ordered()};
  return place::in_block;
}

block_memory memory_of(device_pointer base) {
  world& w = the();
  const std::shared_lock<std::shared_mutex> turn(w.blocks_lock);
  const auto found = w.blocks.find(base);
  block_memory memory;
  if (found == w.blocks.end() || found->second.is_ordered()) return memory;
  const live_block& block = found->second;
  memory.device = block.owner->device;
  memory.size_bytes = block.size;
  memory.number = block.number;
  memory.offset_bytes =
      block.owner->driver.look_behind({{base}, block.size}, [&](const auto& each) {
        memory.pieces.push_back({static_cast<physical_id>(each.memory), each.size_bytes});
      });
  return memory;
}

int export_piece(const block_memory& block, const memory_piece& piece) noexcept {
  const auto index = static_cast<std::size_t>(block.device);
  device_pools* pools = the().devices[index].load(std::memory_order_acquire);
  if (pools == nullptr) return -1;
  const auto shared =
      pools->driver.export_handle(static_cast<physical_handle>(piece.handle), share_kind::posix_fd);
  return shared ? static_cast<int>(shared->descriptor) : -1;
}

std::uint64_t reusable_bytes() noexcept {
  const shared_turn turn(the().gate);
  device_pools* pools = pools_of_current();
  if (pools == nullptr) return 0;
  std::uint64_t sum = pools->waiting_bytes.load(std::memory_order_relaxed);
  for (stream_pool* each : {&*pools->now, &*pools->ordered}) {
    const pool_statistics seen = each->statistics();
    if (seen.mapped_bytes > seen.live_bytes) sum += seen.mapped_bytes - seen.live_bytes;
  }
  if (pools->whole) {
    const manager_statistics seen = pools->whole->statistics();
    sum += seen.cached_memory_bytes + seen.cached_range_bytes;
  }
  return sum;
}

std::uint64_t give_back(bool may_wait) noexcept {
  std::uint64_t bytes = 0;
  world& w = the();
  shared_turn turn(w.gate);
  for (const auto& each : w.devices) {
    device_pools* pools = each.load(std::memory_order_acquire);
    if (pools == nullptr) continue;
    try {
      collect(turn, *pools);
      if (may_wait) (void)wait_for_marks(turn, *pools);
    } catch (const std::bad_alloc&) {
      continue;
    }
    bytes += pools->now->trim(0).released_bytes + pools->ordered->trim(0).released_bytes;
    if (pools->whole && !is_any_captured()) bytes += pools->whole->drain().released_bytes;
  }
  return bytes;
}

bool copy_by_remapping(device_pointer target, device_pointer source, std::size_t size) noexcept {
  world& w = the();
  if (!w.ranges.contains(target) || !w.ranges.contains(source)) return false;
  shared_turn turn(w.gate);
  device_pools* pools = nullptr;
  {
    const std::shared_lock<std::shared_mutex> known(w.blocks_lock);
    const auto to = w.blocks.find(target);
    const auto from = w.blocks.find(source);
    if (to == w.blocks.end() || from == w.blocks.end() || target == source) return false;
    const bool fits = to->second.home == home_of::whole && from->second.home == home_of::whole &&
                      to->second.owner == from->second.owner && from->second.size == size &&
                      to->second.size >= size;
    if (!fits) return false;
    pools = to->second.owner;
  }
  // The work on both blocks must have finished: the target's addresses change hands now.
  if (!wait_for_device(turn, *pools) || is_any_captured()) return false;
  const std::uint64_t before = pools->whole->statistics().remapped_copy_count;
  const copy_mode how =
      chosen_settings().copy == copy_rule::move ? copy_mode::move : copy_mode::alias;
  const status copied = pools->whole->copy({{target}, {source}, size, pools->quiet}, how);
  if (pools->whole->statistics().remapped_copy_count != before) {
    remapped_count.fetch_add(1, std::memory_order_relaxed);
    return static_cast<bool>(copied);
  }
  return copied && pools->driver.synchronize_stream(pools->quiet);
}

namespace {

// Captures that `is_gone` says of are under way no more.
template <class IsGone>
void end_captures(IsGone&& is_gone) noexcept {
  world& w = the();
  const std::lock_guard<std::mutex> turn(w.captures_lock);
  std::erase_if(w.captures, is_gone);
  w.capture_count.store(w.captures.size(), std::memory_order_release);
}

// The context's streams and events are gone, and nothing runs there any more.
void forget_context(context_id gone) noexcept {
  world& w = the();
  {
    const std::unique_lock<std::shared_mutex> streams(w.streams_lock);
    std::erase_if(w.streams, [&](const auto& each) { return each.second == gone; });
  }
  {
    const std::lock_guard<std::mutex> events(w.events_lock);
    w.spare_events.erase(gone);
  }
  end_captures([&](const captured_stream& each) { return each.context == gone; });
  std::erase_if(w.grants,
                [&](const peer_grant& each) { return each.owner == gone || each.user == gone; });
  for (const auto& each : w.devices) {
    device_pools* pools = each.load(std::memory_order_acquire);
    if (pools == nullptr) continue;
    const std::lock_guard<std::mutex> owned(pools->lock);
    std::erase_if(pools->peers, [&](const peer& user) { return user.context == gone; });
    for (waiting_block& block : pools->waiting) {
      std::erase_if(block.marks, [&](const mark& point) { return point.context == gone; });
    }
  }
}

void forget_blocks_of(const device_pools& gone) noexcept {
  world& w = the();
  const std::unique_lock<std::shared_mutex> blocks(w.blocks_lock);
  std::erase_if(w.blocks, [&](const auto& each) {
    if (each.second.owner != &gone) return false;
    ipc::forget(each.second.number);
    return true;
  });
}

// The context went, and with it all streams and events. Mapped memory does not belong to it: it is
// released through the context that replaces it, which is active meanwhile. The driver object is
// abandoned, since it would use its stream.
void give_back_after_end(std::unique_ptr<device_pools> gone) noexcept {
  world& w = the();
  const undisturbing calls;
  gone->driver.note_context_ended();
  context_id again = nullptr;
  const bool is_there = w.cu.retain_primary(&again, gone->device) == code::success;
  gone->whole.reset();
  gone->ordered.reset();
  gone->now.reset();
  if (is_there) (void)w.cu.release_primary(gone->device);
  (void)w.cu.release_primary(gone->device);  // the driver object's
  (void)gone.release();
}

}  // namespace

void forget(stream_id stream) noexcept {
  world& w = the();
  {
    const shared_turn turn(w.gate);
    for (const auto& each : w.devices) {
      device_pools* pools = each.load(std::memory_order_acquire);
      if (pools != nullptr) (void)pools->ordered->forget(handle_of(stream));
    }
  }
  {
    const std::unique_lock<std::shared_mutex> turn(w.streams_lock);
    w.streams.erase(stream);
  }
  end_captures(
      [&](const captured_stream& each) { return !each.per_thread && each.stream == stream; });
}

ending_turn::ending_turn() noexcept {
  the().gate.lock();
  the().dropping.lock();
}

ending_turn::~ending_turn() {
  the().dropping.unlock();
  the().gate.unlock();
}

// Where the driver has no mark of all work the host waits in its turn, as for a cuMemFree. A
// context that cannot be made current is gone, and so is its work.
idle_turn::idle_turn(context_id context) noexcept {
  world& w = the();
  shared_turn turn(w.gate);
  std::vector<mark> marks;
  if (w.is_usable && !is_any_captured()) {
    const undisturbing calls;
    if (mark_context(context, marks)) {
      wait_for(turn, marks);
      return_events(marks);
    } else if (const current_context entered(context); entered.is_current()) {
      (void)w.cu.synchronize_context();
    }
    is_idle_ = !is_any_captured();
  }
  (void)turn.release();
}

idle_turn::~idle_turn() { the().gate.unlock_shared(); }

context_id ending_turn::primary_context(device_id device) const noexcept {
  return the().is_usable ? primary_of(device) : nullptr;
}

void ending_turn::note_ended(context_id gone) const noexcept {
  world& w = the();
  if (gone == nullptr) return;
  const std::lock_guard<std::mutex> opening(w.opening);
  forget_context(gone);
  ipc::forget_context(gone);
  for (auto& each : w.devices) {
    device_pools* pools = each.load(std::memory_order_acquire);
    if (pools == nullptr || pools->context != gone) continue;
    each.store(nullptr, std::memory_order_release);
    w.generation.fetch_add(1, std::memory_order_release);
    forget_blocks_of(*pools);
    give_back_after_end(std::unique_ptr<device_pools>(pools));
  }
}

void grant_peer(context_id owner) noexcept {
  world& w = the();
  context_id user = nullptr;
  device_id device = -1;
  if (!w.is_usable || w.cu.get_current(&user) != code::success ||
      w.cu.get_device(&device) != code::success) {
    return;
  }
  const shared_turn turn(w.gate);
  const undisturbing calls;
  const std::lock_guard<std::mutex> opening(w.opening);
  try {
    w.grants.push_back({owner, user, device});
    device_pools* pools = existing_pools(owner);
    if (pools != nullptr) add_user(*pools, {user, device});
  } catch (const std::bad_alloc&) {
    complain("no host memory to give a device access to another one's memory");
  }
}

void grant_pool_peer(pool_id pool, device_id device) noexcept {
  world& w = the();
  const shared_turn turn(w.gate);
  const undisturbing calls;
  const std::lock_guard<std::mutex> opening(w.opening);
  const auto is_same = [&](const pool_grant& each) {
    return each.pool == pool && each.device == device;
  };
  try {
    if (std::ranges::none_of(w.pool_grants, is_same)) w.pool_grants.push_back({pool, device});
    for (const auto& each : w.devices) {
      device_pools* pools = each.load(std::memory_order_acquire);
      if (pools != nullptr && pools->default_pool == pool) add_user(*pools, {nullptr, device});
    }
  } catch (const std::bad_alloc&) {
    complain("no host memory to give a device access to another one's memory");
  }
}

void note_device_pool(device_id device, pool_id pool) noexcept {
  world& w = the();
  if (device < 0 || static_cast<std::size_t>(device) >= devices_max) return;
  const auto index = static_cast<std::size_t>(device);
  const std::lock_guard<std::mutex> turn(w.opening);
  w.chosen_pools[index] = pool;
  device_pools* pools = w.devices[index].load(std::memory_order_acquire);
  if (pools != nullptr) pools->has_pool_of_user = pools->default_pool != pool;
}

void note_capture_begin(stream_name stream) noexcept {
  world& w = the();
  const context_id context = w.is_usable ? context_of(stream) : nullptr;
  const std::unique_lock<capture_gate> alone(w.gate);
  const std::lock_guard<std::mutex> turn(w.captures_lock);
  try {
    w.captures.push_back({stream.stream, pthread_self(), stream.is_per_thread(), context});
  } catch (const std::bad_alloc&) {
    w.has_lost_count.store(true, std::memory_order_relaxed);
  }
  w.capture_count.store(w.captures.size(), std::memory_order_release);
}

void note_capture_refused(stream_name stream) noexcept {
  world& w = the();
  const std::lock_guard<std::mutex> turn(w.captures_lock);
  // One of them: a capture that had begun on the stream before goes on.
  const auto found = std::ranges::find_if(
      w.captures, [&](const captured_stream& each) { return is_on(each, stream); });
  if (found != w.captures.end()) w.captures.erase(found);
  w.capture_count.store(w.captures.size(), std::memory_order_release);
}

void note_capture_end(stream_name stream) noexcept {
  if (!the().is_usable || is_captured(stream)) return;
  end_captures([&](const captured_stream& each) { return is_on(each, stream); });
}

}  // namespace vmm::preload::managed
