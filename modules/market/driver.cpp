// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "process.hpp"

module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :failures;
import :lot_table;

namespace vmm {
namespace {

// With locks of allocators no interruption is called.
class interruption_pause {
 public:
  interruption_pause() noexcept : is_here_(relief_pause::is_here()) {
    if (is_here_) before_ = unix_os::interrupt_by({});
  }
  ~interruption_pause() {
    if (is_here_) (void)unix_os::interrupt_by(before_);
  }
  interruption_pause(const interruption_pause&) = delete;
  interruption_pause& operator=(const interruption_pause&) = delete;

 private:
  const bool is_here_;
  unix_os::interruption before_{};
};

}  // namespace

// ---- beginning and end ---------------------------------------------------------------

tenant_driver::tenant_driver(driver_interface& inside, const tenant_driver_options& options)
    : forwarding_driver(inside),
      options_(options),
      can_(inside.feature_set()),
      lots_(std::make_unique<lot_table>()),
      fills_(std::make_unique<lot_fills>(inside)) {
  can_.fresh_memory_zero = false;
  can_.export_posix_fd = can_.export_fabric = can_.export_dma_buf = false;
  can_.multicast = can_.rdma = can_.compression = false;
  can_.offset_map = can_.short_map = can_.offset_map && can_.short_map;
  can_.lazy_commit = true;  // a share is not the limit of what create() can borrow
  can_.is_lender = true;
}

result<std::unique_ptr<tenant_driver>> tenant_driver::open(driver_interface& inside,
                                                           const source_maker& make,
                                                           const tenant_driver_options& options) {
  std::unique_ptr<tenant_driver> made(new tenant_driver(inside, options));
  const status joined = made->join(make);
  if (!joined) return joined.error();
  return made;
}

result<std::unique_ptr<tenant_driver>> tenant_driver::open(any_backend inside,
                                                           const source_maker& make,
                                                           const tenant_driver_options& options) {
  auto owned = std::make_unique<any_backend>(std::move(inside));
  std::unique_ptr<tenant_driver> made(new tenant_driver(*owned, options));
  made->owned_ = std::move(owned);
  const status joined = made->join(make);
  if (!joined) return joined.error();
  return made;
}

status tenant_driver::join(const source_maker& make) {
  const features& base = inside().feature_set();
  if (!base.export_posix_fd || !base.copy || !base.spanning_unmap || base.contents_stay) {
    return refuse(errc::not_supported,
                  "an owner's memory comes as descriptors, is cleared and unmapped in parts: this "
                  "driver cannot do it; unset VMM_OWNER");
  }
  source_callbacks calls;
  calls.of = this;
  calls.ask = [](void* of, const recall_request& what) noexcept {
    return static_cast<tenant_driver*>(of)->ask(what);
  };
  calls.drop = [](void* of, std::uint64_t id) noexcept {
    static_cast<tenant_driver*>(of)->drop(id);
  };
  result<std::unique_ptr<memory_source>> made = make(calls);
  if (!made) return made.error();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    source_ = std::move(*made);
  }
  can_.memory_source = source_->identity();
  relief_.enter_lender({source_->identity(), home()}, this,
                       [](void* of, std::uint64_t bytes, std::int64_t& until_ns) noexcept {
                         return static_cast<tenant_driver*>(of)->lend(bytes, until_ns);
                       });
  return {};
}

tenant_driver::~tenant_driver() {
  if (!made_in_.is_here()) {
    leave_behind(source_.release());
    return;
  }
  relief_.leave();
  if (fills_->is_late()) (void)finish_late();
  for (const auto& [at, each] : lots_->mappings()) (void)inside().unmap({{at}, each.size_bytes});
  for (const auto& [token, each] : lots_->lots()) {
    for (const lot_part& part : each->parts) source_->give({&part.lent, 1});
  }
  leave();
  fills_->end();
}

void tenant_driver::leave() noexcept {
  relief_.leave();
  std::unordered_map<std::uint64_t, physical_handle> imports;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    imports.swap(imports_);
  }
  for (const auto& [id, each] : imports) (void)inside().release(each);
  std::unique_ptr<memory_source> gone;  // there until its destructor has ended the callbacks
  const std::lock_guard<std::mutex> lock(mutex_);
  gone = std::move(source_);
}

