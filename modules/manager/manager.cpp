// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../sync/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.environment;
import vmm.history;
import vmm.intrusive;
import vmm.optimizer;
import vmm.options;
import vmm.reservation;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.top;
import vmm.va;

namespace vmm {

policy policy::va_pool() noexcept { return policy{}; }

policy policy::keep_mapped() noexcept {
  policy rules;
  rules.name = "keep_mapped";
  rules.on_free = free_rule::keep_mapped;
  debug_check([&] { return rules.validate().has_value(); }, "a preset leaves its ranges");
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
  debug_check([&] { return rules.validate().has_value(); }, "a preset leaves its ranges");
  return rules;
}

result<policy> policy::by_name(std::string_view name) noexcept {
  for (const policy& known : {va_pool(), keep_mapped(), virtual_caching()}) {
    if (name == known.name) return known;
  }
  return refuse(errc::bad_option, "a policy is one of va_pool, keep_mapped, virtual_caching");
}

namespace {

constexpr std::array<option_row<policy>, 2> policy_rows{{
    {"policy::fragment_ratio is a number from 0 to 1", &policy::fragment_ratio, 0, 1},
    {"policy::chunk_bytes is at most 2^56, or 0 for no chunks", &policy::chunk_bytes, 0,
     option_bytes_max},
}};

}  // namespace

std::span<const option_row<policy>> policy::ranges() noexcept { return policy_rows; }

status policy::validate() const noexcept {
  if (name == nullptr) return refuse(errc::bad_option, "a policy has a name");
  if (on_free > free_rule::keep_mapped)
    return refuse(errc::bad_option, "policy::on_free is one of free_rule");
  const status fits = check_options(ranges(), *this);
  debug_check([&] { return !fits || fragment_ratio <= 1; }, "a share of a request is more than it");
  return fits;
}

status manager_options::validate() const noexcept {
  const status own = memory_options::validate();
  debug_check([&] { return !own || reservation_bytes > 0; }, "a manager reserves no addresses");
  return own ? rules.validate() : own;
}

result<manager_options> manager_options::from_environment(const manager_options& base) noexcept {
  manager_options options = base;
  if (const char* name = environment_text("VMM_POLICY"); name != nullptr) {
    const result<policy> rules = policy::by_name(name);
    if (!rules) {
      return refuse(errc::bad_option,
                    "VMM_POLICY takes one of va_pool, keep_mapped, virtual_caching");
    }
    options.rules = *rules;
  }
  const auto& [ratio, chunk] = policy_rows;
  status read = read_option("VMM_FRAG_RATIO", ratio, options.rules,
                            "VMM_FRAG_RATIO takes a number from 0 to 1, such as 0.25");
  if (read) {
    read = read_option(
        "VMM_CHUNK_SIZE", chunk, options.rules,
        "VMM_CHUNK_SIZE takes bytes with a unit, such as 20MiB, at most 64PiB, or 0 for no chunks");
  }
  if (read) read = options.read_environment();
  if (read) read = options.validate();
  if (!read) return read.error();
  return options;
}

namespace {

constexpr const char* no_range = "bytes are cached of no range";
constexpr const char* another_block = "another block was claimed than was named";

}  // namespace

// I1, and that the block is whole.
bool range_cache::is_cacheable(const block& range) noexcept {
  return !range.claimed && range.has_memory && range.locked_count == 0 &&
         range.sizes.mapped_bytes > 0 && range.is == unmap_entry::place::outside;
}

// Looks at everything after as many changes as there are ranges: amortised O(1).
void range_cache::audit() noexcept {
  check(by_size_.empty() == (size_bytes_ == 0), no_range);
  if constexpr (check_level >= 3) {
    if (++unaudited_count_ <= by_size_.size()) return;
    unaudited_count_ = 0;
    paranoid_check([this]() VMM_NOT_ANALYSED { return validate_all().has_value(); },
                   "the cache of ranges is broken by a change");
  }
}

void range_cache::put(block& freed) noexcept {
  check(!freed.linked && is_cacheable(freed),
        "cache I1: a range is cached that is in use, or not whole");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  by_size_.insert(freed, freed.sizes.mapped_bytes);
  size_bytes_ += freed.sizes.mapped_bytes;
  check(freed.linked && size_bytes_ >= freed.sizes.mapped_bytes,
        "a range was not put into the cache");
  audit();
}

block* range_cache::take(index_node* found) noexcept {
  if (found == nullptr) return nullptr;
  auto& taken = static_cast<block&>(*found);
  check(is_cacheable(taken) && taken.key == taken.sizes.mapped_bytes,
        "a cached range was changed while it was cached");
  check(size_bytes_ >= taken.sizes.mapped_bytes, "more is taken out of the cache than is in it");
  by_size_.erase(taken);
  size_bytes_ -= taken.sizes.mapped_bytes;
  check(!taken.linked, "a range is taken out of the cache and stays in it");
  audit();
  return &taken;
}

block* range_cache::take_exact(std::uint64_t mapped_bytes) noexcept {
  check(mapped_bytes > 0, "a range of no size is looked for");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  index_node* const found = by_size_.at_least(mapped_bytes);
  return take(found != nullptr && found->key == mapped_bytes ? found : nullptr);
}

block* range_cache::take_smaller(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const taken = mapped_bytes == 0 ? nullptr : take(by_size_.at_most(mapped_bytes - 1));
  check(taken == nullptr || taken->sizes.mapped_bytes < mapped_bytes, "a range is not smaller");
  return taken;
}

block* range_cache::take_larger(std::uint64_t mapped_bytes) noexcept {
  check(mapped_bytes > 0, "a range of no size is looked for");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const taken = take(by_size_.at_least(mapped_bytes + 1));
  check(taken == nullptr || taken->sizes.mapped_bytes > mapped_bytes, "a range is not larger");
  return taken;
}

block* range_cache::take_largest() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const taken = take(by_size_.last());
  check(taken != nullptr || size_bytes_ == 0, no_range);
  return taken;
}

std::size_t range_cache::size() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(by_size_.empty() == (size_bytes_ == 0), no_range);
  return by_size_.size();
}

std::uint64_t range_cache::size_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(by_size_.empty() == (size_bytes_ == 0), no_range);
  return size_bytes_;
}

