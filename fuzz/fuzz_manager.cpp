// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: for every sequence of calls and driver errors, every allocation of a manager keeps its
// size, address and contents, no memory is used too early, and nothing leaks. Method: the input's
// bytes are a program of at most 64 operations on the fake driver; a naive model, written from the
// documentation, has the expected live blocks and the contents of each granule. The fake ends the
// process at the first misuse.
//
// The first four bytes choose the driver's profile, the policy, the limits and the schedule.
#include <source_location>

#include "../tools/program/standard.hpp"
#include "operations.hpp"

import vmm.backend;
import vmm.base;
import vmm.fake;
import vmm.manager;

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::stream_handle;

void require(bool holds, const char* what,
             std::source_location where = std::source_location::current()) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_manager:%u: %s\n", static_cast<unsigned>(where.line()), what);
  std::abort();
}

// ---- the input

class program {
 public:
  program(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}

  [[nodiscard]] bool done() const { return bytes_.empty(); }
  [[nodiscard]] std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t next = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return next;
  }
  // 0 to count - 1
  [[nodiscard]] std::size_t pick(std::size_t count) { return count == 0 ? 0 : byte() % count; }

 private:
  std::span<const std::uint8_t> bytes_;
};

struct set_up {
  vmm::fake::profile plays;
  vmm::manager_options options;
  bool manual = false;
};

constexpr std::uint64_t device_granules = 96;

set_up choose(program& input) {
  using vmm::fake::profile;
  set_up chosen;
  const std::uint8_t driver = input.byte();
  switch (driver % 4) {
    case 0: chosen.plays = profile::cuda(); break;
    case 1: chosen.plays = profile::level_zero(); break;
    case 2: chosen.plays = profile::host(); break;
    default: chosen.plays = profile::cuda(); chosen.plays.can.alias = vmm::alias_level::none;
  }
  if ((driver & 4) != 0) chosen.plays.can.spanning_unmap = false;
  const std::uint64_t granule = chosen.plays.device_granularity.recommended_bytes;
  chosen.plays.device_memory_bytes = device_granules * granule;
  chosen.plays.host_memory_bytes = device_granules * granule;

  const std::uint8_t rules = input.byte();
  switch (rules % 3) {
    case 0: chosen.options.policy = vmm::manager_policy::va_pool(); break;
    case 1: chosen.options.policy = vmm::manager_policy::keep_mapped(); break;
    default: chosen.options.policy = vmm::manager_policy::virtual_caching();
  }
  if (chosen.options.policy.chunk_bytes != 0) chosen.options.policy.chunk_bytes = 2 * granule;
  if ((rules & 16) != 0) chosen.options.policy.fragment_ratio = 0;

  const std::uint8_t limits = input.byte();
  const std::uint64_t reservations[] = {std::uint64_t{8} << 40, 16 * granule, 64 * granule};
  chosen.options.reservation_bytes = reservations[limits % 3];
  chosen.options.budget_bytes = (limits & 16) != 0 ? 40 * granule : 0;
  chosen.options.wait_when_short = (limits & 32) == 0;
  chosen.manual = (input.byte() & 1) != 0;
  return chosen;
}

// ---- the model

// The requests to the manager, and its expected state.
struct block {
  address base{};
  std::uint64_t user_bytes = 0;
  std::size_t stream = 0;           // index into machine::streams_
  std::vector<std::uint64_t> tags;  // by granule; 0: not known
  bool is_used = false;             // some work has been given the block
  bool is_given_up = false;         // the source of a move: it may only be freed
  std::size_t serial = 0;
  std::size_t alias_group = 0;  // of blocks that may show one memory; 0: none
};

class machine {
 public:
  explicit machine(const set_up& chosen)
      : granule_(chosen.plays.home.kind == vmm::location::place::device
                     ? chosen.plays.device_granularity.recommended_bytes
                     : chosen.plays.host_granularity.recommended_bytes),
        has_streams_(chosen.plays.can.streams),
        is_manual_(chosen.manual),
        options_(chosen.options),
        driver_(chosen.plays) {
    driver_.set_misuse_fatal(true);
    if (has_streams_) {
      driver_.set_manual(is_manual_);
      for (std::size_t i = 1; i < streams_.size(); ++i) streams_[i] = *driver_.create_stream();
      event_ = *driver_.create_event();
    }
    managed_.emplace(driver_, options_);
  }