result<std::unique_ptr<tenant_driver>> open_tenant(any_backend inside,
                                                   const tenant_options& options,
                                                   const tenant_driver_options& how) {
  return tenant_driver::open(
      std::move(inside),
      [&](const source_callbacks& calls) { return join_market_once(options, calls); }, how);
}

// ---- the source's calls ----------------------------------------------------------------

void tenant_driver::add_giver(const tenant_giver& giver) {
  check(giver.give != nullptr, "a giver has no function");
  const std::lock_guard<std::mutex> lock(mutex_);
  givers_.push_back(giver);
}

// Idle memory of all allocators first, then what the program has offered, and what add_giver()
// names.
std::uint64_t tenant_driver::ask(const recall_request& what) noexcept {
  memory_source* source = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    source = source_.get();
  }
  if (source == nullptr) return 0;  // this driver joins a tenant that is there, or leaves it
  const source_loans& counted = source->loans();
  const std::uint64_t before = counted.given_bytes();
  const auto given = [&] { return counted.given_bytes() - before; };
  const std::int64_t until_ns =
      unix_os::clock_ns() +
      static_cast<std::int64_t>(std::min<std::uint64_t>(what.within_ns, 3'600'000'000'000));
  const relief_key key{source->identity(), home()};
  (void)relieve(key, what.bytes);
  for (const relief_rank rank : {relief_rank::tail, relief_rank::discard, relief_rank::keep}) {
    const bool is_late = unix_os::clock_ns() >= until_ns;
    if (what.only_idle || is_late || given() >= what.bytes) break;
    if (relieve(key, what.bytes - given(), rank) != 0 && given() < what.bytes)
      (void)relieve(key, what.bytes - given());
  }
  for (std::size_t next = 0; given() < what.bytes; ++next) {
    tenant_giver giver;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (next >= givers_.size()) break;
      giver = givers_[next];
    }
    if (what.only_idle && !giver.gives_idle) continue;
    const std::int64_t left_ns = until_ns - unix_os::clock_ns();
    if (left_ns <= 0) break;
    (void)giver.give(giver.of, {what.bytes - given(), static_cast<std::uint64_t>(left_ns)});
    if (given() < what.bytes) (void)relieve(key, what.bytes - given());
  }
  return given();
}

// Of an allocator on this thread that has released its locks, except an observer's.
std::uint64_t tenant_driver::lend(std::uint64_t wanted_bytes, std::int64_t& until_ns) noexcept {
  constexpr std::uint64_t paused_ns = 100'000'000;
  constexpr std::uint64_t longest_ns = 3'600'000'000'000;
  std::uint64_t within_ns = std::min(options_.wait_ns, longest_ns);
  if (relief_pause::is_here()) within_ns = std::min(within_ns, paused_ns);
  const interruption_pause pause;
  const std::int64_t now_ns = unix_os::clock_ns();
  if (until_ns == 0) until_ns = now_ns + static_cast<std::int64_t>(within_ns);
  return borrow({wanted_bytes, static_cast<std::uint64_t>(std::max(until_ns - now_ns, {}))});
}

// What the thread's create() calls will need: at least what they were refused.
std::uint64_t tenant_driver::borrow(const timed_bytes& what) noexcept {
  if (!made_in_.is_here()) return 0;
  const source_loans::loan mine = source_->loans().take();
  if (!mine.handles.empty()) source_->give(mine.handles);
  if (what.bytes == 0 || what.bytes > std::uint64_t{1} << 62) return 0;
  const std::uint64_t unit_bytes = mine.refused_bytes;
  const std::uint64_t exact_bytes = round_up(what.bytes, market_granule_bytes);
  const std::uint64_t whole_bytes =
      unit_bytes == 0 ? exact_bytes : round_up(what.bytes, unit_bytes);
  const std::uint64_t bytes = source_->check_possible(whole_bytes) ? whole_bytes : exact_bytes;
  source_loans::loan next;
  try {
    if (!source_->take({bytes, what.within_ns, unit_bytes}, next.handles)) {
      // One that waits follows where this one does not (adapters/preload/serve.cpp).
      if (what.within_ns == 0 && unit_bytes != 0) source_->loans().put({unit_bytes});
      return 0;
    }
    source_->loans().put(std::move(next));
  } catch (const std::bad_alloc&) {
    if (!next.handles.empty()) source_->give(next.handles);
    return 0;
  }
  return bytes;
}

