// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

namespace vmm {

namespace {

constexpr const char* alignment_rule = "an alignment is a power of two, of 2^31 granules at most";

// The block has the requested properties.
void check_made(const manager_base& base, const block& made, const block_request& wanted) noexcept {
  check(made.sizes.user_bytes == wanted.sizes.user_bytes,
        "a block does not have the requested size");
  check(made.sizes.mapped_bytes == wanted.sizes.mapped_bytes,
        "a block has less memory than requested");
  check(made.sizes.reserved_bytes >= wanted.sizes.reserved_bytes,
        "a block has less address space than requested");
  check(made.base.value % std::max(wanted.alignment_bytes, base.place_bytes) == 0,
        "a block does not have the requested alignment");
  check(made.stream == wanted.stream && made.has_memory && made.locked_count == 0,
        "a block is another stream's, or has no memory");
}

void report_live(const manager_base& base) noexcept {
  if (base.options.leak_hook.hook == nullptr) return;
  check(base.blocks != nullptr, "a manager that is not set up has live blocks");
  const std::uint64_t count = base.blocks->records().size();
  if (count == 0) return;
  const std::uint64_t size_bytes = base.blocks->records().totals().user_bytes;
  base.options.leak_hook.hook(base.options.leak_hook.context, {"manager", count, size_bytes});
}

}  // namespace

// ---- set-up --------------------------------------------------------------------------

status manager::set_up() {
  if (!base_.made_in.is_here()) return refuse_forked();
  if (base_.is_set_up.load(std::memory_order_acquire)) return {};
  const sync::lock_guard<sync::mutex> lock(set_up_mutex_);
  if (base_.blocks != nullptr) {
    check(base_.is_set_up.load(std::memory_order_acquire),
          "an engine is there before it is set up");
    return {};
  }
  const result<core_options> plan = plan_engine();
  if (!plan) return plan.error();
  if (status attached = history_.attach(); !attached) return attached;
  base_.blocks.reset(new (std::nothrow) engine(base_.driver, *plan, &history_));
  if (base_.blocks == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for the manager");
  check(base_.unit_bytes > 0 && base_.unit_bytes % base_.place_bytes == 0,
        "sizes are not multiples of granules");
  shortage_.enter();
  base_.is_set_up.store(true, std::memory_order_release);
  const auto sample_of = [](const void* of, top_sample& out) noexcept {
    manager_report(static_cast<const manager*>(of)->base_).sample(out);
  };
  top_.publish({this, sample_of}, base_.options.publish);
  return {};
}

result<engine*> manager::parts() {
  if (status ready = set_up(); !ready) return ready.error();
  check(base_.blocks != nullptr, "a manager is set up and has no engine");
  return base_.blocks.get();
}

result<core_options> manager::plan_engine() {
  if (status valid = base_.options.validate(); !valid) return valid.error();
  if (base_.driver->feature_set().contents_stay) {
    return refuse(
        errc::not_supported,
        "the backend keeps contents at their addresses (VMM_CUDA_MEMORY=plain): blocks of "
        "a manager could not move; only a stream_pool works there");
  }
  if (base_.options.contents != contents_rule::none && !base_.driver->feature_set().copy)
    return refuse(errc::not_supported, "memory_options::contents: this backend cannot fill memory");
  if (status granted = check_properties(base_.options, base_.driver->feature_set()); !granted)
    return granted.error();
  physical_request like;
  like.shareable = base_.options.shareable;
  like.compressible = base_.options.compressible;
  like.rdma_capable = base_.options.rdma_capable;
  // The unit of the smallest and of a large request: any piece then fits any place.
  constexpr std::array<std::uint64_t, 2> sizes_bytes{1, std::uint64_t{1} << 30};
  const result<core_plan> plan = plan_core(*base_.driver, base_.options, like, sizes_bytes);
  if (!plan) return plan.error();
  const std::uint64_t unit_bytes = plan->unit.recommended_bytes;
  if (!std::has_single_bit(unit_bytes))
    return refuse(errc::not_supported, "the device's granularity is not a power of two");
  const manager_policy& policy = base_.options.policy;
  if (policy.chunk_bytes % unit_bytes != 0) {
    return refuse_number(
        policy.chunk_bytes,
        "manager_policy::chunk_bytes (VMM_CHUNK_SIZE) is a multiple of the device's granularity, "
        "or 0 for no chunks");
  }
  if (status fits =
          check_handle_size(*base_.driver, base_.options, policy.chunk_bytes,
                            "manager_policy::chunk_bytes (VMM_CHUNK_SIZE) is at most the device's "
                            "memory");
      !fits) {
    return fits.error();
  }
  core_options options = plan->options;
  options.physical.granularity_bytes = unit_bytes;
  options.physical.fragment_ratio = policy.fragment_ratio;
  options.physical.chunk_bytes = policy.chunk_bytes;
  options.physical.reuse_while_mapped = base_.driver->feature_set().alias != alias_level::none;
  options.reservation.granularity_bytes = unit_bytes;
  // Every range is a multiple of the chunk, so that any cached chunk serves any request.
  check(options.physical.like.where == base_.placement(), "memory is planned at a wrong location");
  base_.unit_bytes = std::max(unit_bytes, policy.chunk_bytes);
  check(base_.unit_bytes % unit_bytes == 0, "a chunk is not whole granules");
  base_.place_bytes = unit_bytes;
  return options;
}

manager::~manager() {
  shortage_.leave();
  top_.end();
  users_.check_destroyed();
  if (base_.blocks == nullptr) return;
  status closed = refuse_forked();
  if (base_.made_in.is_here()) {
    report_live(base_);
    closed = close_core(base_.blocks->core(), [this] { return empty(); });
  }
  check(closed || closed.error().code != errc::none, "a manager stays open without an error");
  if (closed) {
    base_.blocks.reset();
    return;
  }
  if (!base_.made_in.is_here()) {  // or forked while it closed
    leave_behind(base_.blocks.release());
    return;
  }
  report_unclosed("manager", closed.error());
  (void)base_.blocks.release();
}

// Ends every live or cached block, and unmaps all retired ranges.
status manager::empty() {
  if (!base_.made_in.is_here()) return refuse_forked();
  if (base_.blocks->records().size() != 0) {
    if (status ended = end_blocks(); !ended) return ended;
  }
  for (block* cached = base_.cache.take_largest(); cached != nullptr;
       cached = base_.cache.take_largest()) {
    if (status gone = ranges_.unbind(*cached); !gone) return gone;
  }
  check(base_.blocks->records().size() == 0 && base_.cache.size() == 0,
        "a block is left in an empty manager");
  return base_.blocks->empty();
}

// Waits for all work of the device: the streams of copies, and streams that other streams wait for,
// are not recorded.
status manager::end_blocks() {
  timeline& time = base_.blocks->time();
  const result<ticket_ref> all = time.cover_all();
  const bool is_covered = all || all.error().code != errc::not_supported;
  if (is_covered && !all) return all.error();
  for (address first = base_.blocks->records().lowest(); first;
       first = base_.blocks->records().lowest()) {
    const result<block*> claimed = claim_block(base_, first);
    if (!claimed) return claimed.error();
    check((*claimed)->base == first, "the freed block is not the lowest");
    const result<ticket_ref> last_use =
        is_covered ? contents_.end_use_after(**claimed, *all) : contents_.end_use(**claimed, 0);
    const status gone = last_use ? base_.blocks->dissolve(**claimed, *last_use) : last_use.error();
    if (!gone) {
      base_.blocks->records().unclaim(**claimed);
      return gone;
    }
  }
  return {};
}

// ---- allocate ------------------------------------------------------------------------

result<address> manager::allocate(const allocate_request& request) {
  if (status ready = set_up(); !ready) return ready.error();
  if (!suspension_.is_running()) return memory_suspended;
  if (status named = check_stream(base_.driver->feature_set(), request.stream); !named)
    return named.error();
  const result<range_sizes> sizes = plan_sizes(base_, request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  const std::uint64_t alignment_bytes = request.alignment_bytes;
  if (alignment_bytes != 0 && !std::has_single_bit(alignment_bytes))
    return refuse_number(alignment_bytes, alignment_rule, errc::invalid_argument);
  check(sizes->user_bytes <= sizes->mapped_bytes && sizes->mapped_bytes <= sizes->reserved_bytes,
        "the sizes of a new block disagree");
  const block_request wanted{*sizes, alignment_bytes, request.stream};
  const relaxed_capture quiet(*base_.driver);
  const std::uint64_t mark = shortage_.creation_mark();
  const result<address> at = allocate_checked(wanted);
  return at ? at : shortage_.end_failed(mark, request.size_bytes, at.error());
}

result<address> manager::allocate_checked(const block_request& wanted) {
  const creation what{wanted.sizes.mapped_bytes, 0};
  check(what.size_bytes % base_.unit_bytes == 0, "a request has no whole granules");
  result<block*> made = nullptr;
  if (const status fits = shortage_.check_can_fit(what); !fits) {
    made = fits.error();
  } else {
    base_.blocks->reap(reap_count);
    base_.blocks->memory().release_exported();
    made = shortage_.create(what, [&] { return ranges_.obtain(wanted); });
  }
  if (!made) {
    history_.note_failure(wanted, made.error());
    return made.error();
  }
  if (status finished = finish_made(**made); !finished) return finished.error();
  const address at = (*made)->base;
  (*made)->number = base_.counts.allocated_count.fetch_add(1, std::memory_order_relaxed) + 1;
  check(at && (*made)->claimed, "a block has no address, or is not claimed by its creator");
  check_made(base_, **made, wanted);
  history_.note_block(history_kind::allocated, **made);
  base_.blocks->records().unclaim(**made);
  return at;
}

result<address> manager::allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                                  stream_handle stream) {
  if (!std::has_single_bit(alignment_bytes))
    return refuse_number(alignment_bytes, alignment_rule, errc::invalid_argument);
  return allocate(allocate_request{size_bytes, 0, alignment_bytes, stream});
}

// Completes a block that has its memory; on failure frees it. The block is already tracked: a
// suspension that begins after the check of the phase finds it.
status manager::finish_made(block& made) {
  check(made.claimed, "a finished block is not claimed by its creator");
  check(made.linked, "a suspension looks for an untracked block");
  if (!suspension_.is_running()) {
    const ticket_ref last_use = made.last_use;
    if (!base_.blocks->dissolve(made, last_use)) base_.blocks->discard(made, last_use);
    return memory_suspended;
  }
  status finished = base_.blocks->refresh_rights(made);
  if (finished) finished = contents_.fill_acquired(made, 0, made.stream);
  if (finished) return finished;
  const ticket_ref last_use = made.last_use;  // behind a fill that was queued
  if (!base_.blocks->dissolve(made, last_use)) base_.blocks->discard(made, last_use);
  return finished;
}

// ---- free ----------------------------------------------------------------------------

namespace {

// A suspension, a resumption and set_peers claim every block for a while: a free waits for them.
result<block*> claim_to_free(manager_base& base, manager_suspension& suspension,
                             manager_rights& rights, address at) {
  const result<block*> claimed = claim_block(base, at);
  if (claimed || claimed.error().code != errc::in_use) return claimed;
  const manager_change_guard changing(suspension);
  if (changing.is_refused()) return claimed;
  const rank_guard giving(manager_lock::peers, rights.mutex());
  return claim_block(base, at);
}

}  // namespace

status manager::free(address at) {
  const result<block*> claimed = claim_to_free(base_, suspension_, rights_, at);
  if (!claimed) return claimed.error();
  check((*claimed)->claimed && (*claimed)->base == at,
        "the claimed block is not the requested one");
  const relaxed_capture quiet(*base_.driver);
  const result<ticket_ref> last_use = contents_.end_use(**claimed, 0);
  if (last_use) return free_after(**claimed, *last_use);
  base_.blocks->records().unclaim(**claimed);
  return last_use.error();
}

status manager::free(address at, stream_handle last_use) {
  if (status named = check_stream(base_.driver->feature_set(), last_use); !named) return named;
  const result<block*> claimed = claim_to_free(base_, suspension_, rights_, at);
  if (!claimed) return claimed.error();
  check((*claimed)->claimed && (*claimed)->base == at,
        "the claimed block is not the requested one");
  const relaxed_capture quiet(*base_.driver);
  // The block's own stream is ordered behind the earlier users of its pieces; this stream is not.
  status ordered = base_.blocks->order(last_use, **claimed);
  if (ordered) {
    const result<ticket_ref> marked = contents_.record_released(**claimed, 0, last_use);
    if (marked) return free_after(**claimed, *marked);
    ordered = marked.error();
  }
  base_.blocks->records().unclaim(**claimed);
  return ordered;
}

void manager::deallocate(address at, std::uint64_t, std::uint64_t, stream_handle stream) noexcept {
  const status freed = free(at, stream);
  if (freed) return;
  check(!is_wrong_address(freed.error().code),
        "deallocate of an address that is not a live block of this manager, or on a stream that "
        "does not exist");
  check(freed.error().code != errc::in_use,
        "deallocate of a block that another thread is changing or freeing, that is exported, or "
        "that is a segment of a growable range");
}

status manager::free_idle(address at) {
  const result<block*> claimed = claim_to_free(base_, suspension_, rights_, at);
  if (!claimed) return claimed.error();
  check((*claimed)->claimed && (*claimed)->base == at,
        "the claimed block is not the requested one");
  if (base_.contents.fills_on_release()) {  // the fill is work of its own
    base_.blocks->records().unclaim(**claimed);
    return free(at);
  }
  const relaxed_capture quiet(*base_.driver);
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
  history_.note_block(history_kind::freed, gone);
  const bool whole =
      gone.has_memory && gone.sizes.user_bytes > 0 && gone.locked_count == 0 && !gone.is_suspended;
  const bool plain = gone.sizes.reserved_bytes == gone.sizes.mapped_bytes;
  // A range is reused behind one ticket. Memory that was shared may still be in use by the block it
  // was shared with, which has a ticket of its own: only unmapping everywhere waits for both.
  if (base_.options.policy.on_free == free_rule::keep_mapped && whole && plain &&
      !gone.has_rights() && !base_.blocks->was_shared(gone) &&
      !base_.blocks->memory().any_exported(gone.memories)) {
    if (!is_older) gone.set_last_use(until);
    base_.blocks->records().erase(gone);
    check(!gone.linked && !gone.claimed, "a freed block is still tracked");
    base_.cache.put(gone);
    return {};
  }
  const bool is_filled = contents_.fills_released(gone);
  status dissolved = base_.blocks->dissolve(gone, until);
  if (!dissolved && is_filled) {  // its bytes are lost
    base_.blocks->discard(gone, until);
    dissolved = {};
  }
  if (!dissolved) {
    history_.note_block(history_kind::allocated, gone);
    base_.blocks->records().unclaim(gone);
  }
  base_.blocks->memory().release_exported();
  return dissolved;
}

// ---- what the host must be behind ----------------------------------------------------

// A ticket stores only the stream's handle, which the driver may use again, and other threads read
// tickets. A new generation makes every older ticket count as another stream's.
void manager::forget(stream_handle) noexcept {
  if (base_.is_set_up.load(std::memory_order_acquire)) base_.blocks->time().begin_generation();
}

status manager::synchronize(address at) {
  const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  check((*claimed)->base == at, "the claimed block is not the requested one");
  const relaxed_capture quiet(*base_.driver);
  history_.note({history_kind::blocked, {}, (*claimed)->stream});
  const status finished =
      (*claimed)->is_suspended ? status{memory_suspended}
      : (*claimed)->sizes.user_bytes == 0
          ? refuse(errc::invalid_argument, "the block has lost its memory: it can only be freed")
          : base_.blocks->synchronize(**claimed);
  history_.note({history_kind::passed, {}, (*claimed)->stream});
  base_.blocks->records().unclaim(**claimed);
  return finished;
}

result<ticket_ref> manager::record(stream_handle stream) {
  if (status ready = set_up(); !ready) return ready.error();
  return base_.blocks->time().record(stream);
}

status manager::wait(const ticket_ref& point) {
  if (!base_.made_in.is_here()) return refuse_forked();
  if (point.known_passed()) return {};
  check(base_.blocks != nullptr, "a wait for another manager's point");
  const relaxed_capture quiet(*base_.driver);
  history_.note({history_kind::blocked});
  const status waited = base_.blocks->time().wait(point);
  history_.note({history_kind::passed});
  return waited;
}

// ---- copy ----------------------------------------------------------------------------

status manager::copy(const copy_request& request, copy_mode mode) {
  if (status ready = set_up(); !ready) return ready;
  if (status named = check_stream(base_.driver->feature_set(), request.stream); !named)
    return named;
  if (request.size_bytes == 0) return {};
  if (mode == copy_mode::copy || request.target == request.source)
    return copier_.copy_bytes(request);
  const relaxed_capture quiet(*base_.driver);
  const std::uint64_t mark = shortage_.creation_mark();
  status remapped = copier_.remap(request, mode);
  if (!remapped) remapped = shortage_.end_failed(mark, request.size_bytes, remapped.error());
  if (remapped || remapped.error().code == errc::device_lost) return remapped;
  const status copied = copier_.copy_bytes(request);
  const bool cannot = !copied && copied.error().code == errc::not_supported;
  return cannot ? remapped : copied;
}

status manager::set_peers(std::span<const access_grant> grants) {
  const status ready = set_up();
  return ready ? rights_.set_peers(grants) : ready;
}

result<history> manager_recording::take() { return of_.history_.take(); }

status manager_recording::start(const history_options& how) {
  const status ready = of_.set_up();
  return ready ? of_.history_.start(how) : ready;
}

result<history> manager_recording::stop() { return of_.history_.stop(); }

void manager_recording::record(const history_note& what) noexcept { of_.history_.record(what); }

// ---- looking -------------------------------------------------------------------------

result<range_info> manager::find(address at) {
  if (!base_.made_in.is_here()) return refuse_forked();
  if (!base_.is_set_up.load(std::memory_order_acquire)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager: it has not allocated anything");
  }
  result<range_info> found = base_.blocks->records().find(at);
  check(!found || (found->base <= at && found->sizes.mapped_bytes <= found->sizes.reserved_bytes),
        "a block is found that the address is not in");
  if (found || found.error().code != errc::not_allocated || base_.blocks->space().contains(at))
    return found;
  return refuse(errc::unknown_address, "the address is not of this manager");
}

result<std::vector<memory_segment>> manager::segments(address_range range) {
  const result<range_info> found = find(range.base);
  if (!found) return found.error();
  const result<block*> claimed = claim_block(base_, found->base, pinned_record::allowed);
  if (!claimed) return claimed.error();
  const block& of = **claimed;
  const address_range whole{of.base, of.sizes.mapped_bytes};
  std::vector<memory_segment> listed;
  status done = range.empty() || !whole.contains(range)
                    ? refuse(errc::invalid_argument, "the range is not inside one block")
                    : status{};
  if (done && of.is_suspended) done = memory_suspended;
  if (done) done = reserve_more(listed, of.memories.size());
  address at = of.base;
  for (const physical_memory* part : of.memories) {
    const address_range where{at, part->size_bytes};
    check(where.size_bytes > 0, "a piece without bytes is mapped");
    if (done && where.overlaps(range)) listed.push_back({where, part->handle});
    at = where.end();
  }
  check(at == whole.end(), "a block's pieces are not its memory");
  base_.blocks->records().unclaim(**claimed);
  if (!done) return done.error();
  check(!listed.empty(), "a range with bytes touches no piece");
  return listed;
}

status manager::validate() const {
  if (!base_.made_in.is_here()) return refuse_forked();
  if (!base_.is_set_up.load(std::memory_order_acquire)) return {};
  check(base_.blocks != nullptr, "a manager is set up and has no engine");
  if (status valid = base_.blocks->validate(); !valid) return valid;
  return base_.cache.validate();
}

}  // namespace vmm