  void run(program& input);

 private:
  static constexpr std::size_t operations_max = 64;
  static constexpr std::size_t live_max = 16;
  static constexpr std::size_t host = ~std::size_t{0};  // in place of a stream

  void step(program& input);
  void allocate(program& input);
  void free_one(program& input);
  void free_wrongly(program& input);
  void resize(program& input);
  void copy(program& input);
  void trim(program& input);
  void plan_fault(program& input);
  void use_on_device(program& input);
  void let_time_pass(program& input);
  void look(program& input);
  void finish();
  void check_none_left();

  // ---- faults are planned for the manager's calls only

  template <class Operation>
  [[nodiscard]] auto under_faults(Operation&& operation) {
    const std::uint64_t before = driver_.faults_struck();
    for (const vmm::fake::fault& planned : faults_) driver_.fail(planned);
    auto outcome = operation();
    driver_.clear_faults();
    struck_ = driver_.faults_struck() != before;
    std::erase_if(faults_, [](const vmm::fake::fault& each) { return !each.forever; });
    return outcome;
  }
  template <class T>
  void require_explained(const vmm::result<T>& outcome, std::initializer_list<errc> expected) {
    if (outcome || struck_) return;
    const errc code = outcome.error().code;
    if (std::find(expected.begin(), expected.end(), code) != expected.end()) return;
    std::fprintf(stderr, "%s\n", vmm::describe(outcome.error()).c_str());
    require(false, "an error that nothing explains");
  }
  // Out of memory with nothing injected: then nothing more could have been given back.
  void require_shortage(std::uint64_t needed_bytes) {
    if (struck_ || !faults_.empty() || !options_.wait_when_short) return;
    const vmm::manager_statistics now = managed_->statistics();
    const std::uint64_t limit = options_.budget_bytes != 0
                                    ? std::min(options_.budget_bytes, device_granules * granule_)
                                    : device_granules * granule_;
    require(now.held_bytes - now.retained_bytes + needed_bytes > limit,
            "memory ran short although there was enough");
    // Refused at once, with the caches as they were: at most the live blocks' size is ever free.
    if (live_bytes(now) + needed_bytes > limit) return;
    require(now.retained_mapped_bytes == 0, "memory ran short while ranges were cached");
    require(now.retired_bytes == 0, "memory ran short while ranges waited");
  }

  // Of blocks that remapping copies have made to share memory it is not known.
  [[nodiscard]] std::uint64_t live_bytes(const vmm::manager_statistics& now) const {
    if (now.remapped_copy_count != 0) return 0;
    std::uint64_t sum_bytes = 0;
    for (const block& each : live_)
      if (!each.is_given_up) sum_bytes += rounded(each.user_bytes);
    return sum_bytes;
  }

  [[nodiscard]] std::uint64_t rounded(std::uint64_t size_bytes) const {
    const std::uint64_t unit = managed_->granularity_bytes();  // 0 while it is not set up
    return unit == 0 ? size_bytes : vmm::round_up(size_bytes, unit);
  }

  // ---- device work

  [[nodiscard]] bool is_quiet() const { return driver_.resource_counts().pending_work == 0; }
  // Later work of `after` waits for what `before` has been given.
  void order(std::size_t before, std::size_t after) {
    if (!has_streams_ || before == after) return;
    require(driver_.record_event(event_, streams_[before]).has_value(), "record_event");
    require(driver_.wait_event(streams_[after], event_).has_value(), "wait_event");
  }
  void launch(std::size_t stream, const vmm::fake::kernel& work) {
    require(driver_.launch(streams_[stream], work).has_value(), "launch");
  }
  [[nodiscard]] vmm::address_range granule_of(const block& of, std::size_t index) const {
    const std::uint64_t begin = index * granule_;
    return {of.base + begin, std::min(granule_, of.user_bytes - begin) & ~std::uint64_t{7}};
  }
  void write(block& into, std::size_t index, std::size_t stream);
  void check_on_device(block& of, std::size_t index, std::size_t stream);
  void write_from(block& into, std::size_t first);
  void check_contents(const block& of);

