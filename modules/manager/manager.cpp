// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

module vmm.manager;

import vmm.backend;
import vmm.intrusive;
import vmm.optimizer;
import vmm.reservation;
import vmm.sync;
import vmm.va;

namespace vmm {

policy policy::va_pool() noexcept { return policy{}; }

policy policy::keep_mapped() noexcept {
  policy rules;
  rules.name = "keep_mapped";
  rules.on_free = free_rule::keep_mapped;
  return rules;
}

policy policy::virtual_caching() noexcept {
  policy rules;
  rules.name = "virtual_caching";
  rules.on_free = free_rule::keep_mapped;
  rules.grow_cached = true;
  rules.unbind_cached = true;
  rules.fragment_ratio = 0;
  rules.chunk_bytes = std::uint64_t{20} << 20;
  return rules;
}

result<policy> policy::by_name(std::string_view name) noexcept {
  for (const policy& known : {va_pool(), keep_mapped(), virtual_caching()}) {
    if (name == known.name) return known;
  }
  return refuse(errc::bad_option, "a policy is one of va_pool, keep_mapped, virtual_caching");
}

namespace {

// No device has more address space.
constexpr std::uint64_t option_bytes_max = std::uint64_t{1} << 56;

}  // namespace

status manager_options::validate() const noexcept {
  // Not a number compares false with everything.
  if (!(rules.fragment_ratio >= 0 && rules.fragment_ratio <= 1)) {
    return refuse(errc::bad_option, "policy::fragment_ratio is a number from 0 to 1");
  }
  if (rules.chunk_bytes > option_bytes_max) {
    return refuse(errc::bad_option, "policy::chunk_bytes is at most 2^56, or 0 for no chunks");
  }
  if (reservation_bytes == 0 || reservation_bytes > option_bytes_max) {
    return refuse(errc::bad_option, "manager_options::reservation_bytes is from 1 to 2^56");
  }
  return {};
}

result<manager_options> manager_options::from_environment(const manager_options& base) noexcept {
  manager_options options = base;
  if (const char* name = std::getenv("VMM_POLICY"); name != nullptr && *name != '\0') {
    const result<policy> rules = policy::by_name(name);
    if (!rules) {
      return refuse(errc::bad_option,
                    "VMM_POLICY takes one of va_pool, keep_mapped, virtual_caching");
    }
    options.rules = *rules;
  }
  constexpr const char* ratio_detail = "VMM_FRAG_RATIO takes a number from 0 to 1, such as 0.25";
  status read = read_number_option("VMM_FRAG_RATIO", options.rules.fragment_ratio, ratio_detail);
  if (read && !(options.rules.fragment_ratio >= 0 && options.rules.fragment_ratio <= 1)) {
    read = refuse(errc::bad_option, ratio_detail);
  }
  constexpr const char* chunk_detail =
      "VMM_CHUNK_SIZE takes bytes with a unit, such as 20MiB, at most 64PiB, or 0 for no chunks";
  if (read) read = read_bytes_option("VMM_CHUNK_SIZE", options.rules.chunk_bytes, chunk_detail);
  if (read && options.rules.chunk_bytes > option_bytes_max) {
    read = refuse(errc::bad_option, chunk_detail);
  }
  constexpr const char* space_detail =
      "VMM_VA_SIZE takes bytes with a unit, such as 8TiB, not 0 and at most 64PiB";
  if (read) read = read_bytes_option("VMM_VA_SIZE", options.reservation_bytes, space_detail);
  if (read && (options.reservation_bytes == 0 || options.reservation_bytes > option_bytes_max)) {
    read = refuse(errc::bad_option, space_detail);
  }
  if (read) {
    read =
        read_bytes_option("VMM_BUDGET", options.budget_bytes,
                          "VMM_BUDGET takes bytes with a unit, such as 40GiB, or 0 for no budget");
  }
  if (read) read = options.validate();
  if (!read) return read.error();
  return options;
}

void range_cache::put(block& freed) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  by_size_.insert(freed, freed.sizes.mapped_bytes);
  size_bytes_ += freed.sizes.mapped_bytes;
}