// A lot: from the thread's loan, and the rest from the owner, to whom a handle of the loan that is
// larger goes back first. Where the owner refuses the rest, the loan stays for smaller creates of
// the request: others wait for what goes back.
status tenant_driver::take(std::uint64_t size_bytes, lent_list& out) {
  const std::uint64_t wanted_bytes = size_bytes;
  source_->loans().use(size_bytes, out);
  for (const lent_handle& each : out) size_bytes -= each.size_bytes;
  if (size_bytes == 0) return {};
  const bool is_paused = relief_pause::is_here();
  const interruption_pause pause;
  source_loans::loan kept = source_->loans().take();
  if (!kept.handles.empty()) {
    const std::size_t count = is_paused ? 1 : kept.handles.size();  // the smallest is the last
    source_->give(std::span<const lent_handle>(kept.handles).last(count));
    kept.handles.resize(kept.handles.size() - count);
  }
  try {
    const status taken = source_->take({size_bytes, is_paused ? 0 : options_.wait_ns}, out);
    const bool is_short = !taken && is_paused && is_shortage(taken.error().code);
    if (is_short) {
      if (kept.refused_bytes == 0 || wanted_bytes < kept.refused_bytes)
        kept.refused_bytes = wanted_bytes;
      kept.handles.insert(kept.handles.end(), out.begin(), out.end());
      out.clear();
      std::stable_sort(kept.handles.begin(), kept.handles.end(),
                       [](const auto& a, const auto& b) { return a.size_bytes > b.size_bytes; });
    }
    if (is_short || !kept.handles.empty()) source_->loans().put(std::move(kept));
    return taken;
  } catch (...) {
    if (!kept.handles.empty()) source_->give(kept.handles);
    throw;
  }
}

void tenant_driver::drop(std::uint64_t id) noexcept {
  physical_handle taken = physical_handle::none;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = imports_.find(id);
    if (found == imports_.end()) return;
    taken = found->second;
    imports_.erase(found);
  }
  (void)inside().release(taken);
}

// ---- queries -------------------------------------------------------------------------

result<granularity> tenant_driver::query_granularity(const physical_request& request) {
  result<granularity> found = inside().query_granularity(request);
  if (!found || request.where != home()) return found;
  if (const status possible = source_->check_possible(request.size_bytes); !possible) {
    error why = possible.error();
    why.code = errc::out_of_memory;
    return why;
  }
  found->minimum_bytes = std::max(found->minimum_bytes, market_granule_bytes);
  found->recommended_bytes = std::max(found->recommended_bytes, found->minimum_bytes);
  return found;
}

result<memory_info> tenant_driver::query_memory(location where) {
  if (where != home()) return inside().query_memory(where);
  if (!made_in_.is_here()) return refuse_forked(call::memory_info);
  const source_totals now = source_->totals();
  // A loan serves the next create() calls.
  const std::uint64_t used_bytes =
      now.charged_bytes - std::min(now.charged_bytes, source_->loans().bytes());
  return memory_info{now.total_bytes - std::min(now.charged_bytes, now.total_bytes),
                     now.total_bytes, now.most_bytes - std::min(used_bytes, now.most_bytes)};
}

result<address_range> tenant_driver::reserve(const reserve_request& request) {
  if (request.size_bytes % market_granule_bytes != 0) {
    return error{errc::invalid_argument, call::reserve, 0, "",
                 "a reservation over an owner's memory is a multiple of 2 MiB"};
  }
  reserve_request wider = request;
  const bool is_small = request.alignment_bytes < market_granule_bytes;
  const bool is_valid =
      request.alignment_bytes == 0 || std::has_single_bit(request.alignment_bytes);
  if (is_small && is_valid) wider.alignment_bytes = market_granule_bytes;
  return inside().reserve(wider);
}

// ---- memory --------------------------------------------------------------------------

result<physical_handle> tenant_driver::import_once(const lent_handle& lent) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = imports_.find(lent.id);
    if (found != imports_.end()) return found->second;
  }
  shared_handle shared;
  shared.kind = share_kind::posix_fd;
  shared.descriptor = lent.descriptor;
  shared.size_bytes = lent.size_bytes;
  const result<physical_handle> made = inside().import_handle(shared);
  if (!made) return made;
  const std::lock_guard<std::mutex> lock(mutex_);
  imports_.insert_or_assign(lent.id, *made);
  return made;
}