  // ---- live blocks

  [[nodiscard]] block* some_block(program& input) {
    return live_.empty() ? nullptr : &live_[input.pick(live_.size())];
  }
  // Whether some other live block may show the same memory.
  [[nodiscard]] bool may_share(const block& of) const {
    return of.alias_group != 0 && std::any_of(live_.begin(), live_.end(), [&of](const block& each) {
             return each.alias_group == of.alias_group && each.serial != of.serial;
           });
  }
  [[nodiscard]] bool may_write(const block& into) { return !into.is_given_up && !may_share(into); }
  // A driver that would not put things back: the block can only be freed from now on.
  void give_up_if_lost(block& of) {
    const auto info = managed_->find(of.base);
    if (!info) return;
    if (info->sizes.user_bytes == 0 && struck_) of.is_given_up = true;
  }
  void forget(const block& gone);
  void check_everything();

  const std::uint64_t granule_;
  const bool has_streams_;
  const bool is_manual_;
  const vmm::manager_options options_;
  vmm::fake_driver driver_;
  std::array<stream_handle, 3> streams_{};
  vmm::event_handle event_{};
  std::optional<vmm::manager> managed_;
  std::vector<block> live_;
  std::vector<address> dead_;
  std::vector<vmm::fake::fault> faults_;
  bool struck_ = false;
  std::uint64_t next_tag_ = 1;
  std::size_t next_serial_ = 1;
  std::size_t checked_ = 0;
  std::size_t step_count_ = 0;
};

// ---- contents

void machine::write(block& into, std::size_t index, std::size_t stream) {
  const vmm::address_range where = granule_of(into, index);
  if (where.empty()) return;
  into.tags[index] = next_tag_++;
  if (has_streams_ && !(is_quiet() && stream == host)) {
    const std::size_t on = stream == host ? into.stream : stream;
    launch(on, {.name = "write", .duration_us = 5, .writes = {&where, 1}, .tag = into.tags[index]});
    into.is_used = true;
  } else {
    require(driver_.write_tag(where, into.tags[index]).has_value(), "a live block is not writable");
  }
}

void machine::check_on_device(block& of, std::size_t index, std::size_t stream) {
  const vmm::address_range where = granule_of(of, index);
  if (where.empty() || of.tags[index] == 0) return;
  launch(stream,
         {.name = "read", .duration_us = 5, .reads = {&where, 1}, .expected = of.tags[index]});
  of.is_used = true;
}

// With nothing pending every granule from `first` on, by the host; else the outermost two.
void machine::write_from(block& into, std::size_t first) {
  if (!may_write(into)) return;
  const std::size_t count = into.tags.size();
  if (is_quiet()) {
    for (std::size_t i = first; i < count; ++i) write(into, i, host);
    return;
  }
  if (first < count) write(into, first, into.stream);
  if (first + 1 < count) write(into, count - 1, into.stream);
}

void machine::check_contents(const block& of) {
  if (of.is_given_up) return;
  for (std::size_t i = 0; i < of.tags.size(); ++i) {
    const vmm::address_range where = granule_of(of, i);
    if (where.empty()) continue;
    // Every write and every copy of a granule reaches its middle.
    for (const address at : {where.base, where.base + granule_ / 2}) {
      const auto tag = driver_.read_tag(at);
      require(tag.has_value(), "a live block cannot be read");
      require(of.tags[i] == 0 || *tag == of.tags[i], "a live block holds what was not written");
    }
  }
}

// ---- operations