block* range_cache::take(index_node* found) noexcept {
  if (found == nullptr) return nullptr;
  auto& taken = static_cast<block&>(*found);
  by_size_.erase(taken);
  size_bytes_ -= taken.sizes.mapped_bytes;
  return &taken;
}

block* range_cache::take_exact(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  index_node* const found = by_size_.at_least(mapped_bytes);
  return take(found != nullptr && found->key == mapped_bytes ? found : nullptr);
}

block* range_cache::take_smaller(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return mapped_bytes == 0 ? nullptr : take(by_size_.at_most(mapped_bytes - 1));
}

block* range_cache::take_larger(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return take(by_size_.at_least(mapped_bytes + 1));
}

block* range_cache::take_largest() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return take(by_size_.last());
}

std::size_t range_cache::size() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return by_size_.size();
}

std::uint64_t range_cache::size_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return size_bytes_;
}

bool range_cache::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (!by_size_.validate()) return false;
  std::uint64_t sum_bytes = 0;
  for (const index_node* node = by_size_.first(); node != nullptr; node = by_size_.next(*node)) {
    const auto& cached = static_cast<const block&>(*node);
    if (cached.key != cached.sizes.mapped_bytes || !cached.holds_pieces || cached.claimed)
      return false;
    sum_bytes += cached.sizes.mapped_bytes;
  }
  return sum_bytes == size_bytes_;
}

// ---- set-up --------------------------------------------------------------------------

