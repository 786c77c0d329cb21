// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "device_pools.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accounts.h"
#include "routes.h"
#include "settings.h"

import vmm.backend;
import vmm.base;
import vmm.cuda;
import vmm.manager;
import vmm.market;
import vmm.observe;
import vmm.stream;

namespace vmm::preload::managed {
namespace {

// Without VMM_KEEP: freed memory up to this is retained, or up to a quarter of the peak of live
// bytes.
constexpr std::uint64_t retained_bytes_least = std::uint64_t{512} << 20;
constexpr std::uint64_t retained_share = 4;

constexpr std::uint64_t reserved_bytes = std::uint64_t{1} << 40;

result<pool_options> wanted_options() noexcept {
  pool_options base;
  base.reservation_bytes = reserved_bytes;
  result<pool_options> wanted = pool_options::from_environment(base);
  if (!wanted) return wanted;
  wanted->capture = capture_rule::refuse;
  wanted->streams_forgotten = true;  // the library intercepts each cuStreamDestroy
  wanted->wait_when_short = false;   // serve.cpp waits, outside of the gate
  wanted->leak_hook.hook = nullptr;
  return wanted;
}

result<manager_options> wanted_manager_options() noexcept {
  manager_options base;
  base.reservation_bytes = reserved_bytes;
  result<manager_options> wanted = manager_options::from_environment(base);
  if (wanted) wanted->leak_hook.hook = nullptr;
  return wanted;
}

std::uint64_t retained_bytes_max(std::uint64_t peak_live_bytes) noexcept {
  const std::uint64_t wanted = chosen_settings().keep_bytes;
  return wanted != keep_share ? wanted
                              : std::max(retained_bytes_least, peak_live_bytes / retained_share);
}

// The log that VMM_LOG names, of all devices; null for none.
std::shared_ptr<call_log> open_log() {
  std::string_view destination = "off";
  read_text_option("VMM_LOG", destination);
  if (destination == "off") return nullptr;
  result<std::shared_ptr<call_log>> log = call_log::open(destination);
  if (log) return std::move(*log);
  constexpr const char* detail = "VMM_LOG is off, stderr, or the path of a writable file";
  complain_of(refuse_value(destination, detail).detail, "; nothing is logged",
              static_cast<int>(log.error().native));
  return nullptr;
}

// The owner's requests share the gate, as this library's own calls do. The end of a context, which
// has the gate alone, waits for them: then they return at once.
struct gated_calls {
  source_callbacks inner;
  std::atomic<bool>* is_ending = nullptr;