std::uint64_t range_cache::largest_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const index_node* const last = by_size_.last();
  check((last == nullptr) == (size_bytes_ == 0), no_range);
  return last == nullptr ? 0 : last->key;
}

status range_cache::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return validate_all();
}

status range_cache::validate_all() const noexcept {
  if (status valid = by_size_.validate(); !valid) return valid;
  std::uint64_t sum_bytes = 0;
  for (const index_node* node = by_size_.first(); node != nullptr; node = by_size_.next(*node)) {
    const auto& cached = static_cast<const block&>(*node);
    if (cached.key != cached.sizes.mapped_bytes || !is_cacheable(cached))
      return refuse(errc::internal, "cache I1: a cached range is not what the cache takes it for");
    sum_bytes += cached.sizes.mapped_bytes;
  }
  if (sum_bytes != size_bytes_)
    return refuse(errc::internal, "the bytes of cached ranges are wrong");
  return {};
}

// ---- set-up --------------------------------------------------------------------------

status manager::set_up() {
  if (!made_in_.is_here()) return refuse_forked();
  if (is_set_up_.load(std::memory_order_acquire)) return {};
  const sync::lock_guard<sync::mutex> lock(set_up_mutex_);
  if (engine_ != nullptr) {
    check(is_set_up_.load(std::memory_order_acquire), "an engine is there before it is set up");
    return {};
  }
  const result<core_options> plan = plan_engine();
  if (!plan) return plan.error();
  if (status attached = recorder_.attach(); !attached) return attached;
  engine_.reset(new (std::nothrow) engine(driver_, *plan, &teller_));
  if (engine_ == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for the manager");
  check(unit_bytes_ > 0 && unit_bytes_ % place_bytes_ == 0, "sizes are no multiples of granules");
  const auto give_back = [](void* of, std::uint64_t wanted_bytes) noexcept {
    return static_cast<manager*>(of)->give_idle_back(wanted_bytes);
  };
  relief_.enter({driver_.identity(), options_.placement.value_or(driver_->home())},
                {this, give_back});
  is_set_up_.store(true, std::memory_order_release);
  const auto sample_of = [](const void* of, top_sample& out) noexcept {
    static_cast<const manager*>(of)->sample(out);
  };
  top_.publish({this, sample_of}, options_.publish);
  return {};
}

result<engine*> manager::parts() {
  if (status ready = set_up(); !ready) return ready.error();
  check(engine_ != nullptr, "a manager is set up and has no engine");
  return engine_.get();
}

result<core_options> manager::plan_engine() {
  if (status valid = options_.validate(); !valid) return valid.error();
  if (driver_->feature_set().contents_stay) {
    return refuse(
        errc::not_supported,
        "the backend keeps contents at their addresses (VMM_CUDA_MEMORY=plain): blocks of "
        "a manager could not move; only a stream_pool works there");
  }
  if (options_.contents != contents_rule::none && !driver_->feature_set().copy)
    return refuse(errc::not_supported, "memory_options::contents: this backend cannot fill memory");
  physical_request like;
  like.shareable = options_.shareable;
  like.compressible = options_.compressible;
  like.rdma_capable = options_.rdma_capable;
  // The smallest and a large one: every piece may then stand at any place.
  constexpr std::array<std::uint64_t, 2> sizes_bytes{1, std::uint64_t{1} << 30};
  const result<core_plan> plan = plan_core(*driver_, options_, like, sizes_bytes);
  if (!plan) return plan.error();
  const std::uint64_t unit_bytes = plan->unit.recommended_bytes;
  if (!std::has_single_bit(unit_bytes))
    return refuse(errc::not_supported, "the device's granularity is not a power of two");
  const policy& rules = options_.rules;
  if (rules.chunk_bytes % unit_bytes != 0) {
    return refuse(errc::bad_option,
                  "policy::chunk_bytes (VMM_CHUNK_SIZE) is a multiple of the device's granularity, "
                  "or 0 for no chunks");
  }
  core_options options = plan->options;
  options.physical.granularity_bytes = unit_bytes;
  options.physical.fragment_ratio = rules.fragment_ratio;
  options.physical.chunk_bytes = rules.chunk_bytes;
  options.physical.reuse_while_mapped = driver_->feature_set().alias != alias_level::none;
  options.reservation.granularity_bytes = unit_bytes;
  // Every range is a multiple of the chunk, so that any cached chunk serves any request.
  check(options.physical.like.where == options_.placement.value_or(driver_->home()),
        "memory is planned where the options do not say");
  unit_bytes_ = std::max(unit_bytes, rules.chunk_bytes);
  check(unit_bytes_ % unit_bytes == 0, "a chunk is no whole granules");
  place_bytes_ = unit_bytes;
  return options;
}

manager::~manager() {
  relief_.leave();
  top_.end();
  users_.check_destroyed();
  if (engine_ == nullptr) return;
  status closed = refuse_forked();
  if (made_in_.is_here()) {
    report_live();
    closed = close_core(engine_->core(), [this] { return empty(); });
  }
  check(closed || closed.error().code != errc::none, "a manager is left open without a reason");
  if (closed) return;
  if (!made_in_.is_here()) {  // or forked while it closed
    leave_behind(engine_.release());
    return;
  }
  report_unclosed("manager", closed.error());
  (void)engine_.release();
}

void manager::report_live() noexcept {
  if (options_.at_end.hook == nullptr) return;
  check(engine_ != nullptr, "a manager that is not set up has live blocks");
  const std::uint64_t count = engine_->records().size();
  if (count == 0) return;
  const std::uint64_t size_bytes = engine_->records().totals().user_bytes;
  options_.at_end.hook(options_.at_end.context, {"manager", count, size_bytes});
}

// Ends every block, live or cached, and unmaps all that is retired.
status manager::empty() {
  if (!made_in_.is_here()) return refuse_forked();
  for (address first = engine_->records().lowest(); first; first = engine_->records().lowest()) {
    const result<block*> claimed = claim(first);
    if (!claimed) return claimed.error();
    const result<ticket_ref> last_use = end_use(**claimed, 0);
    check((*claimed)->base == first, "another block is freed than the lowest");
    const status gone = last_use ? engine_->dissolve(**claimed, *last_use) : last_use.error();
    if (!gone) {
      engine_->records().unclaim(**claimed);
      return gone;
    }
  }
  for (block* cached = cache_.take_largest(); cached != nullptr; cached = cache_.take_largest()) {
    if (status gone = unbind(*cached); !gone) return gone;
  }
  check(engine_->records().size() == 0 && cache_.size() == 0,
        "a block is left in an empty manager");
  return engine_->empty();
}

// ---- allocate ------------------------------------------------------------------------

result<range_sizes> manager::sizes_for(std::uint64_t size_bytes, std::uint64_t growth_bytes) const {
  if (size_bytes == 0) return refuse(errc::invalid_argument, "a size of 0 bytes is not allocated");
  if (size_bytes > size_bytes_max || growth_bytes > size_bytes_max) {
    return refuse(errc::invalid_argument, "the size is larger than any address space");
  }
  check(unit_bytes_ > 0, "sizes are asked for before the granularity is known");
  const std::uint64_t mapped_bytes = round_up(size_bytes, unit_bytes_);
  check(mapped_bytes >= size_bytes && mapped_bytes % unit_bytes_ == 0,
        "a size was rounded wrongly");
  return range_sizes{size_bytes, mapped_bytes, mapped_bytes + round_up(growth_bytes, unit_bytes_)};
}

result<address> manager::allocate(const allocate_request& request) {
  if (status ready = set_up(); !ready) return ready.error();
  if (suspension_.load(std::memory_order_acquire) != suspension_phase::running)
    return memory_suspended;
  if (driver_->feature_set().is_per_thread(request.stream)) return per_thread_stream;
  const result<range_sizes> sizes = sizes_for(request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  const std::uint64_t alignment_bytes = request.alignment_bytes;
  if (alignment_bytes != 0 && !std::has_single_bit(alignment_bytes))
    return refuse(errc::invalid_argument, "an alignment is a power of two");
  if (alignment_bytes > size_bytes_max)
    return refuse(errc::invalid_argument, "an alignment is at most 2^56 bytes, as a size is");
  check(sizes->user_bytes <= sizes->mapped_bytes && sizes->mapped_bytes <= sizes->reserved_bytes,
        "the sizes of a block to be contradict one another");
  const block_request wanted{*sizes, alignment_bytes, request.stream};
  const std::uint64_t mark = creation_mark();
  const result<address> at = allocate_checked(wanted);
  return at ? at : end_failed(mark, request.size_bytes, at.error());
}

result<address> manager::allocate_checked(const block_request& wanted) {
  const creation what{wanted.sizes.mapped_bytes, 0};
  check(what.size_bytes % unit_bytes_ == 0, "a request has no whole granules");
  result<block*> made = nullptr;
  if (const status fits = check_can_fit(what); !fits) {
    made = fits.error();
  } else {
    engine_->reap(reap_count);
    engine_->memory().release_exported();
    made = create_memory(what, [&] { return obtain(wanted); });
  }
  if (!made) {
    note_failure(wanted, made.error());
    return made.error();
  }
  if (status finished = finish_made(**made); !finished) return finished.error();
  const address at = (*made)->base;
  (*made)->number = counts_.allocated_count.fetch_add(1, std::memory_order_relaxed) + 1;
  check(at && (*made)->claimed, "a block is at no address, or not its maker's");
  check_made(**made, wanted);
  note_block(history_kind::allocated, **made);
  engine_->records().unclaim(**made);
  return at;
}

result<address> manager::allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                                  stream_handle stream) {
  if (!std::has_single_bit(alignment_bytes))
    return refuse(errc::invalid_argument, "an alignment is a power of two");
  return allocate(allocate_request{
      .size_bytes = size_bytes, .alignment_bytes = alignment_bytes, .stream = stream});
}

// What a caller is handed is what he asked for.
void manager::check_made(const block& made, const block_request& wanted) const noexcept {
  check(made.sizes.user_bytes == wanted.sizes.user_bytes, "a block is not as large as asked for");
  check(made.sizes.mapped_bytes == wanted.sizes.mapped_bytes,
        "a block has not the memory asked for");
  check(made.sizes.reserved_bytes >= wanted.sizes.reserved_bytes,
        "a block has less room than asked");
  check(made.base.value % std::max(wanted.alignment_bytes, place_bytes_) == 0,
        "a block is not aligned as asked for");
  check(made.stream == wanted.stream && made.has_memory && made.locked_count == 0,
        "a block is another stream's, or has no memory");
}

// A tracked and claimed block: a cached range where the policy allows it, else a new one.
result<block*> manager::obtain(const block_request& request) {
  const policy& rules = options_.rules;
  check(request.sizes.mapped_bytes > 0 && request.sizes.mapped_bytes % unit_bytes_ == 0,
        "a request has no whole granules");
  const bool plain = request.alignment_bytes <= place_bytes_ &&
                     request.sizes.reserved_bytes == request.sizes.mapped_bytes;
  if (rules.on_free == free_rule::unmap || !plain) return build(request);
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
  return build(request);
}

// No range that is cached serves.
result<block*> manager::build(const block_request& request) {
  const address_range wanted{{}, request.sizes.mapped_bytes};
  note({history_kind::grow, wanted, request.stream});
  result<block*> built = engine_->build(request);
  const address at = built ? (*built)->base : address{};
  check(!built || at, "a block is built at no address");
  note({history_kind::served, {at, wanted.size_bytes}, request.stream});
  return built;
}

result<block*> manager::reuse_exact(block& cached, const block_request& request) {
  if (status ordered = engine_->order(request.stream, cached); !ordered) {
    cache_.put(cached);
    return ordered.error();
  }
  check(cached.sizes.mapped_bytes == request.sizes.mapped_bytes,
        "a cached range is of another size");
  cached.sizes.user_bytes = request.sizes.user_bytes;
  cached.alignment_bytes = request.alignment_bytes;
  cached.stream = request.stream;
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  check(cached.claimed, "a cached range is not its maker's");
  counts_.reused_range_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

result<block*> manager::grow_cached(block& cached, const block_request& request) {
  check(cached.sizes.mapped_bytes < request.sizes.mapped_bytes, "a cached range is large enough");
  if (status ordered = engine_->order(request.stream, cached); !ordered) {
    cache_.put(cached);
    return ordered.error();
  }
  const stream_handle old_stream = std::exchange(cached.stream, request.stream);
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const resize_plan plan{request.sizes, request.stream, cached.last_use, true};
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
  check(cached.sizes.mapped_bytes == request.sizes.mapped_bytes, "a range grew to another size");
  cached.alignment_bytes = request.alignment_bytes;
  counts_.grown_range_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

// Back into the cache, as it was.
void manager::uncache_failed(block& cached) noexcept {
  check(cached.claimed && cached.has_memory, "a range goes back to the cache without its memory");
  engine_->records().erase(cached);
  check(!cached.claimed && !cached.linked, "a range goes back to the cache and stays tracked");
  cache_.put(cached);
}

// Takes a cached range apart: its pieces move on, its addresses wait for its last use.
status manager::unbind(block& cached) {
  check(!cached.linked && !cached.claimed, "a range is taken apart that is in use");
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const ticket_ref last_use = cached.last_use;
  status gone = engine_->dissolve(cached, last_use);
  if (!gone) uncache_failed(cached);
  return gone;
}

// ---- free ----------------------------------------------------------------------------

result<block*> manager::claim(address at, pinned_record pinned) {
  if (!made_in_.is_here()) return refuse_forked();
  if (!is_set_up_.load(std::memory_order_acquire)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager, which has not allocated anything");
  }
  const result<tracked_range*> claimed = engine_->records().claim(at, pinned);
  if (claimed) {
    check((*claimed)->claimed && (*claimed)->base == at, another_block);
    debug_check([&] { return engine_->space().contains(at); }, "a block lies in no reservation");
    return &block_of(**claimed);
  }
  if (claimed.error().code == errc::not_allocated && !engine_->space().contains(at)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager: free it where it was allocated");
  }
  return claimed.error();
}

status manager::free(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  check((*claimed)->claimed && (*claimed)->base == at, another_block);
  const result<ticket_ref> last_use = end_use(**claimed, 0);
  if (last_use) return free_after(**claimed, *last_use);
  engine_->records().unclaim(**claimed);
  return last_use.error();
}

// A point behind the work of the block's stream and behind the fill of its bytes from `from_bytes`
// on, which go. Without `is_named` no caller names the stream.
result<ticket_ref> manager::end_use(block& used, std::uint64_t from_bytes, bool is_named) {
  check(used.claimed, "a block's use ends without a claim");
  timeline& time = engine_->time();
  const bool is_filled =
      clears_on_release() && used.sizes.user_bytes != 0 && from_bytes < used.sizes.mapped_bytes;
  if (!is_filled) return record_use(used.stream, is_named);
  const result<stream_handle> filler = choose_filler(used.stream, is_named);
  if (!filler) return filler.error();
  if (status filled = fill_released(used, from_bytes, *filler); !filled) return filled.error();
  return time.mark(*filler);
}

// The stream that fills behind the work of `stream`: the default stream, ordered behind all work,
// where `stream` may have been destroyed.
result<stream_handle> manager::choose_filler(stream_handle stream, bool is_named) {
  check(options_.contents != contents_rule::none, "a fill is planned where nothing is filled");
  timeline& time = engine_->time();
  if (is_named || time.may_name(stream)) return stream;
  constexpr stream_handle filler = stream_handle::default_stream;
  const result<ticket_ref> last_use = time.mark_unnamed(stream);
  if (!last_use) return last_use.error();
  check(last_use->get() == nullptr || !last_use->known_passed(), "a new point has passed");
  if (status ordered = time.order(filler, *last_use); !ordered) return ordered.error();
  return filler;
}

status manager::free(address at, stream_handle last_use) {
  if (driver_->feature_set().is_per_thread(last_use)) return per_thread_stream;
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  check((*claimed)->claimed && (*claimed)->base == at, another_block);
  // The block's own stream has been ordered behind the earlier users of its pieces; this one not.
  status ordered = engine_->order(last_use, **claimed);
  if (ordered) ordered = fill_released(**claimed, 0, last_use);
  if (ordered) {
    const result<ticket_ref> marked = engine_->time().mark(last_use);
    if (marked) return free_after(**claimed, *marked);
    ordered = marked.error();
  }
  engine_->records().unclaim(**claimed);
  return ordered;
}

void manager::deallocate(address at, std::uint64_t, std::uint64_t, stream_handle stream) noexcept {
  status freed = free(at, stream);
  if (!freed && freed.error().code == errc::in_use) {
    // Who suspends the manager or gives rights claims every block for a while, which is no mistake
    // of this one's owner.
    const sync::lock_guard<sync::recursive_mutex> changing(changing_mutex_);
    const sync::lock_guard<sync::mutex> giving(peers_mutex_);
    freed = free(at, stream);
  }
  if (freed) return;
  check(!is_wrong_address(freed.error().code),
        "deallocate of an address that is no live block of this manager, or on a stream that is "
        "not there");
  check(freed.error().code != errc::in_use,
        "deallocate of a block that another thread is changing or freeing, that is exported, or "
        "that is a segment of a growable range");
}

status manager::free_idle(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  check((*claimed)->claimed && (*claimed)->base == at, another_block);
  if (clears_on_release()) {  // which is work of its own
    engine_->records().unclaim(**claimed);
    return free(at);
  }
  return free_after(**claimed, ticket_ref{});
}

status manager::free_after(block& gone, const ticket_ref& last_use) {
  // A reused range that its stream never touched may be freed before the work of its previous user
  // has finished.
  check(gone.linked, "a block is freed that is not tracked");
  const bool is_older = last_use.known_passed() && !gone.last_use.known_passed();
  check(gone.claimed, "a block is freed without a claim");
  check(gone.pin_count == 0, "a block is freed that is exported");
  const ticket_ref until = is_older ? gone.last_use : last_use;
  note_block(history_kind::freed, gone);
  const bool whole =
      gone.has_memory && gone.sizes.user_bytes > 0 && gone.locked_count == 0 && !gone.is_suspended;
  const bool plain = gone.sizes.reserved_bytes == gone.sizes.mapped_bytes;
  // A range is reused behind one ticket. Memory that was shared may still be in use by the block it
  // was shared with, which has a ticket of its own: only unmapping everywhere waits for both.
  if (options_.rules.on_free == free_rule::keep_mapped && whole && plain &&
      gone.own_rights == nullptr && !engine_->was_shared(gone) &&
      !engine_->memory().any_exported(gone.memories)) {
    gone.last_use = until;
    engine_->records().erase(gone);
    check(!gone.linked && !gone.claimed, "a freed block is still tracked");
    cache_.put(gone);
    return {};
  }
  status dissolved = engine_->dissolve(gone, until);
  if (!dissolved) {
    note_block(history_kind::allocated, gone);
    engine_->records().unclaim(gone);
  }
  engine_->memory().release_exported();
  return dissolved;
}

// ---- resize --------------------------------------------------------------------------

result<address> manager::resize(const resize_request& request) {
  const result<block*> claimed = claim(request.at);
  if (!claimed) return claimed.error();
  engine_->reap(reap_count);
  const std::uint64_t before_bytes = (*claimed)->sizes.mapped_bytes;
  const std::uint64_t mark = creation_mark();
  result<address> at = resize_claimed(**claimed, request);
  const bool is_same = at && *at == request.at && (*claimed)->sizes.mapped_bytes == before_bytes;
  if (is_same) note_changed(**claimed, request.at);  // the engine has told nobody
  if (at && recorder_) note_footprint();
  if (!at) note_resize_failed(request, (*claimed)->stream, at.error());
  check(!at || *at == (*claimed)->base, "a block is not where its caller is told");
  check(request.may_move || (*claimed)->base == request.at, "a block has moved that may not");
  engine_->records().unclaim(**claimed);
  if (!at) at = end_failed(mark, request.size_bytes, at.error());
  return at;
}

result<address> manager::resize_claimed(block& resized, const resize_request& request) {
  const result<range_sizes> sizes = sizes_for(request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  check(resized.claimed && resized.base == request.at, "another block is resized than was named");
  if (resized.is_suspended) return memory_suspended;
  if (resized.sizes.user_bytes == 0) {
    return refuse(errc::invalid_argument,
                  "the block's memory has moved to another: it can only be freed");
  }
  if (status unlocked = engine_->unlock(resized); !unlocked) return unlocked.error();
  resize_plan plan{*sizes, resized.stream, ticket_ref{}, request.names_stream};
  status done;
  const range_sizes before = resized.sizes;
  if (sizes->mapped_bytes > resized.sizes.mapped_bytes) {
    done = grow(resized, request, plan);
  } else {
    const bool is_cut = sizes->mapped_bytes < resized.sizes.mapped_bytes;
    const result<ticket_ref> last_use =
        end_use(resized, is_cut ? sizes->user_bytes : resized.sizes.mapped_bytes, plan.is_named);
    if (!last_use) return last_use.error();
    // What another stream fills reaches into memory that stays.
    const bool is_filled = is_cut && clears_on_release();
    if (is_filled && !plan.is_named && !engine_->time().may_name(resized.stream)) {
      if (status waited = engine_->time().wait(*last_use); !waited) return waited.error();
    }
    plan.last_use = *last_use;
    done = engine_->shrink(resized, plan);
  }
  if (!done) return done.error();
  (void)engine_->refresh_rights(resized);  // what the driver refuses now, a later call tries again
  if (status filled = fill_grown(resized, before, plan.is_named); !filled) return filled.error();
  check(resized.sizes.user_bytes == request.size_bytes, "a block is not as large as asked for");
  check(resized.sizes.mapped_bytes >= request.size_bytes, "a block has less memory than bytes");
  return resized.base;
}

status manager::grow(block& grown, const resize_request& request, resize_plan plan) {
  check(plan.sizes.mapped_bytes > grown.sizes.mapped_bytes, "a block grows to no more than it is");
  resize_plan in_place = plan;
  in_place.sizes.reserved_bytes = std::max(plan.sizes.mapped_bytes, grown.sizes.reserved_bytes);
  const creation what{plan.sizes.mapped_bytes - grown.sizes.mapped_bytes, 0};
  if (status fits = check_can_fit(what); !fits) return fits;
  const status done = create_memory(what, [&] { return engine_->grow_in_place(grown, in_place); });
  check(!done || grown.sizes.mapped_bytes == plan.sizes.mapped_bytes,
        "a block grew to another size than asked for");
  if (done || done.error().code != errc::out_of_addresses || !request.may_move) return done;
  if (options_.contents != contents_rule::none) {
    return refuse(
        errc::out_of_addresses,
        "memory_options::contents: a block that is filled grows in place only; leave room "
        "behind it (allocate_request::growth_bytes)");
  }
  const result<ticket_ref> last_use = record_use(grown.stream, request.names_stream);
  if (!last_use) return last_use.error();
  check(grown.claimed && grown.base == request.at, another_block);
  plan.last_use = *last_use;
  return create_memory(what, [&] { return engine_->move(grown, plan); });
}

// ---- what the host must be behind ----------------------------------------------------

// Nothing is known of a stream but its number, in tickets that other threads look at: all that were
// made so far are taken for another stream's.
void manager::forget(stream_handle) noexcept {
  if (is_set_up_.load(std::memory_order_acquire)) engine_->time().begin_era();
}

status manager::settle(address at) {
  const result<block*> claimed = claim(at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  check((*claimed)->base == at, another_block);
  note({history_kind::blocked, {}, (*claimed)->stream});
  const status settled =
      (*claimed)->is_suspended ? status{memory_suspended}
      : (*claimed)->sizes.user_bytes == 0
          ? refuse(errc::invalid_argument, "the block's memory is gone: it can only be freed")
          : engine_->settle(**claimed);
  note({history_kind::passed, {}, (*claimed)->stream});
  engine_->records().unclaim(**claimed);
  return settled;
}

result<ticket_ref> manager::mark(stream_handle stream) {
  if (status ready = set_up(); !ready) return ready.error();
  return engine_->time().mark(stream);
}

status manager::wait(const ticket_ref& point) {
  if (!made_in_.is_here()) return refuse_forked();
  if (point.known_passed()) return {};
  check(engine_ != nullptr, "a point is waited for that is not this manager's");
  note({history_kind::blocked});
  const status waited = engine_->time().wait(point);
  note({history_kind::passed});
  return waited;
}

// ---- copy ----------------------------------------------------------------------------

status manager::copy(const copy_request& request, copy_mode mode) {
  if (status ready = set_up(); !ready) return ready;
  if (request.size_bytes == 0) return {};
  if (mode == copy_mode::copy || request.target == request.source) return real_copy(request);
  const std::uint64_t mark = creation_mark();
  status remapped = remap_copy(request, mode);
  if (!remapped) remapped = end_failed(mark, request.size_bytes, remapped.error());
  if (remapped || remapped.error().code == errc::device_lost) return remapped;
  const status copied = real_copy(request);
  const bool cannot = !copied && copied.error().code == errc::not_supported;
  return cannot ? remapped : copied;
}

// Does the copy by remapping. An error but device_lost means that nothing has changed.
status manager::remap_copy(const copy_request& request, copy_mode mode) {
  check(engine_ != nullptr && request.target != request.source, "a block is copied onto itself");
  const result<tracked_range*> target = engine_->records().claim(request.target);
  if (!target) return target.error();
  const result<tracked_range*> source = engine_->records().claim(request.source);
  check(!source || *source != *target, "one block is claimed twice");
  status shown = source ? remap_claimed(block_of(**target), block_of(**source), request, mode)
                        : status{source.error()};
  if (shown) {
    const block& to = block_of(**target);
    note({history_kind::remapped,
          {to.base, to.sizes.mapped_bytes},
          request.stream,
          request.source.value});
    if (recorder_) note_footprint();
  }
  if (source) engine_->records().unclaim(**source);
  engine_->records().unclaim(**target);
  if (shown) counts_.remapped_copy_count.fetch_add(1, std::memory_order_relaxed);
  return shown;
}

status manager::remap_claimed(block& target, block& source, const copy_request& request,
                              copy_mode mode) {
  constexpr const char* why = "the copy is not one of whole, idle blocks";
  check(target.claimed && source.claimed && mode != copy_mode::copy,
        "memory changes hands without a claim, or where bytes are to be copied");
  if (!remap_fits(target, source, request)) return refuse(errc::not_supported, why);
  if (engine_->is_shared(source)) return refuse(errc::not_supported, why);
  // Everything that the streams concerned were given must have finished: the target's addresses
  // change hands now.
  for (const stream_handle stream : {request.stream, target.stream, source.stream}) {
    const result<ticket_ref> last_use =
        engine_->time().mark_unnamed(stream, stream == request.stream);
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
  check(&target != &source, "a block is copied onto itself");
  check(request.size_bytes > 0, "no byte is to be copied");
  if (target.is_suspended || source.is_suspended) return false;
  return !clears_on_release() && request.size_bytes == source.sizes.user_bytes &&
         target.sizes.user_bytes >= source.sizes.user_bytes &&
         target.sizes.mapped_bytes >= source.sizes.mapped_bytes && target.has_memory &&
         source.has_memory && target.locked_count == 0 && source.locked_count == 0;
}

status manager::real_copy(const copy_request& request) {
  check(request.size_bytes > 0, "no byte is to be copied");
  for (const address at : {request.target, request.source}) {
    if (engine_->space().contains(at) && !engine_->records().covers({at, request.size_bytes})) {
      return refuse(errc::not_allocated,
                    "the copy reaches outside the allocation that its address lies in");
    }
    if (engine_->records().is_suspended(at)) return memory_suspended;
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
  check(!found || (found->base <= at && found->sizes.mapped_bytes <= found->sizes.reserved_bytes),
        "a block is found that the address is not in");
  if (found || found.error().code != errc::not_allocated || engine_->space().contains(at))
    return found;
  return refuse(errc::unknown_address, "the address is not of this manager");
}

// ---- exports -------------------------------------------------------------------------

result<exported_range> manager::begin_export(address at, export_rule rule, std::uint64_t number) {
  const result<block*> claimed = claim(at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  block& given = **claimed;
  const bool is_other = number != 0 && given.number != number;
  result<exported_range> made =
      is_other ? result<exported_range>{refuse(errc::not_allocated,
                                               "the block was freed: another lies at its address")}
               : describe_export(given);
  check(given.base == at, "another block is exported");
  if (made) {
    check(made->parts.size() == given.memories.size(), "a part of an exported block is missing");
    engine_->memory().mark_exported(given.memories);
    if (rule == export_rule::pinned) {
      engine_->records().pin(given);
      note_pin(history_kind::pinned, given);
    }
  }
  engine_->records().unclaim(given);
  return made;
}

result<exported_range> manager::describe_export(block& given) {
  check(given.claimed, "a block is exported that nobody claimed");
  if (given.is_suspended) return memory_suspended;
  if (given.sizes.user_bytes == 0 || given.memories.empty()) {
    return refuse(errc::invalid_argument,
                  "the block's memory has moved to another: it can only be freed");
  }
  if (options_.shareable == share_kind::none) {
    return refuse(errc::not_supported,
                  "the manager's memory cannot be shared: set manager_options::shareable");
  }
  if (status unlocked = engine_->unlock(given); !unlocked) return unlocked.error();
  exported_range made{given.base,  given.sizes.mapped_bytes, options_.shareable, {}, {},
                      given.number};
  const result<physical_properties> granted =
      driver_->get_properties(given.memories.front()->handle);
  if (!granted) return granted.error();
  check(made.size_bytes >= given.sizes.user_bytes, "less is exported than the user asked for");
  made.granted = *granted;
  try {
    made.parts.reserve(given.memories.size());
    for (const physical_memory* part : given.memories)
      made.parts.push_back({part->handle, part->size_bytes});
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for the list of handles");
  }
  return made;
}

status manager::end_export(address at) {
  const result<block*> claimed = claim(at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  check((*claimed)->base == at, another_block);
  const bool pinned = (*claimed)->pin_count != 0;
  if (pinned) {
    engine_->records().unpin(**claimed);
    note_pin(history_kind::unpinned, **claimed);
  }
  engine_->records().unclaim(**claimed);
  return pinned ? status{} : status{refuse(errc::invalid_argument, "the block is not exported")};
}

namespace {

// In address order.
bool are_disjoint(const std::vector<extent_info>& listed) {
  const auto overlap = [](const extent_info& a, const extent_info& b) {
    return a.where.end() > b.where.base;
  };
  return std::adjacent_find(listed.begin(), listed.end(), overlap) == listed.end();
}

}  // namespace

status manager::drain_ranges(std::uint64_t limit_bytes) {
  for (std::size_t left = cache_.size(); left > 0 && cache_.size_bytes() > limit_bytes; --left) {
    block* const largest = cache_.take_largest();
    if (largest == nullptr) return {};
    check(largest->sizes.mapped_bytes > 0, "a cached range has no memory");
    if (status unbound = unbind(*largest); !unbound) return unbound;
  }
  return {};
}

trim_report manager::trim(std::uint64_t limit_bytes) {
  if (!made_in_.is_here()) return {.failure = refuse_forked()};
  if (!is_set_up_.load(std::memory_order_acquire)) return {};
  const trim_report report = give_back(limit_bytes);
  check(report.released_count != 0 || report.released_bytes == 0, "bytes went back in no handle");
  if (recorder_) {
    if (report.released_bytes != 0) note({history_kind::trimmed, {{}, report.released_bytes}});
    note_footprint();
  }
  return report;
}

// What another thread is just giving back has gone when this returns: nobody who is short of memory
// misses it.
trim_report manager::give_back(std::uint64_t limit_bytes) {
  const sync::lock_guard<sync::mutex> releasing(release_mutex_);
  engine_->reap_all();
  const status drained = drain_ranges(limit_bytes);
  check(drained || drained.error().code != errc::none, "ranges stay cached without a reason");
  const std::uint64_t kept_bytes = cache_.size_bytes();
  engine_->reap_all();
  trim_report report =
      engine_->memory().trim(limit_bytes > kept_bytes ? limit_bytes - kept_bytes : 0);
  if (!drained && report.failure.code == errc::none) report.failure = drained.error();
  return report;
}

// After the driver has refused memory: creating many pieces in vain takes long.
bool manager::relieve(recovery& so_far) {
  check(so_far.what.size_bytes != 0, "memory is short for no request");
  do {
    if (!relieve_once(so_far)) return false;
  } while (!engine_->memory().may_have(so_far.what));
  return true;
}

bool manager::relieve_once(recovery& so_far) {
  check(so_far.drains_left >= 0 && so_far.drains_left <= recovery_attempts,
        "memory is drained too often");
  if (so_far.drains_left > 0) {
    --so_far.drains_left;
    (void)give_back(0);
    return true;
  }
  if (so_far.pass != nullptr) {
    check(!so_far.pass->has_stopped, "an attempt stops twice");
    so_far.pass->has_stopped = true;
    return false;
  }
  if (!options_.wait_when_short) return false;
  note({history_kind::blocked});
  const bool has_reaped = engine_->reap_waiting();
  note({history_kind::passed});
  if (!has_reaped) return false;
  (void)release_memory(0);
  return true;
}

// ---- calls that fail -----------------------------------------------------------------

std::uint64_t manager::creation_mark() const noexcept {
  return is_set_up_.load(std::memory_order_acquire) ? engine_->memory().creation_mark() : 0;
}

status manager::check_can_fit(const creation& what) {
  check(what.size_bytes > 0, "room is looked for that takes nothing");
  check(engine_ != nullptr, "room is looked for before a manager is set up");
  physical_pool& memory = engine_->memory();
  const std::uint64_t device_bytes = options_.spill ? 0 : memory.device_bytes(what.size_bytes);
  if (options_.budget_bytes == 0 && device_bytes == 0) return {};
  // Of memory that was shown at two addresses the blocks do not say how much it is.
  const bool is_known = counts_.remapped_copy_count.load(std::memory_order_relaxed) == 0;
  const std::uint64_t live_bytes = is_known ? engine_->records().totals().mapped_bytes : 0;
  const auto exceeds = [&](std::uint64_t limit_bytes) {
    return limit_bytes != 0 &&
           (what.size_bytes > limit_bytes || live_bytes > limit_bytes - what.size_bytes);
  };
  if (exceeds(options_.budget_bytes)) return budget_spent;
  return exceeds(device_bytes) ? status{device_full} : status{};
}

// What was created goes back, and the error says how much there was.
error manager::end_failed(std::uint64_t mark, std::uint64_t size_bytes, const error& why) {
  check(why.code != errc::none, "a call that succeeded is taken for a failure");
  if (!is_set_up_.load(std::memory_order_acquire) || !made_in_.is_here()) return why;
  trim_report released;
  {
    const sync::lock_guard<sync::mutex> releasing(release_mutex_);
    released = engine_->memory().release_created(mark);
  }
  if (recorder_ && released.released_bytes != 0) {
    note({history_kind::trimmed, {{}, released.released_bytes}});
    note_footprint();
  }
  return with_figures(why, size_bytes);
}

error manager::with_figures(const error& why, std::uint64_t size_bytes) {
  const bool is_short = is_shortage(why.code) || why.code == errc::out_of_addresses;
  if (!is_short || why.figures.requested_bytes != 0) return why;
  check(engine_ != nullptr, "memory is short before a manager is set up");
  error told = why;
  shortage_figures& figures = told.figures;
  figures.requested_bytes = size_bytes;
  figures.footprint_bytes = engine_->memory().statistics().footprint_bytes;
  figures.largest_free_bytes =
      std::max(engine_->memory().largest_cached_bytes(), cache_.largest_bytes());
  if (why.code == errc::over_budget && options_.budget_bytes != 0) {
    figures.used_bytes = figures.footprint_bytes;
    figures.limit_bytes = options_.budget_bytes;
  } else if (why.code == errc::out_of_memory) {
    const std::optional<memory_info> device = engine_->memory().query_device();
    if (device) figures.limit_bytes = device->total_bytes;
    if (device) figures.used_bytes = device->used_bytes();
  } else if (why.code == errc::out_of_addresses) {
    const address_space_statistics space = engine_->space().statistics();
    figures.used_bytes = space.live_bytes;
    figures.limit_bytes = space.reserved_bytes;
  }
  return told;
}

// Called on other allocators' threads: see vmm.optimizer:relief.
std::uint64_t manager::give_idle_back(std::uint64_t wanted_bytes) {
  const manager_statistics now = statistics();
  const std::uint64_t idle_bytes = now.cached_memory_bytes + now.cached_range_bytes;
  check(wanted_bytes != 0, "no memory is wanted of another allocator");
  const bool can_capture = driver_->feature_set().capture;
  capture_mode before = capture_mode::relaxed;
  if (can_capture) before = driver_->exchange_capture_mode(capture_mode::relaxed);
  const trim_report given = trim(idle_bytes > wanted_bytes ? idle_bytes - wanted_bytes : 0);
  if (can_capture) (void)driver_->exchange_capture_mode(before);
  check(given.released_count != 0 || given.released_bytes == 0, "bytes went back in no handle");
  return given.released_bytes;
}

manager_statistics manager::statistics() const {
  manager_statistics numbers;
  if (!is_set_up_.load(std::memory_order_acquire) || !made_in_.is_here()) return numbers;
  numbers.live_count = engine_->records().size();
  const range_sizes live = engine_->records().totals();
  check(live.user_bytes <= live.mapped_bytes && live.mapped_bytes <= live.reserved_bytes,
        "the sizes of live blocks contradict one another");
  numbers.user_bytes = live.user_bytes;
  numbers.mapped_bytes = live.mapped_bytes;
  const physical_statistics physical = engine_->memory().statistics();
  numbers.footprint_bytes = physical.footprint_bytes;
  check(physical.peak_footprint_bytes >= physical.footprint_bytes, "more is held than ever was");
  check(physical.memory_count <= physical.created_count, "more pieces are held than were made");
  numbers.peak_footprint_bytes = physical.peak_footprint_bytes;
  numbers.cached_memory_bytes = physical.cached_bytes;
  numbers.created_count = physical.created_count;
  numbers.suspended_bytes = physical.suspended_bytes;
  numbers.reused_memory_count = physical.reused_count;
  numbers.cached_range_bytes = cache_.size_bytes();
  numbers.retired_bytes = engine_->retired().size_bytes();
  numbers.refused_unmap_count = engine_->retired().refused_count();
  const address_space_statistics space = engine_->space().statistics();
  numbers.reserved_bytes = space.reserved_bytes;
  numbers.space_live_bytes = space.live_bytes;
  check(space.live_bytes <= space.reserved_bytes, "more addresses are handed out than reserved");
  check(space.high_water_bytes <= space.reserved_bytes, "more addresses were in use than reserved");
  numbers.space_high_water_bytes = space.high_water_bytes;
  numbers.reused_range_count = counts_.reused_range_count.load(std::memory_order_relaxed);
  numbers.grown_range_count = counts_.grown_range_count.load(std::memory_order_relaxed);
  numbers.unbound_range_count = counts_.unbound_range_count.load(std::memory_order_relaxed);
  numbers.remapped_copy_count = counts_.remapped_copy_count.load(std::memory_order_relaxed);
  numbers.real_copy_count = counts_.real_copy_count.load(std::memory_order_relaxed);
  numbers.recovery_count = counts_.recovery_count.load(std::memory_order_relaxed);
  return numbers;
}

result<std::vector<extent_info>> manager::extents() {
  if (!made_in_.is_here()) return refuse_forked();
  std::vector<extent_info> listed;
  if (!is_set_up_.load(std::memory_order_acquire)) return listed;
  try {
    // Handed out but neither live nor cached: retired.
    engine_->space().visit([&listed](address_range where, bool is_live) {
      listed.push_back({where, 0, is_live ? extent_kind::retired : extent_kind::hole});
    });
    const auto by_base = [](const extent_info& a, const extent_info& b) {
      return a.where.base < b.where.base;
    };
    std::sort(listed.begin(), listed.end(), by_base);
    debug_check([&] { return are_disjoint(listed); }, "two extents overlap");
    const auto mark = [&](const tracked_range& range, extent_kind kind) {
      const extent_info wanted{{range.base, 0}, 0, kind};
      const auto found = std::lower_bound(listed.begin(), listed.end(), wanted, by_base);
      if (found == listed.end() || found->where.base != range.base) return;
      check(range.sizes.mapped_bytes <= range.sizes.reserved_bytes,
            "more is mapped than is reserved");
      found->kind = kind;
      // What another thread has changed since the addresses were listed is as listed.
      found->mapped_bytes = std::min(range.sizes.mapped_bytes, found->where.size_bytes);
    };
    engine_->records().visit(
        [&mark](const tracked_range& range) { mark(range, extent_kind::live); });
    cache_.visit([&mark](const block& cached) { mark(cached, extent_kind::cached); });
    while (!listed.empty() && listed.back().kind == extent_kind::hole) listed.pop_back();
    check(listed.empty() || !listed.back().where.empty(), "an extent has no addresses");
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for the list of extents");
  }
  return listed;
}

// For vmm-top, from a thread of its own.
void manager::sample(top_sample& out) const noexcept {
  const manager_statistics now = statistics();
  check(out.footprint_bytes == 0 && out.live_bytes == 0,
        "a sample is taken into one that is in use");
  out.kind = top_kind::manager;
  out.set_names(options_.rules.name, driver_->name());
  out.footprint_bytes = now.footprint_bytes;
  out.peak_footprint_bytes = now.peak_footprint_bytes;
  out.live_bytes = now.mapped_bytes;
  out.free_bytes = now.cached_memory_bytes + now.cached_range_bytes;
  out.reserved_bytes = now.reserved_bytes;
  out.budget_bytes = options_.budget_bytes;
  out.live_count = now.live_count;
  out.grown_count = now.created_count;
}

status manager::validate() const {
  if (!made_in_.is_here()) return refuse_forked();
  if (!is_set_up_.load(std::memory_order_acquire)) return {};
  check(engine_ != nullptr, "a manager is set up and has no engine");
  if (status valid = engine_->validate(); !valid) return valid;
  return cache_.validate();
}

}  // namespace vmm