status manager::set_up() {
  if (!made_in_.is_here()) return refuse_forked();
  if (is_set_up_.load(std::memory_order_acquire)) return {};
  const sync::lock_guard<sync::mutex> lock(set_up_mutex_);
  if (engine_ != nullptr) return {};
  const result<engine_options> plan = plan_engine();
  if (!plan) return plan.error();
  engine_.reset(new (std::nothrow) engine(driver_, *plan));
  if (engine_ == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for the manager");
  is_set_up_.store(true, std::memory_order_release);
  return {};
}

result<engine_options> manager::plan_engine() {
  if (status valid = options_.validate(); !valid) return valid.error();
  physical_request like;
  like.where = options_.use_location ? options_.where : driver_->home();
  like.shareable = options_.shareable;
  like.compressible = options_.compressible;
  like.rdma_capable = options_.rdma_capable;
  if (driver_->feature_set().contents_stay) {
    return refuse(
        errc::not_supported,
        "the backend keeps contents at their addresses (VMM_CUDA_MEMORY=plain): blocks of "
        "a manager could not move; only a stream_pool works there");
  }
  const result<std::uint64_t> queried = query_unit(like);
  if (!queried) return queried.error();
  const std::uint64_t unit_bytes = *queried;
  const policy& rules = options_.rules;
  if (rules.chunk_bytes % unit_bytes != 0) {
    return refuse(errc::bad_option,
                  "policy::chunk_bytes (VMM_CHUNK_SIZE) is a multiple of the device's granularity, "
                  "or 0 for no chunks");
  }
  engine_options plan;
  plan.physical.like = like;
  plan.physical.granularity_bytes = unit_bytes;
  plan.physical.fragment_ratio = rules.fragment_ratio;
  plan.physical.chunk_bytes = rules.chunk_bytes;
  plan.physical.budget_bytes = options_.budget_bytes;
  plan.physical.reuse_while_mapped = driver_->feature_set().alias != alias_level::none;
  plan.reservation.reservation_bytes = options_.reservation_bytes;
  plan.reservation.granularity_bytes = unit_bytes;
  plan.grants = grants_for(driver_->home(), like.where);
  // Every range is a multiple of the chunk, so that any cached chunk serves any request.
  unit_bytes_ = std::max(unit_bytes, rules.chunk_bytes);
  place_bytes_ = unit_bytes;
  return plan;
}

// The coarsest granularity of any size, so that every piece may stand at any place. Some devices
// have a finer one for small sizes.
result<std::uint64_t> manager::query_unit(physical_request like) {
  std::uint64_t unit_bytes = 0;
  for (const std::uint64_t size_bytes : {std::uint64_t{1}, std::uint64_t{1} << 30}) {
    like.size_bytes = size_bytes;
    const result<granularity> unit = driver_->query_granularity(like);
    if (!unit) return unit.error();
    unit_bytes = std::max(unit_bytes, unit->recommended_bytes);
  }
  if (!std::has_single_bit(unit_bytes)) {
    return refuse(errc::not_supported, "the device's granularity is not a power of two");
  }
  return unit_bytes;
}

manager::~manager() {
  users_.check_destroyed();
  if (engine_ == nullptr) return;
  if (made_in_.is_here()) report_live();
  for (int left = close_attempts; left > 0 && made_in_.is_here(); --left) {
    if (close()) return;
  }
  if (!made_in_.is_here()) {  // or forked while it closed
    leave_behind(engine_.release());
    return;
  }
  std::fputs("vmm: the driver did not take all memory back; the rest stays with the process\n",
             stderr);
  (void)engine_.release();
}

void manager::report_live() noexcept {
  if (options_.at_end.hook == nullptr) return;
  const std::uint64_t count = engine_->records().size();
  if (count == 0) return;
  const std::uint64_t size_bytes = engine_->records().totals().user_bytes;
  options_.at_end.hook(options_.at_end.context, {"manager", count, size_bytes});
}

status manager::close() {
  for (address first = engine_->records().lowest(); first; first = engine_->records().lowest()) {
    const result<block*> claimed = claim(first);
    if (!claimed) return claimed.error();
    const result<ticket_ref> last_use = engine_->time().mark((*claimed)->stream);
    const status gone = last_use ? engine_->dissolve(**claimed, *last_use) : last_use.error();
    if (!gone) {
      engine_->records().unclaim(**claimed);
      return gone;
    }
  }
  for (block* cached = cache_.take_largest(); cached != nullptr; cached = cache_.take_largest()) {
    if (status gone = unbind(*cached); !gone) return gone;
  }
  return engine_->close();
}

// ---- allocate ------------------------------------------------------------------------

result<range_sizes> manager::sizes_for(std::uint64_t size_bytes, std::uint64_t growth_bytes) const {
  if (size_bytes == 0) return refuse(errc::invalid_argument, "a size of 0 bytes is not allocated");
  if (size_bytes > size_bytes_max || growth_bytes > size_bytes_max) {
    return refuse(errc::invalid_argument, "the size is larger than any address space");
  }
  const std::uint64_t mapped_bytes = round_up(size_bytes, unit_bytes_);
  return range_sizes{size_bytes, mapped_bytes, mapped_bytes + round_up(growth_bytes, unit_bytes_)};
}

result<address> manager::allocate(const allocate_request& request) {
  if (status ready = set_up(); !ready) return ready.error();
  const result<range_sizes> sizes = sizes_for(request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  const std::uint64_t alignment_bytes = request.alignment_bytes;
  if (alignment_bytes != 0 &&
      (!std::has_single_bit(alignment_bytes) || alignment_bytes > size_bytes_max)) {
    return refuse(errc::invalid_argument, "an alignment is a power of two");
  }
  engine_->reap(reap_count);
  const block_request wanted{*sizes, alignment_bytes, request.stream};
  const result<block*> made = with_recovery([&] { return obtain(wanted); });
  if (!made) return made.error();
  const address at = (*made)->base;
  engine_->records().unclaim(**made);
  return at;
}

// A tracked and claimed block: a cached range where the policy allows it, else a new one.
result<block*> manager::obtain(const block_request& request) {
  const policy& rules = options_.rules;
  const bool plain = request.alignment_bytes <= place_bytes_ &&
                     request.sizes.reserved_bytes == request.sizes.mapped_bytes;
  if (rules.on_free == free_rule::unmap || !plain) return engine_->build(request);
  if (block* exact = cache_.take_exact(request.sizes.mapped_bytes))
    return reuse_exact(*exact, request);
  if (rules.grow_cached) {
    if (block* smaller = cache_.take_smaller(request.sizes.mapped_bytes))
      return grow_cached(*smaller, request);
  }
  if (rules.unbind_cached) {
    if (block* larger = cache_.take_larger(request.sizes.mapped_bytes)) {
      if (status unbound = unbind(*larger); !unbound) return unbound.error();
      counts_.unbound_range_count.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return engine_->build(request);
}

result<block*> manager::reuse_exact(block& cached, const block_request& request) {
  if (status ordered = engine_->order(request.stream, cached); !ordered) {
    cache_.put(cached);
    return ordered.error();
  }
  cached.sizes.user_bytes = request.sizes.user_bytes;
  cached.alignment_bytes = request.alignment_bytes;
  cached.stream = request.stream;
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  counts_.reused_range_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

result<block*> manager::grow_cached(block& cached, const block_request& request) {
  if (status ordered = engine_->order(request.stream, cached); !ordered) {
    cache_.put(cached);
    return ordered.error();
  }
  const stream_handle old_stream = std::exchange(cached.stream, request.stream);
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const resize_plan plan{request.sizes, request.stream, cached.last_use};
  status grown = engine_->grow_in_place(cached, plan);
  if (!grown && grown.error().code == errc::out_of_addresses) grown = engine_->move(cached, plan);
  if (!grown && (cached.sizes.user_bytes == 0 || cached.locked_count > 0)) {
    engine_->discard(cached, plan.last_use);  // of no use any more, and it mattered to nobody
    return engine_->build(request);
  }
  if (!grown) {
    engine_->records().erase(cached);
    cached.stream = old_stream;
    cache_.put(cached);
    return grown.error();
  }
  cached.alignment_bytes = request.alignment_bytes;
  counts_.grown_range_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

// Back into the cache, as it was.
void manager::uncache_failed(block& cached) noexcept {
  engine_->records().erase(cached);
  cache_.put(cached);
}

// Takes a cached range apart: its pieces move on, its addresses wait for its last use.
status manager::unbind(block& cached) {
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const ticket_ref last_use = cached.last_use;
  status gone = engine_->dissolve(cached, last_use);
  if (!gone) uncache_failed(cached);
  return gone;
}

// ---- free ----------------------------------------------------------------------------

result<block*> manager::claim(address at) {
  if (!made_in_.is_here()) return refuse_forked();
  if (!is_set_up_.load(std::memory_order_acquire)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager, which has not allocated anything");
  }
  const result<tracked_range*> claimed = engine_->records().claim(at);
  if (claimed) return &block_of(**claimed);
  if (claimed.error().code == errc::not_allocated && !engine_->space().contains(at)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager: free it where it was allocated");
  }
  return claimed.error();
}

status manager::free(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  const result<ticket_ref> last_use = engine_->time().mark((*claimed)->stream);
  if (last_use) return free_after(**claimed, *last_use);
  engine_->records().unclaim(**claimed);
  return last_use.error();
}

status manager::free(address at, stream_handle last_use) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  // The block's own stream has been ordered behind the earlier users of its pieces; this one not.
  status ordered = engine_->order(last_use, **claimed);
  if (ordered) {
    const result<ticket_ref> marked = engine_->time().mark(last_use);
    if (marked) return free_after(**claimed, *marked);
    ordered = marked.error();
  }
  engine_->records().unclaim(**claimed);
  return ordered;
}

status manager::free_idle(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  return free_after(**claimed, ticket_ref{});
}

status manager::free_after(block& gone, const ticket_ref& last_use) {
  // A reused range that its stream never touched may be freed before the work of its previous user
  // has finished.
  const bool is_older = last_use.known_passed() && !gone.last_use.known_passed();
  const ticket_ref until = is_older ? gone.last_use : last_use;
  const bool whole = gone.holds_pieces && gone.sizes.user_bytes > 0 && gone.locked_count == 0;
  const bool plain = gone.sizes.reserved_bytes == gone.sizes.mapped_bytes;
  // A range is reused behind one ticket. Memory that was shared may still be in use by the block it
  // was shared with, which has a ticket of its own: only unmapping everywhere waits for both.
  if (options_.rules.on_free == free_rule::keep_mapped && whole && plain &&
      !engine_->was_shared(gone)) {
    gone.last_use = until;
    engine_->records().erase(gone);
    cache_.put(gone);
    return {};
  }
  status dissolved = engine_->dissolve(gone, until);
  if (!dissolved) engine_->records().unclaim(gone);
  return dissolved;
}

// ---- resize --------------------------------------------------------------------------

result<address> manager::resize(const resize_request& request) {
  const result<block*> claimed = claim(request.at);
  if (!claimed) return claimed.error();
  engine_->reap(reap_count);
  const result<address> at = resize_claimed(**claimed, request);
  engine_->records().unclaim(**claimed);
  return at;
}

result<address> manager::resize_claimed(block& resized, const resize_request& request) {
  const result<range_sizes> sizes = sizes_for(request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  if (resized.sizes.user_bytes == 0) {
    return refuse(errc::invalid_argument,
                  "the block's memory has moved to another: it can only be freed");
  }
  if (status unlocked = engine_->unlock(resized); !unlocked) return unlocked.error();
  resize_plan plan{*sizes, resized.stream, ticket_ref{}};
  status done;
  if (sizes->mapped_bytes > resized.sizes.mapped_bytes) {
    done = grow(resized, request, plan);
  } else {
    const result<ticket_ref> last_use = engine_->time().mark(resized.stream);
    if (!last_use) return last_use.error();
    plan.last_use = *last_use;
    done = engine_->shrink(resized, plan);
  }
  if (!done) return done.error();
  return resized.base;
}

status manager::grow(block& grown, const resize_request& request, resize_plan plan) {
  resize_plan in_place = plan;
  in_place.sizes.reserved_bytes = std::max(plan.sizes.mapped_bytes, grown.sizes.reserved_bytes);
  const status done = with_recovery([&] { return engine_->grow_in_place(grown, in_place); });
  if (done || done.error().code != errc::out_of_addresses || !request.may_move) return done;
  const result<ticket_ref> last_use = engine_->time().mark(grown.stream);
  if (!last_use) return last_use.error();
  plan.last_use = *last_use;
  return with_recovery([&] { return engine_->move(grown, plan); });
}

// ---- what the host must be behind ----------------------------------------------------

// Nothing is known of a stream but its number, in tickets that other threads look at: all that were
// made so far are taken for another stream's.
void manager::forget(stream_handle) noexcept {
  if (is_set_up_.load(std::memory_order_acquire)) engine_->time().begin_era();
}

status manager::settle(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  const status settled =
      (*claimed)->sizes.user_bytes == 0
          ? refuse(errc::invalid_argument, "the block's memory is gone: it can only be freed")
          : engine_->settle(**claimed);
  engine_->records().unclaim(**claimed);
  return settled;
}

result<ticket_ref> manager::mark(stream_handle stream) {
  if (status ready = set_up(); !ready) return ready.error();
  return engine_->time().mark(stream);
}

status manager::wait(const ticket_ref& point) {
  if (!made_in_.is_here()) return refuse_forked();
  return point.known_passed() ? status{} : engine_->time().wait(point);
}

// ---- copy ----------------------------------------------------------------------------

status manager::copy(const copy_request& request, copy_mode mode) {
  if (status ready = set_up(); !ready) return ready;
  if (request.size_bytes == 0) return {};
  if (mode == copy_mode::copy || request.target == request.source) return real_copy(request);
  const status remapped = remap_copy(request, mode);
  if (remapped || remapped.error().code == errc::device_lost) return remapped;
  const status copied = real_copy(request);
  const bool cannot = !copied && copied.error().code == errc::not_supported;
  return cannot ? remapped : copied;
}

// Does the copy by remapping. An error but device_lost means that nothing has changed.
status manager::remap_copy(const copy_request& request, copy_mode mode) {
  const result<tracked_range*> target = engine_->records().claim(request.target);
  if (!target) return target.error();
  const result<tracked_range*> source = engine_->records().claim(request.source);
  status shown = source ? remap_claimed(block_of(**target), block_of(**source), request, mode)
                        : status{source.error()};
  if (source) engine_->records().unclaim(**source);
  engine_->records().unclaim(**target);
  if (shown) counts_.remapped_copy_count.fetch_add(1, std::memory_order_relaxed);
  return shown;
}

status manager::remap_claimed(block& target, block& source, const copy_request& request,
                              copy_mode mode) {
  constexpr const char* why = "the copy is not one of whole, idle blocks";
  if (!remap_fits(target, source, request)) return refuse(errc::not_supported, why);
  if (engine_->is_shared(source)) return refuse(errc::not_supported, why);
  // Everything that the streams concerned were given must have finished: the target's addresses
  // change hands now.
  for (const stream_handle stream : {request.stream, target.stream, source.stream}) {
    const result<ticket_ref> last_use = engine_->time().mark(stream);
    if (!last_use) return last_use.error();
    const result<bool> idle = engine_->time().passed(*last_use);
    if (!idle) return idle.error();
    if (!*idle) return refuse(errc::not_supported, why);
  }
  return mode == copy_mode::move ? engine_->take_over(target, source, request.stream)
                                 : engine_->alias(target, source, request.stream);
}

// The conditions of E3 that need no driver call.
bool manager::remap_fits(const block& target, const block& source,
                         const copy_request& request) const {
  return request.size_bytes == source.sizes.user_bytes &&
         target.sizes.user_bytes >= source.sizes.user_bytes &&
         target.sizes.mapped_bytes >= source.sizes.mapped_bytes && target.holds_pieces &&
         source.holds_pieces && target.locked_count == 0 && source.locked_count == 0;
}

status manager::real_copy(const copy_request& request) {
  for (const address at : {request.target, request.source}) {
    if (engine_->space().contains(at) && !engine_->records().covers({at, request.size_bytes})) {
      return refuse(errc::not_allocated,
                    "the copy reaches outside the allocation that its address lies in");
    }
  }
  if (!driver_->feature_set().copy)
    return refuse(errc::not_supported, "this backend cannot copy bytes");
  status copied = driver_->copy(request);
  if (copied) counts_.real_copy_count.fetch_add(1, std::memory_order_relaxed);
  return copied;
}

// ---- looking -------------------------------------------------------------------------

result<range_info> manager::find(address at) {
  if (!made_in_.is_here()) return refuse_forked();
  if (!is_set_up_.load(std::memory_order_acquire)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager, which has not allocated anything");
  }
  result<range_info> found = engine_->records().find(at);
  if (found || found.error().code != errc::not_allocated || engine_->space().contains(at))
    return found;
  return refuse(errc::unknown_address, "the address is not of this manager");
}

status manager::drain_ranges(std::uint64_t limit_bytes) {
  for (std::size_t left = cache_.size(); left > 0 && cache_.size_bytes() > limit_bytes; --left) {
    block* const largest = cache_.take_largest();
    if (largest == nullptr) return {};
    if (status unbound = unbind(*largest); !unbound) return unbound;
  }
  return {};
}

trim_report manager::trim(std::uint64_t limit_bytes) {
  if (!made_in_.is_here()) return {.failure = refuse_forked()};
  if (!is_set_up_.load(std::memory_order_acquire)) return {};
  return give_back(limit_bytes);
}

// What another thread is just giving back has gone when this returns: nobody who is short of memory
// misses it.
trim_report manager::give_back(std::uint64_t limit_bytes) {
  const sync::lock_guard<sync::mutex> releasing(release_mutex_);
  engine_->reap(engine_->retired().size());
  const status drained = drain_ranges(limit_bytes);
  const std::uint64_t kept_bytes = cache_.size_bytes();
  engine_->reap(engine_->retired().size());
  trim_report report =
      engine_->memory().trim(limit_bytes > kept_bytes ? limit_bytes - kept_bytes : 0);
  if (!drained && report.failure.code == errc::none) report.failure = drained.error();
  return report;
}

manager_statistics manager::statistics() {
  manager_statistics numbers;
  if (!is_set_up_.load(std::memory_order_acquire) || !made_in_.is_here()) return numbers;
  numbers.live_count = engine_->records().size();
  const range_sizes live = engine_->records().totals();
  numbers.user_bytes = live.user_bytes;
  numbers.mapped_bytes = live.mapped_bytes;
  const physical_statistics physical = engine_->memory().statistics();
  numbers.held_bytes = physical.held_bytes;
  numbers.peak_held_bytes = physical.peak_held_bytes;
  numbers.cached_piece_bytes = physical.cached_bytes;
  numbers.created_count = physical.created_count;
  numbers.reused_piece_count = physical.reused_count;
  numbers.cached_range_bytes = cache_.size_bytes();
  numbers.retired_bytes = engine_->retired().size_bytes();
  const address_space_statistics space = engine_->space().statistics();
  numbers.reserved_bytes = space.reserved_bytes;
  numbers.space_live_bytes = space.live_bytes;
  numbers.space_high_water_bytes = space.high_water_bytes;
  numbers.reused_range_count = counts_.reused_range_count.load(std::memory_order_relaxed);
  numbers.grown_range_count = counts_.grown_range_count.load(std::memory_order_relaxed);
  numbers.unbound_range_count = counts_.unbound_range_count.load(std::memory_order_relaxed);
  numbers.remapped_copy_count = counts_.remapped_copy_count.load(std::memory_order_relaxed);
  numbers.real_copy_count = counts_.real_copy_count.load(std::memory_order_relaxed);
  numbers.recovery_count = counts_.recovery_count.load(std::memory_order_relaxed);
  return numbers;
}

result<std::vector<extent_view>> manager::extents() {
  if (!made_in_.is_here()) return refuse_forked();
  std::vector<extent_view> views;
  if (!is_set_up_.load(std::memory_order_acquire)) return views;
  try {
    // Handed out but neither live nor cached: retired.
    engine_->space().visit([&views](address_range where, bool is_live) {
      views.push_back({where, 0, is_live ? extent_kind::retired : extent_kind::hole});
    });
    const auto by_base = [](const extent_view& a, const extent_view& b) {
      return a.where.base < b.where.base;
    };
    std::sort(views.begin(), views.end(), by_base);
    const auto mark = [&](const tracked_range& range, extent_kind kind) {
      const extent_view wanted{{range.base, 0}, 0, kind};
      const auto found = std::lower_bound(views.begin(), views.end(), wanted, by_base);
      if (found == views.end() || found->where.base != range.base) return;
      found->kind = kind;
      found->mapped_bytes = range.sizes.mapped_bytes;
    };
    engine_->records().visit(
        [&mark](const tracked_range& range) { mark(range, extent_kind::live); });
    cache_.visit([&mark](const block& cached) { mark(cached, extent_kind::cached); });
    while (!views.empty() && views.back().kind == extent_kind::hole) views.pop_back();
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for the list of extents");
  }
  return views;
}

bool manager::validate() {
  if (!made_in_.is_here()) return true;
  return !is_set_up_.load(std::memory_order_acquire) || (engine_->validate() && cache_.validate());
}

}  // namespace vmm