  [[nodiscard]] bool enter() const noexcept
      VMM_THREAD_ATTRIBUTE(try_acquire_shared_capability(true, locks::gate)) {
    for (;;) {
      if (locks::gate.try_lock_shared()) return true;
      if (is_ending->load(std::memory_order_acquire)) return false;
      (void)::usleep(50);
    }
  }
  static std::uint64_t ask(void* of, const recall_request& what) noexcept {
    const auto& self = *static_cast<gated_calls*>(of);
    if (!self.enter()) return 0;
    const std::uint64_t given_bytes = self.inner.ask(self.inner.of, what);
    locks::gate.unlock_shared();
    return given_bytes;
  }
  static void drop(void* of, std::uint64_t id) noexcept {
    const auto& self = *static_cast<gated_calls*>(of);
    if (!self.enter()) return;
    self.inner.drop(self.inner.of, id);
    locks::gate.unlock_shared();
  }
};

// Freed blocks whose work has finished are idle, too. Inside of gated_calls::ask().
std::uint64_t give_idle(void* of, const timed_bytes&) noexcept VMM_NOT_ANALYSED {
  auto& pools = *static_cast<device_pools*>(of);
  if (!pools.is_open()) return 0;
  pools.waiting().collect();
  return pools.trim();
}

bool has_owner() {
  const result<std::optional<tenant_options>> options = tenant_options_from_environment();
  return options && options->has_value();
}

// As VMM_OWNER says, which is not off.
result<std::unique_ptr<tenant_driver>> join_owner(any_backend&& calls, const device_driver& driver,
                                                  std::atomic<bool>& is_ending) {
  result<std::optional<tenant_options>> options = tenant_options_from_environment();
  if (!options) return options.error();
  const std::optional<market_key> device = market_device_of(driver);
  if (!device) return refuse(errc::not_supported, "the driver reports no UUID of the device");
  (*options)->device = *device;
  const auto make = [&](const source_callbacks& inner) {
    auto* const gated = new gated_calls{inner, &is_ending};  // for the process's life
    return join_market_once(**options, {gated, gated_calls::ask, gated_calls::drop});
  };
  return tenant_driver::open(std::move(calls), make, {.wait_ns = 0});
}

}  // namespace

const char* check_settings() noexcept {
  try {
    const result<std::optional<tenant_options>> tenant = tenant_options_from_environment();
    if (!tenant) return tenant.error().detail;
  } catch (const std::bad_alloc&) {
    return "no host memory to read VMM_TENANT";
  }
  const result<pool_options> wanted = wanted_options();
  if (!wanted) return wanted.error().detail;
  const result<manager_options> of_manager = wanted_manager_options();
  return of_manager ? nullptr : of_manager.error().detail;
}

// ---- one device ---------------------------------------------------------------------------------

// What only the device refuses, such as an address space without room for a page, is reported here
// once, and not for each request.
bool device_pools::set_up() {
  driver_.make_shareable(chosen_settings().ipc == ipc_rule::share);
  const result<stream_handle> stream = driver_.create_stream();
  result<pool_options> options = wanted_options();
  const result<manager_options> of_manager = wanted_manager_options();
  if (!stream || !options || !of_manager) return false;
  service_stream_ = *stream;
  options->first_stream = *stream;
  physical_request page;
  page.where = vmm::device(where_.device);
  const result<granularity> unit = driver_.query_granularity(page);
  if (!unit) return false;
  driver_.limit(options->budget_bytes, std::max(options->page_bytes, unit->recommended_bytes));
  unordered_.emplace(calls_, *options);
  ordered_.emplace(calls_, *options);
  for (stream_pool* each : {&*unordered_, &*ordered_}) {
    const status ready = each->set_up();
    if (ready) continue;
    complain("a device is not managed: ", ready.error().detail);
    return false;
  }
  if (chosen_settings().copy != copy_rule::off) {
    manager_.emplace(calls_, *of_manager);
    if (const status ready = manager_->set_up(); !ready) {
      complain("copies are not remapped: ", ready.error().detail);
      manager_.reset();
    }
  }
  if (cu_.default_pool != nullptr) (void)cu_.default_pool(&default_pool_, where_.device);
  return true;
}

status device_pools::take_back(const live_block& block) noexcept {
  const address at{block.at()};
  return block.from == owner::manager ? manager_->free_idle(at)
                                      : pool(block.from).free(at, service_stream_);
}

result<std::vector<memory_segment>> device_pools::segments(owner of, address_range range) {
  return of == owner::manager ? manager_->segments(range) : pool(of).segments(range);
}

int device_pools::export_piece(const memory_piece& piece) noexcept {
  const auto shared =
      calls_.export_handle(static_cast<physical_handle>(piece.handle), share_kind::posix_fd);
  return shared ? static_cast<int>(shared->descriptor) : -1;
}

void device_pools::add_user(const memory_users::user& user) {
  users_.add(user);
  if (user.device == where_.device) return;
  const access_grant grant{vmm::device(user.device), access::read_write};
  const auto report = [](const status& given) {
    if (given) return;
    complain("a device was not given access to managed memory of another one: ",
             given.error().detail);
  };
  report(unordered_->set_peers({&grant, 1}));
  report(ordered_->set_peers({&grant, 1}));
  if (manager_) report(manager_->set_peers({&grant, 1}));
}

void device_pools::forget_context(context_id gone) noexcept {
  users_.forget_context(gone);
  waiting_.forget_context(gone);
}

// ---- limits -------------------------------------------------------------------------------------

void device_pools::enforce_retention() noexcept {
  const std::uint64_t limit = retained_bytes_max(levels_.peak_bytes());
  if (levels_.freed_bytes() <= limit / retained_share) return;
  if (captures_.is_any()) return;
  while (waiting_.bytes() > limit) {
    // While another thread captures, nothing is collected and the block stays.
    if (captures_.is_any() || !waiting_.wait_for_oldest()) break;
  }
  if (!is_open()) return;
  levels_.forget_freed();
  for (stream_pool* each : {&*unordered_, &*ordered_}) {
    const pool_statistics now = each->statistics();
    const std::uint64_t ready = each->history().remembered_bytes();
    const std::uint64_t kept = std::max(limit, ready - std::min(ready, now.live_bytes));
    if (now.mapped_bytes - std::min(now.mapped_bytes, now.live_bytes) > kept)
      (void)each->trim(kept);
  }
  if (manager_ && !captures_.is_any()) (void)manager_->trim(limit);
}

std::uint64_t device_pools::reusable_bytes() const noexcept {
  std::uint64_t sum = waiting_.bytes();
  for (const stream_pool* each : {&*unordered_, &*ordered_}) {
    const pool_statistics now = each->statistics();
    if (now.mapped_bytes > now.live_bytes) sum += now.mapped_bytes - now.live_bytes;
  }
  if (manager_) {
    const manager_statistics now = manager_->statistics();
    sum += now.retained_bytes + now.retained_mapped_bytes;
  }
  return sum;
}

std::uint64_t device_pools::trim() noexcept {
  if (!is_open()) return 0;
  std::uint64_t bytes = unordered_->trim(0).released_bytes + ordered_->trim(0).released_bytes;
  if (manager_ && !captures_.is_any()) bytes += manager_->trim(0).released_bytes;
  return bytes;
}

void device_pools::end(std::unique_ptr<device_pools> gone) noexcept {
  const driver_calls& cu = gone->cu_;
  const relaxed_thread relaxed(cu);
  gone->driver_.note_context_ended();
  context_id again = nullptr;
  const bool is_there = cu.retain_primary(&again, gone->device()) == code::success;
  gone->manager_.reset();
  gone->ordered_.reset();
  gone->unordered_.reset();
  if (gone->tenant() != nullptr) gone->tenant()->leave();
  if (is_there) (void)cu.release_primary(gone->device());
  (void)cu.release_primary(gone->device());  // the driver object's
  (void)gone.release();
}

// ---- all devices --------------------------------------------------------------------------------

// Settings that the program made before the device was open.
void device_table::apply_choices(device_pools& pools) {
  for (const context_grant& each : context_grants_) {
    if (each.owner == pools.context()) pools.add_user({each.user, each.device});
  }
  for (const pool_grant& each : pool_grants_) {
    if (each.pool == pools.default_pool()) pools.add_user({nullptr, each.device});
  }
  pools.choose_pool(chosen_pools_[static_cast<std::size_t>(pools.device())]);
}

std::unique_ptr<device_pools> device_table::make(device_id device, context_id context) {
  static const std::shared_ptr<call_log> log = open_log();
  bool& is_refused = is_refused_[static_cast<std::size_t>(device)];
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
  auto driver = std::make_unique<device_driver>(std::move(*opened), parts_.ranges, parts_.captures);
  device_driver& inside = *driver;
  result<any_backend> calls = any_backend::own(std::move(driver));
  if (!calls) return nullptr;
  tenant_driver* joined = nullptr;
  if (has_owner()) {
    const std::optional<market_key> key = market_device_of(inside);
    const std::string uuid = key ? market_device_text(*key) : std::string();
    auto tenant = join_owner(std::move(*calls), inside, inside.ending());
    if (!tenant) {
      complain("a device's memory is refused (VMM_OWNER): ", tenant.error().detail);
      barred_uuids_[static_cast<std::size_t>(device)] = uuid;
      is_barred_[static_cast<std::size_t>(device)].store(true);
      is_refused = true;
      return nullptr;
    }
    joined = tenant->get();
    calls = any_backend::own(std::move(*tenant));
  }
  if (calls && log != nullptr)
    calls = any_backend::own(observed_backend(std::move(*calls), std::shared_ptr(log)));
  if (!calls) return nullptr;
  const device_pools::place_of where{device, context, joined};
  auto made = std::make_unique<device_pools>(where, std::move(*calls), inside, parts_);
  if (!made->set_up()) {
    is_refused = true;
    return nullptr;
  }
  if (joined != nullptr) joined->add_giver({made.get(), give_idle, true});
  apply_choices(*made);
  return made;
}

device_pools* device_table::open(device_id device, context_id context) noexcept {
  if (!cu_.is_usable || device < 0 || device >= devices_max) return nullptr;
  const auto index = static_cast<std::size_t>(device);
  const sync::lock_guard turn(locks::opening);
  if (device_pools* there = of_device(device); there != nullptr)
    return there->context() == context ? there : nullptr;
  unsigned flags = 0;
  int is_active = 0;
  if (is_refused_[index] || cu_.primary_state(device, &flags, &is_active) != code::success ||
      is_active == 0) {
    return nullptr;
  }
  try {
    const relaxed_thread relaxed(cu_);
    auto made = make(device, context);
    open_[index].store(made.get(), std::memory_order_release);
    return made.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

device_pools* device_table::find(context_id context, device_id device) noexcept {
  struct known {
    context_id context = nullptr;
    device_pools* pools = nullptr;
    std::uint64_t generation = 0;
  };
  static thread_local known last;
  const std::uint64_t generation = generation_.load(std::memory_order_acquire);
  if (last.context == context && last.generation == generation) return last.pools;
  last = {context, open(device, context), generation};
  return last.pools;
}

bool device_table::is_barred() noexcept {
  const device_id device = contexts_.current() == nullptr ? -1 : contexts_.current_device();
  return device >= 0 && device < devices_max && is_barred_[static_cast<std::size_t>(device)].load();
}

// A device's text is written once, before it is barred.
bool device_table::is_barred(std::string_view uuid) const noexcept {
  for (std::size_t each = 0; each < is_barred_.size(); ++each)
    if (is_barred_[each].load() && barred_uuids_[each] == uuid) return true;
  return false;
}

device_pools* device_table::of_current() noexcept {
  if (!cu_.is_usable) return nullptr;
  const context_id context = contexts_.current();
  if (context == nullptr) return nullptr;
  const device_id device = contexts_.current_device();
  return device < 0 ? nullptr : find(context, device);
}

device_pools* device_table::of(stream_name name) noexcept {
  if (!cu_.is_usable) return nullptr;
  if (name.is_default()) return of_current();
  const context_id context = contexts_.of(name);
  if (context == nullptr) return nullptr;
  if (device_pools* pools = of_context(context); pools != nullptr) return pools;
  return contexts_.current() == context ? of_current() : nullptr;
}

device_pools* device_table::of_device(device_id device) const noexcept {
  if (device < 0 || device >= devices_max) return nullptr;
  return open_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

device_pools* device_table::of_context(context_id context) const noexcept {
  for (const auto& each : open_) {  // ends at the first: each ordered call comes here
    device_pools* const pools = each.load(std::memory_order_acquire);
    if (pools != nullptr && pools->context() == context) return pools;
  }
  return nullptr;
}

// ---- choices of the program ---------------------------------------------------------------------

void device_table::grant_context(context_id owner) noexcept {
  const context_id user = cu_.is_usable ? contexts_.current() : nullptr;
  if (user == nullptr) return;
  const device_id device = contexts_.current_device();
  if (device < 0) return;
  const gate_guard shared(locks::gate);
  const relaxed_thread relaxed(cu_);
  const sync::lock_guard turn(locks::opening);
  try {
    context_grants_.push_back({owner, user, device});
    device_pools* const pools = of_context(owner);
    if (pools != nullptr) pools->add_user({user, device});
  } catch (const std::bad_alloc&) {
    complain("no host memory to give a device access to another one's memory");
  }
}

void device_table::grant_device(pool_id pool, device_id device) noexcept {
  const gate_guard shared(locks::gate);
  const relaxed_thread relaxed(cu_);
  const sync::lock_guard turn(locks::opening);
  const auto is_same = [&](const pool_grant& each) {
    return each.pool == pool && each.device == device;
  };
  try {
    if (std::ranges::none_of(pool_grants_, is_same)) pool_grants_.push_back({pool, device});
    for (device_id i = 0; i < devices_max; ++i) {
      device_pools* const pools = of_device(i);
      if (pools != nullptr && pools->default_pool() == pool) pools->add_user({nullptr, device});
    }
  } catch (const std::bad_alloc&) {
    complain("no host memory to give a device access to another one's memory");
  }
}

void device_table::choose_pool(device_id device, pool_id pool) noexcept {
  if (device < 0 || device >= devices_max) return;
  const sync::lock_guard turn(locks::opening);
  chosen_pools_[static_cast<std::size_t>(device)] = pool;
  if (device_pools* const pools = of_device(device); pools != nullptr) pools->choose_pool(pool);
}

std::unique_ptr<device_pools> device_table::close(context_id gone) noexcept {
  std::erase_if(context_grants_,
                [&](const context_grant& each) { return each.owner == gone || each.user == gone; });
  visit([&](device_pools& each) { each.forget_context(gone); });
  device_pools* const pools = of_context(gone);
  if (pools == nullptr) return nullptr;
  open_[static_cast<std::size_t>(pools->device())].store(nullptr, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  return std::unique_ptr<device_pools>(pools);
}

}  // namespace vmm::preload::managed