result<physical_handle> tenant_driver::create(const physical_request& request) {
  if (request.where != home()) return inside().create(request);
  if (!made_in_.is_here()) return refuse_forked(call::create);
  const auto refused = [](errc code, const char* detail) {
    return error{code, call::create, 0, "", detail};
  };
  if (request.shareable != share_kind::none || request.rdma_capable) {
    return refused(errc::not_supported,
                   "an owner's memory is not shared with other processes or network cards: unset "
                   "VMM_OWNER for this program");
  }
  if (request.size_bytes == 0 || request.size_bytes % market_granule_bytes != 0)
    return refused(errc::invalid_argument, "memory of an owner is a multiple of 2 MiB");
  lent_list lent;
  try {
    auto made = std::make_unique<tenant_lot>();
    const status taken = take(request.size_bytes, lent);
    if (!taken) {
      source_->give(lent);
      error why = taken.error();
      why.where = call::create;
      if (!is_shortage(why.code)) return why;
      why.code = errc::out_of_memory;
      // Of an allocator's request, which has its size beside this one.
      const std::string refusal = source_->last_refusal();
      const bool is_of_size = refusal.starts_with(request_words);
      why.detail = detail_text()
                       .add("the owner of the device's memory refuses")
                       .add(is_of_size ? " a handle of " : ": ")
                       .add(refusal.substr(is_of_size ? request_words.size() : 0))
                       .keep(why.detail);
      return why;
    }
    for (const lent_handle& each : lent) {
      const result<physical_handle> imported = import_once(each);
      if (!imported) {
        source_->give(lent);
        error why = imported.error();
        why.where = call::create;
        return why;
      }
      made->parts.push_back({each, *imported, made->size_bytes});
      made->size_bytes += each.size_bytes;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    return lots_->add(std::move(made));
  } catch (const std::bad_alloc&) {
    if (!lent.empty()) source_->give(lent);
    return refused(errc::out_of_host_memory, "operator new failed for a lot of memory");
  }
}

void tenant_driver::give_back(lent_list& gone) noexcept {
  if (gone.empty()) return;
  std::uint64_t bytes = 0;
  for (const lent_handle& each : gone) bytes += each.size_bytes;
  source_->loans().count_given(bytes);
  source_->give(gone);
}

status tenant_driver::release(physical_handle handle) {
  if (!made_in_.is_here()) return refuse_forked(call::release);
  if (!lot_table::is_token(handle)) return inside().release(handle);
  lent_list gone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tenant_lot* const found = lots_->find(handle);
    if (found == nullptr)
      return error{errc::invalid_argument, call::release, 0, "", "no handle of this driver"};
    if (found->handle_count == 1 && found->mapping_count != 0 && !can_.release_while_mapped)
      return error{errc::in_use, call::release, 0, "", "the memory is still mapped"};
    lots_->drop_handle(*found, gone);
  }
  give_back(gone);
  return {};
}

result<physical_handle> tenant_driver::retain(address at) {
  if (!made_in_.is_here()) return refuse_forked(call::retain);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tenant_lot* const found = lots_->find_mapped(at);
    if (can_.retain && found != nullptr) {
      ++found->handle_count;
      return physical_handle{found->token};
    }
  }
  return inside().retain(at);
}

result<physical_properties> tenant_driver::get_properties(physical_handle handle) {
  if (!made_in_.is_here()) return refuse_forked(call::get_properties);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (lots_->find(handle) != nullptr) return physical_properties{.where = home()};
  }
  return inside().get_properties(handle);
}

// ---- what is not lent further --------------------------------------------------------

result<shared_handle> tenant_driver::export_handle(physical_handle handle, share_kind kind) {
  if (!made_in_.is_here()) return refuse_forked(call::export_handle);
  if (lot_table::is_token(handle) || kind == share_kind::posix_fd) {
    return error{errc::not_supported, call::export_handle, 0, "",
                 "an owner's memory is not shared with other processes"};
  }
  return inside().export_handle(handle, kind);
}

result<dma_buf> tenant_driver::export_range(address_range) {
  return error{errc::not_supported, call::export_range, 0, "",
               "an owner's memory is not shared with devices"};
}

status tenant_driver::bind_multicast(const multicast_binding&) {
  return error{errc::not_supported, call::bind_multicast, 0, "",
               "an owner's memory is not bound to multicast objects"};
}

}  // namespace vmm