void machine::allocate(program& input) {
  if (live_.size() >= live_max) return;
  vmm::allocate_request request;
  const std::uint8_t shape = input.byte();
  const std::uint64_t count = 1 + ((shape & 128) != 0 ? shape % 64 : shape % 8);
  request.size_bytes = count * granule_ - ((shape & 64) != 0 ? 24 : 0);
  const std::uint8_t more = input.byte();
  if ((more & 1) != 0) request.growth_bytes = (1 + more % 5) * granule_;
  if ((more & 2) != 0) request.alignment_bytes = granule_ << (more % 4);
  if ((more & 8) != 0) request.alignment_bytes = 512;
  const std::size_t stream = has_streams_ ? (more >> 4) % streams_.size() : 0;
  request.stream = streams_[stream];

  const auto made = under_faults([&] { return managed_->allocate(request); });
  require_explained(made, {errc::out_of_memory, errc::over_budget});
  if (!made) {
    require_shortage(rounded(request.size_bytes));
    return;
  }
  require(made->value % std::max(request.alignment_bytes, granule_) == 0, "misaligned");
  for (const block& other : live_) {
    const vmm::address_range range{other.base, other.user_bytes};
    require(!range.overlaps({*made, request.size_bytes}), "handed out twice");
  }
  block fresh;
  fresh.base = *made;
  fresh.user_bytes = request.size_bytes;
  fresh.stream = stream;
  fresh.tags.assign(count, 0);
  fresh.serial = next_serial_++;
  const auto info = managed_->find(fresh.base + (request.size_bytes - 1));
  require(info.has_value() && info->base == fresh.base, "a fresh block is not found");
  require(info->sizes.user_bytes == request.size_bytes, "another size than requested");
  require(info->sizes.reserved_bytes >= info->sizes.mapped_bytes + request.growth_bytes,
          "no room to grow");
  live_.push_back(std::move(fresh));
  if ((more & 4) == 0) write_from(live_.back(), 0);
}

void machine::forget(const block& gone) {
  dead_.push_back(gone.base);
  if (dead_.size() > 8) dead_.erase(dead_.begin());
  const std::size_t serial = gone.serial;
  std::erase_if(live_, [serial](const block& each) { return each.serial == serial; });
}

void machine::free_one(program& input) {
  block* const gone = some_block(input);
  if (gone == nullptr) return;
  const std::uint8_t how = input.byte();
  vmm::status freed;
  if (how % 4 == 1 && (is_quiet() || !gone->is_used)) {
    freed = under_faults([&] { return managed_->free_idle(gone->base); });
  } else if (how % 4 == 2 && has_streams_) {
    const std::size_t last = how / 4 % streams_.size();
    if (gone->is_used) order(gone->stream, last);
    freed = under_faults([&] { return managed_->free(gone->base, streams_[last]); });
  } else {
    freed = under_faults([&] { return managed_->free(gone->base); });
  }
  require_explained(freed, {});
  if (!freed) return;
  // An alias of its memory may be written now, after the work submitted for the freed one.
  for (const block& each : live_) {
    if (gone->alias_group != 0 && each.alias_group == gone->alias_group)
      order(gone->stream, each.stream);
  }
  forget(*gone);
}

void machine::free_wrongly(program& input) {
  const std::uint8_t how = input.byte();
  address at{4096};
  if (how % 3 == 0 && !dead_.empty()) {
    at = dead_[how / 3 % dead_.size()];
    for (const block& each : live_)
      if (each.base == at) return;  // handed out again
  } else if (how % 3 == 1 && !live_.empty()) {
    const block& inside = live_[how / 3 % live_.size()];
    at = inside.base + inside.user_bytes / 2;
    if (at == inside.base) return;
  }
  const auto freed = under_faults([&] { return managed_->free(at); });
  require(!freed, "an address that is not an allocation was freed");
  const errc code = freed.error().code;
  require(code == errc::unknown_address || code == errc::not_allocated ||
              code == errc::invalid_argument,
          "a wrong free is called something else");
}

void machine::resize(program& input) {
  block* const resized = some_block(input);
  if (resized == nullptr) return;
  const std::uint8_t shape = input.byte();
  vmm::resize_request request;
  request.at = resized->base;
  const std::uint64_t count = 1 + ((shape & 128) != 0 ? shape % 64 : shape % 12);
  request.size_bytes = count * granule_ - ((shape & 64) != 0 ? 8 : 0);
  const std::uint8_t more = input.byte();
  request.may_move = (more & 1) == 0;
  if ((more & 2) != 0) request.growth_bytes = (more >> 2) % 4 * granule_;
  request.names_stream = (more & 64) != 0;

  const vmm::range_sizes before = managed_->find(resized->base)->sizes;
  const bool is_empty = before.user_bytes == 0;
  if (resized->is_given_up && !is_empty) return;
  const auto to = under_faults([&] { return managed_->resize(request); });
  if (is_empty) {
    require(!to, "a block without contents was resized");
    return;
  }
  require_explained(to, {errc::out_of_memory, errc::over_budget, errc::out_of_addresses});
  if (!to) {
    if (!struck_ && to.error().code == errc::out_of_addresses)
      require(!request.may_move, "a block that may move did not");
    else
      require_shortage(rounded(request.size_bytes) - before.mapped_bytes);
    give_up_if_lost(*resized);
    return;
  }
  require(request.may_move || *to == request.at, "a block moved that may not");
  resized->base = *to;
  const std::size_t old_count = resized->tags.size();
  resized->user_bytes = request.size_bytes;
  resized->tags.resize(count, 0);
  if ((more & 32) == 0) write_from(*resized, std::min(old_count, count));
}

void machine::copy(program& input) {
  block* const target = some_block(input);
  block* const source = some_block(input);
  if (source == nullptr || target == source || !may_write(*target) || source->is_given_up) return;
  const std::uint8_t how = input.byte();
  const auto mode = static_cast<vmm::copy_mode>(how % 3);
  vmm::copy_request request{target->base, source->base, source->user_bytes, streams_[0]};
  if (mode == vmm::copy_mode::copy && (how & 64) != 0) {  // a part
    request.size_bytes = std::min(request.size_bytes, granule_);
  }
  const std::size_t stream = has_streams_ ? how / 4 % streams_.size() : 0;
  request.stream = streams_[stream];
  order(target->stream, stream);
  order(source->stream, stream);

  const vmm::status copied = under_faults([&] { return managed_->copy(request, mode); });
  const bool fits = request.size_bytes <= target->user_bytes;
  require_explained(copied, {errc::not_allocated});
  require(copied.has_value() || fits == false || struck_, "a copy that fits was refused");
  require(!copied || fits, "a copy reached outside its target");
  if (!copied) {
    give_up_if_lost(*target);
    give_up_if_lost(*source);
    return;
  }
  target->is_used = source->is_used = true;
  target->alias_group = 0;
  for (std::size_t i = 0; i < target->tags.size(); ++i) {
    if (i * granule_ < request.size_bytes)
      target->tags[i] = source->tags[i];
    else if (mode != vmm::copy_mode::copy)
      target->tags[i] = 0;
  }
  if (mode == vmm::copy_mode::move) source->is_given_up = true;
  if (mode == vmm::copy_mode::alias) {
    if (source->alias_group == 0) source->alias_group = next_serial_++;
    target->alias_group = source->alias_group;
  }
  // On the stream of the copy the target can be used at once.
  if (has_streams_ && (how & 128) != 0 && may_write(*target))
    write(*target, target->tags.size() - 1, stream);
  order(stream, target->stream);
  order(stream, source->stream);
}

void machine::trim(program& input) {
  const std::uint64_t limit_bytes = input.byte() % 32 * granule_;
  const vmm::trim_report report = under_faults([&] { return managed_->trim(limit_bytes); });
  if (struck_) return;
  require(report.failure.code == errc::none, "trim failed by itself");
  const vmm::manager_statistics now = managed_->statistics();
  require(now.retained_mapped_bytes <= limit_bytes,
          "more ranges are retained than the limit of trim");
  require(now.retained_bytes <=
              std::max(limit_bytes - now.retained_mapped_bytes, report.still_mapped_bytes),
          "more memory is retained than the limit of trim");
}

void machine::plan_fault(program& input) {
  static constexpr std::array kinds{
      call::create,       call::map,         call::set_access,
      call::unmap,        call::release,     call::reserve,
      call::create_event, call::query_event, call::record_event,
      call::wait_event,   call::copy,        call::synchronize_event,
      call::unmap,        call::map,         call::query_granularity,
  };
  const std::uint8_t which = input.byte();
  const std::uint8_t when = input.byte();
  if (faults_.size() >= 4) return;
  vmm::fake::fault planned;
  planned.where = kinds[which % kinds.size()];
  planned.nth = 1 + when % 6;
  planned.forever = (when & 128) != 0;
  const auto errors = driver_.possible_errors(planned.where);
  if (errors.empty()) return;
  planned.failure = errors[which / kinds.size() % errors.size()];
  faults_.push_back(planned);
}

void machine::use_on_device(program& input) {
  block* const used = some_block(input);
  const std::uint8_t how = input.byte();
  if (used == nullptr || used->is_given_up || !has_streams_) return;
  const std::size_t index = how / 8 % used->tags.size();
  std::size_t stream = used->stream;
  if ((how & 1) != 0) stream = how / 2 % streams_.size();
  order(used->stream, stream);
  if ((how & 4) != 0 && may_write(*used))
    write(*used, index, stream);
  else
    check_on_device(*used, index, stream);
  order(stream, used->stream);
}

void machine::let_time_pass(program& input) {
  const std::uint8_t how = input.byte();
  if (!has_streams_) return;
  if (!is_manual_) {
    require(driver_.advance_us(how % 32).has_value(), "advance");
  } else if (how == 255) {
    require(driver_.finish_all().has_value(), "finish_all");
  } else if (const std::size_t count = driver_.ready_count(); count > 0) {
    require(driver_.finish_ready(how % count).has_value(), "finish_ready");
  }
}

void machine::look(program& input) {
  const std::uint8_t how = input.byte();
  const auto views = managed_->extents();
  require(views.has_value(), "extents");
  std::uint64_t live_count = 0;
  address end{};
  for (const vmm::extent_info& view : *views) {
    require(view.where.base >= end, "extents out of order");
    end = view.where.end();
    if (view.kind == vmm::extent_kind::live) ++live_count;
  }
  require(live_count == live_.size(), "extents show other blocks than the live ones");
  if (live_.empty()) return;
  const block& one = live_[how % live_.size()];
  const auto info = managed_->find(one.base);
  require(info.has_value() && info->base == one.base, "a live block is not found");
  require(one.is_given_up || info->sizes.user_bytes == one.user_bytes, "another size");
}

// ---- the whole

void machine::step(program& input) {
  struck_ = false;
  switch (input.byte() % 16) {
    case 0:
    case 1:
    case 2: return allocate(input);
    case 3:
    case 4: return free_one(input);
    case 5: return free_wrongly(input);
    case 6:
    case 7:
    case 8: return resize(input);
    case 9: return copy(input);
    case 10: return trim(input);
    case 11: return plan_fault(input);
    case 12: faults_.clear(); return;
    case 13: return use_on_device(input);
    case 14: return let_time_pass(input);
    default: return look(input);
  }
}

void machine::check_everything() {
  // The validators walk over all of the address space: most of the time would go there.
  if (struck_ || step_count_++ % 4 == 0)
    require(managed_->validate().has_value(), "the manager's validators");
  const vmm::manager_statistics now = managed_->statistics();
  require(now.live_count == live_.size(), "another number of live blocks");
  require(options_.budget_bytes == 0 || now.held_bytes <= options_.budget_bytes, "over budget");
  require(now.held_bytes == driver_.resource_counts().memory_bytes,
          "held bytes that the driver has not");
  if (!is_quiet()) return;
  // One after the other on the way; all of them at the end.
  if (!live_.empty()) check_contents(live_[checked_++ % live_.size()]);
}

void machine::run(program& input) {
  for (std::size_t i = 0; i < operations_max && !input.done(); ++i) {
    step(input);
    ++operations.sum;
    check_everything();
  }
  finish();
}

void machine::finish() {
  faults_.clear();
  if (has_streams_) require(driver_.finish_all().has_value(), "finish_all");
  for (const block& each : live_) check_contents(each);
  for (const block& each : live_)
    require(managed_->free(each.base).has_value(), "a live block cannot be freed");
  check_none_left();
}

void machine::check_none_left() {
  require(managed_->validate().has_value(), "the manager's validators at the end");
  require(managed_->statistics().live_count == 0, "live blocks at the end");
  managed_.reset();
  if (has_streams_) {
    require(driver_.destroy_event(event_).has_value(), "destroy_event");
    for (std::size_t i = 1; i < streams_.size(); ++i)
      require(driver_.destroy_stream(streams_[i]).has_value(), "destroy_stream");
  }
  require(driver_.check_empty(), "something is left at the end");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  program input(data, size);
  machine tested(choose(input));
  tested.run(input);
  return 0;
}
