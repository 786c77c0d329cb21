// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A program of manager operations beside a naive model, written from the documentation, on a fake
// driver. Bytes choose: the fuzzer's or a random generator's. The first four choose the driver's
// profile, the policy, the limits and the schedule. It imports what it checks, so it is the last
// include of a file, except others with imports.
//
// The model has the live blocks, the contents of each granule, and the rights of two other devices:
// those of all blocks, of a block, and of a part of one. It checks that every block keeps its size,
// address, contents and rights, that a refused call has a reason and changes nothing, and that the
// numbers add up. The driver checks that no memory is used too early.
#pragma once

#include "../../tools/program/standard.hpp"
#include "../support/byte_source.hpp"

import vmm.backend;
import vmm.base;
import vmm.fake;
import vmm.manager;

/// `Driver` is the fake driver or derived from it; only the manager's calls go to what is derived.
template <class Driver>
class basic_manager_program {
  using access = vmm::access;
  using address = vmm::address;
  using call = vmm::call;
  using errc = vmm::errc;
  using stream_handle = vmm::stream_handle;

 public:
  /// `more` goes to the driver, behind the profile that the first bytes choose.
  template <class... More>
  explicit basic_manager_program(byte_source source, More... more)
      : source_(source), chosen_(choose(source_)), driver_(chosen_.plays, more...) {
    if (has_streams_) {
      fake_.set_manual(chosen_.manual);
      for (std::size_t i = 1; i < streams_.size(); ++i) streams_[i] = *fake_.create_stream();
      event_ = *fake_.create_event();
    }
    managed_.emplace(driver_, options_);
  }

  /// Runs to the end of the bytes. nullptr when all went well, else what did not.
  [[nodiscard]] const char* run(std::uint64_t operations_max = 64) {
    try {
      while (!source_.empty() && operations_ < operations_max) {
        step();
        ++operations_;
        check_everything();
      }
      finish();
    } catch (const failed_check& failed) {
      return failed.what;
    }
    return nullptr;
  }
  [[nodiscard]] const std::string& detail() const { return detail_; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  [[nodiscard]] std::uint64_t failures() const { return failures_; }
  [[nodiscard]] std::uint64_t faults() const { return driver_.faults_struck(); }
  [[nodiscard]] std::uint64_t rights_given() const { return rights_given_; }
  /// Of the manager when all is freed.
  [[nodiscard]] const vmm::manager_statistics& last_statistics() const { return last_; }

 private:
  struct failed_check {
    const char* what;
  };
  using access_table = std::map<std::int32_t, access>;  // of devices 1 and 2

  static constexpr std::uint64_t device_granules = 96;
  static constexpr std::size_t live_max = 16;
  static constexpr std::size_t host = ~std::size_t{0};  // in place of a stream

  struct set_up {
    vmm::fake::profile plays;
    vmm::manager_options options;
    bool manual = false;
    bool rights = false;
  };

  [[nodiscard]] static set_up choose(byte_source& source) {
    using vmm::fake::profile;
    set_up chosen;
    const std::uint32_t driver = source.byte();
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

    const std::uint32_t policy = source.byte();
    switch (policy % 3) {
      case 0: chosen.options.policy = vmm::manager_policy::va_pool(); break;
      case 1: chosen.options.policy = vmm::manager_policy::keep_mapped(); break;
      default: chosen.options.policy = vmm::manager_policy::virtual_caching();
    }
    if (chosen.options.policy.chunk_bytes != 0) chosen.options.policy.chunk_bytes = 2 * granule;
    if ((policy & 16) != 0) chosen.options.policy.fragment_ratio = 0;

    const std::uint32_t limits = source.byte();
    const std::uint64_t reservations[] = {std::uint64_t{8} << 40, 16 * granule, 64 * granule};
    chosen.options.reservation_bytes = reservations[limits % 3];
    chosen.options.budget_bytes = (limits & 16) != 0 ? 40 * granule : 0;
    chosen.options.wait_when_short = (limits & 32) == 0;
    const std::uint32_t last = source.byte();
    chosen.manual = (last & 1) != 0;
    chosen.rights = (last & 0x30) == 0x30 && chosen.plays.can.access_per_location;
    if (chosen.rights) chosen.plays.device_count = 3;
    return chosen;
  }

  // The requests to the manager, and its expected state.
  struct block {
    address base{};
    std::uint64_t user_bytes = 0;
    std::size_t stream = 0;           // index into streams_
    std::vector<std::uint64_t> tags;  // by granule; 0: not known
    bool is_used = false;             // some work has been given the block
    bool is_given_up = false;         // the source of a move: it may only be freed
    std::size_t serial = 0;
    std::size_t alias_group = 0;  // of blocks that may show one memory; 0: none
    access_table own{};
    std::map<std::uint64_t, access_table> parts{};  // by granule; each begins with the block's own
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw failed_check{what};
  }
  template <class T>
  [[nodiscard]] static bool is_refused(const vmm::result<T>& outcome) {
    return !outcome.has_value();
  }
  [[nodiscard]] static bool is_refused(const vmm::trim_report& outcome) {
    return outcome.failure.code != errc::none;
  }

  // ---- faults are planned for the manager's calls only

  template <class Operation>
  [[nodiscard]] auto under_faults(Operation&& operation) {
    const std::uint64_t before = fake_.faults_struck();
    for (const vmm::fake::fault& planned : faults_) fake_.fail(planned);
    auto outcome = operation();
    fake_.clear_faults();
    struck_ = fake_.faults_struck() != before;
    failures_ += is_refused(outcome) ? 1 : 0;
    std::erase_if(faults_, [](const vmm::fake::fault& each) { return !each.forever; });
    return outcome;
  }
  template <class T>
  void require_explained(const vmm::result<T>& outcome, std::initializer_list<errc> expected) {
    if (outcome || struck_) return;
    const errc code = outcome.error().code;
    if (std::find(expected.begin(), expected.end(), code) != expected.end()) return;
    detail_ = vmm::describe(outcome.error());
    require(false, "an error that nothing explains");
  }
  // Out of memory with nothing injected: then nothing more could have been given back.
  void require_shortage(std::uint64_t needed_bytes) {
    if (struck_ || !faults_.empty() || !options_.wait_when_short) return;
    const vmm::manager_statistics now = managed_->statistics();
    const std::uint64_t limit = options_.budget_bytes != 0
                                    ? std::min(options_.budget_bytes, device_granules * granule_)
                                    : device_granules * granule_;
    require(now.held_bytes - now.retained_bytes + lost_bytes() + needed_bytes > limit,
            "memory ran short although there was enough");
    // Refused at once, with the caches as they were: at most the live blocks' size is ever free.
    if (live_bytes(now) + needed_bytes > limit) return;
    require(now.retained_mapped_bytes == 0, "memory ran short while ranges were cached");
    require(now.retired_bytes == 0, "memory ran short while ranges waited");
  }

  // Mappings of blocks that have lost their memory: what they show is not released before they end.
  [[nodiscard]] std::uint64_t lost_bytes() {
    std::uint64_t sum_bytes = 0;
    for (const block& each : live_) {
      if (const auto info = managed_->find(each.base); info && info->sizes.user_bytes == 0)
        sum_bytes += info->sizes.mapped_bytes;
    }
    return sum_bytes;
  }

  // What the blocks have mapped, more than their sizes where a piece was not cut. Of blocks that
  // remapping copies have made to share memory it is not known.
  [[nodiscard]] std::uint64_t live_bytes(const vmm::manager_statistics& now) const {
    return now.remapped_copy_count != 0 ? 0 : now.mapped_bytes;
  }

  [[nodiscard]] std::uint64_t rounded(std::uint64_t size_bytes) const {
    const std::uint64_t unit = managed_->granularity_bytes();  // 0 while it is not set up
    return unit == 0 ? size_bytes : vmm::round_up(size_bytes, unit);
  }

  // ---- device work

  [[nodiscard]] bool is_quiet() const { return fake_.resource_counts().pending_work == 0; }
  // Later work of `after` waits for what `before` has been given.
  void order(std::size_t before, std::size_t after) {
    if (!has_streams_ || before == after) return;
    require(fake_.record_event(event_, streams_[before]).has_value(), "record_event");
    require(fake_.wait_event(streams_[after], event_).has_value(), "wait_event");
  }
  void launch(std::size_t stream, const vmm::fake::kernel& work) {
    require(fake_.launch(streams_[stream], work).has_value(), "launch");
  }
  [[nodiscard]] vmm::address_range granule_of(const block& of, std::size_t index) const {
    const std::uint64_t begin = index * granule_;
    return {of.base + begin, std::min(granule_, of.user_bytes - begin) & ~std::uint64_t{7}};
  }

  // ---- live blocks

  [[nodiscard]] block* some_block() {
    return live_.empty() ? nullptr : &live_[source_.byte() % live_.size()];
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

  // ---- operations

  void write(block& into, std::size_t index, std::size_t stream) {
    const vmm::address_range where = granule_of(into, index);
    if (where.empty()) return;
    into.tags[index] = next_tag_++;
    if (has_streams_ && !(is_quiet() && stream == host)) {
      const std::size_t on = stream == host ? into.stream : stream;
      launch(on,
             {.name = "write", .duration_us = 5, .writes = {&where, 1}, .tag = into.tags[index]});
      into.is_used = true;
    } else {
      require(fake_.write_tag(where, into.tags[index]).has_value(), "a live block is not writable");
    }
  }

  void check_on_device(block& of, std::size_t index, std::size_t stream) {
    const vmm::address_range where = granule_of(of, index);
    if (where.empty() || of.tags[index] == 0) return;
    launch(stream,
           {.name = "read", .duration_us = 5, .reads = {&where, 1}, .expected = of.tags[index]});
    of.is_used = true;
  }

  // With nothing pending every granule from `first` on, by the host; else the outermost two.
  void write_from(block& into, std::size_t first) {
    if (!may_write(into)) return;
    const std::size_t count = into.tags.size();
    if (is_quiet()) {
      for (std::size_t i = first; i < count; ++i) write(into, i, host);
      return;
    }
    if (first < count) write(into, first, into.stream);
    if (first + 1 < count) write(into, count - 1, into.stream);
  }

  void check_contents(const block& of) {
    if (of.is_given_up) return;
    for (std::size_t i = 0; i < of.tags.size(); ++i) {
      const vmm::address_range where = granule_of(of, i);
      if (where.empty()) continue;
      // Every write and every copy of a granule reaches its middle.
      for (const address at : {where.base, where.base + granule_ / 2}) {
        const auto tag = fake_.read_tag(at);
        require(tag.has_value(), "a live block cannot be read");
        require(of.tags[i] == 0 || *tag == of.tags[i], "a live block holds what was not written");
      }
    }
  }

  void allocate() {
    if (live_.size() >= live_max) return;
    vmm::allocate_request request;
    const std::uint32_t shape = source_.byte();
    const std::uint64_t count = 1 + ((shape & 128) != 0 ? shape % 64 : shape % 8);
    request.size_bytes = count * granule_ - ((shape & 64) != 0 ? 24 : 0);
    const std::uint32_t more = source_.byte();
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

  void forget(const block& gone) {
    freed_.push_back(gone.base);
    if (freed_.size() > 8) freed_.erase(freed_.begin());
    const std::size_t serial = gone.serial;
    std::erase_if(live_, [serial](const block& each) { return each.serial == serial; });
  }

  void free_one() {
    block* const gone = some_block();
    if (gone == nullptr) return;
    const std::uint32_t how = source_.byte();
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

  void free_wrongly() {
    const std::uint32_t how = source_.byte();
    address at{4096};
    if (how % 3 == 0 && !freed_.empty()) {
      at = freed_[how / 3 % freed_.size()];
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

  void resize() {
    block* const resized = some_block();
    if (resized == nullptr) return;
    const std::uint32_t shape = source_.byte();
    vmm::resize_request request;
    request.at = resized->base;
    const std::uint64_t count = 1 + ((shape & 128) != 0 ? shape % 64 : shape % 12);
    request.size_bytes = count * granule_ - ((shape & 64) != 0 ? 8 : 0);
    const std::uint32_t more = source_.byte();
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
        require_shortage(rounded(request.size_bytes) -
                         std::min(before.mapped_bytes, rounded(request.size_bytes)));
      give_up_if_lost(*resized);
      return;
    }
    require(request.may_move || *to == request.at, "a block moved that may not");
    resized->base = *to;
    if (request.names_stream) order(0, resized->stream);  // new memory is for the stream it names
    const std::size_t old_count = resized->tags.size();
    resized->user_bytes = request.size_bytes;
    resized->tags.resize(count, 0);
    forget_parts(*resized);
    if ((more & 32) == 0) write_from(*resized, std::min(old_count, count));
  }

  void copy() {
    block* const target = some_block();
    block* const source = some_block();
    if (source == nullptr || target == source || !may_write(*target) || source->is_given_up) return;
    const std::uint32_t how = source_.byte();
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

  void trim() {
    const std::uint64_t limit_bytes = source_.byte() % 32 * granule_;
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

  void use_on_device() {
    block* const used = some_block();
    const std::uint32_t how = source_.byte();
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

  void let_time_pass() {
    const std::uint32_t how = source_.byte();
    if (!has_streams_) return;
    if (!chosen_.manual) {
      require(fake_.advance_us(how % 32).has_value(), "advance");
    } else if (how == 255) {
      require(fake_.finish_all().has_value(), "finish_all");
    } else if (const std::size_t count = fake_.ready_count(); count > 0) {
      require(fake_.finish_ready(how % count).has_value(), "finish_ready");
    }
  }

  void look() {
    const std::uint32_t how = source_.byte();
    const auto extents = managed_->extents();
    require(extents.has_value(), "extents");
    std::uint64_t live_count = 0;
    address end{};
    for (const vmm::extent_info& extent : *extents) {
      require(extent.where.base >= end, "extents out of order");
      end = extent.where.end();
      if (extent.kind == vmm::extent_kind::live) ++live_count;
    }
    require(live_count == live_.size(), "extents show other blocks than the live ones");
    if (live_.empty()) return;
    const block& one = live_[how % live_.size()];
    const auto info = managed_->find(one.base);
    require(info.has_value() && info->base == one.base, "a live block is not found");
    require(one.is_given_up || info->sizes.user_bytes == one.user_bytes, "another size");
  }

  void plan_fault() {
    static constexpr std::array kinds{
        call::create,       call::map,         call::set_access,
        call::unmap,        call::release,     call::reserve,
        call::create_event, call::query_event, call::record_event,
        call::wait_event,   call::copy,        call::synchronize_event,
        call::unmap,        call::map,         call::query_granularity,
    };
    const std::uint32_t which = source_.byte();
    const std::uint32_t when = source_.byte();
    if (faults_.size() >= 4) return;
    vmm::fake::fault planned;
    planned.where = kinds[which % kinds.size()];
    planned.nth = 1 + when % 6;
    planned.forever = (when & 128) != 0;
    const auto errors = fake_.possible_errors(planned.where);
    if (errors.empty()) return;
    planned.failure = errors[which / kinds.size() % errors.size()];
    faults_.push_back(planned);
  }

  // ---- rights

  // To one device or two.
  [[nodiscard]] std::vector<vmm::access_grant> grants() {
    constexpr std::array all{access::none, access::read, access::read_write};
    const std::uint32_t how = source_.byte();
    const auto first = static_cast<std::int32_t>(1 + how % 2);
    std::vector<vmm::access_grant> made{{vmm::device(first), all[how / 2 % 3]}};
    if ((how & 64) != 0) made.push_back({vmm::device(3 - first), all[how / 8 % 3]});
    return made;
  }
  void note(access_table& in, const std::vector<vmm::access_grant>& given) {
    for (const vmm::access_grant& each : given) in[each.grantee.ordinal] = each.rights;
    ++rights_given_;
  }
  // Where an undo may have failed, too, rights are known when they are given once more.
  template <class Operation>
  [[nodiscard]] bool are_given(Operation&& operation) {
    const bool may_stay = faults_.size() > 1 || (!faults_.empty() && faults_.front().forever);
    const bool done = under_faults(operation).has_value();
    return done || (struck_ && may_stay && operation().has_value());
  }
  void give_all() {
    const auto given = grants();
    if (are_given([&] { return managed_->set_peers(given); })) note(peers_, given);
  }
  void give_one() {
    block* const of = some_block();
    const auto given = grants();
    if (of == nullptr || of->is_given_up) return;
    if (!are_given([&] { return managed_->set_access(of->base, given); })) return;
    note(of->own, given);
    for (auto& [at, part] : of->parts) note(part, given);
  }
  // From the beginning of one mapping to the end of another.
  void give_part() {
    block* const of = some_block();
    const std::uint32_t first_of = source_.byte();
    const std::uint32_t last_of = source_.byte();
    const auto given = grants();
    if (of == nullptr || of->is_given_up) return;
    const auto all = mappings(*of);
    const std::size_t first = first_of % all.size();
    const std::size_t last = first + last_of % (all.size() - first);
    const vmm::address_range part{all[first].range.base,
                                  all[last].range.end() - all[first].range.base};
    const vmm::address_range inside{part.base, granule_};
    if (all[first].range.size_bytes > granule_ && inside.end() < of->base + of->user_bytes)
      require(!managed_->set_access(inside, given), "rights were given inside of a mapping");
    if (!are_given([&] { return managed_->set_access(part, given); })) return;
    for (std::uint64_t at = part.base - of->base; at < part.end() - of->base; at += granule_)
      note(of->parts.try_emplace(at / granule_, of->own).first->second, given);
  }
  [[nodiscard]] std::vector<vmm::memory_segment> mappings(const block& of) {
    const auto found = managed_->find(of.base);
    require(found.has_value(), "a live block is not found");
    auto listed = managed_->segments({of.base, found->sizes.mapped_bytes});
    require(listed && !listed->empty(), "a live block has no mappings");
    return *std::move(listed);
  }
  // Of a block that shrinks whole mappings go, with their rights.
  void forget_parts(block& of) {
    if (of.parts.empty()) return;
    std::uint64_t kept_bytes = 0;
    for (const vmm::memory_segment& each : mappings(of)) {
      if (kept_bytes < of.user_bytes) kept_bytes += each.range.size_bytes;
    }
    of.parts.erase(of.parts.lower_bound(kept_bytes / granule_), of.parts.end());
  }
  void check_rights(const block& of) {
    for (std::int32_t ordinal = 1; ordinal <= 2; ++ordinal) {
      for (std::uint64_t at = 0; at < of.user_bytes; at += granule_) {
        const auto part = of.parts.find(at / granule_);
        const access_table& own = part == of.parts.end() ? of.own : part->second;
        access wanted = peers_.contains(ordinal) ? peers_.at(ordinal) : access::none;
        if (own.contains(ordinal)) wanted = own.at(ordinal);
        const auto there = fake_.get_access(of.base + at, vmm::device(ordinal));
        require(there.value_or(access::none) == wanted, "a granule has other rights than given");
      }
    }
  }

  // ---- the whole

  void step() {
    struck_ = false;
    const std::uint32_t choice = source_.byte();
    if (gives_rights_ && choice >= 200) {
      if (choice % 4 == 0) return give_all();
      return choice % 4 == 1 ? give_part() : give_one();
    }
    switch (choice % 16) {
      case 0:
      case 1:
      case 2: return allocate();
      case 3:
      case 4: return free_one();
      case 5: return free_wrongly();
      case 6:
      case 7:
      case 8: return resize();
      case 9: return copy();
      case 10: return trim();
      case 11: return plan_fault();
      case 12: faults_.clear(); return;
      case 13: return use_on_device();
      case 14: return let_time_pass();
      default: return look();
    }
  }

  void check_everything() {
    if (fake_.misuse_count() != 0)
      detail_ = std::string(vmm::fake::name_of(fake_.misuses().front().kind)) + ": " +
                fake_.misuses().front().detail;
    require(fake_.misuse_count() == 0, "the driver saw a misuse");
    // The validators walk over all of the address space: most of the time would go there.
    if (struck_ || step_count_++ % 4 == 0)
      require(managed_->validate().has_value(), "the manager's validators");
    const vmm::manager_statistics now = managed_->statistics();
    require(now.live_count == live_.size(), "another number of live blocks");
    require(options_.budget_bytes == 0 || now.held_bytes <= options_.budget_bytes, "over budget");
    require(now.held_bytes == fake_.resource_counts().memory_bytes,
            "held bytes that the driver has not");
    for (const block& each : live_) {
      if (gives_rights_ && !each.is_given_up) check_rights(each);
    }
    if (!is_quiet()) return;
    // One after the other on the way; all of them at the end.
    if (!live_.empty()) check_contents(live_[checked_++ % live_.size()]);
  }

  void finish() {
    faults_.clear();
    if (has_streams_) require(fake_.finish_all().has_value(), "finish_all");
    for (const block& each : live_) check_contents(each);
    for (const block& each : live_)
      require(managed_->free(each.base).has_value(), "a live block cannot be freed");
    require(managed_->validate().has_value(), "the manager's validators at the end");
    last_ = managed_->statistics();
    require(last_.live_count == 0, "live blocks at the end");
    managed_.reset();
    if (has_streams_) {
      require(fake_.destroy_event(event_).has_value(), "destroy_event");
      for (std::size_t i = 1; i < streams_.size(); ++i)
        require(fake_.destroy_stream(streams_[i]).has_value(), "destroy_stream");
    }
    require(fake_.check_empty(), "something is left at the end");
    require(fake_.misuse_count() == 0, "the driver saw a misuse at the end");
  }

  byte_source source_;
  const set_up chosen_;
  Driver driver_;
  vmm::fake_driver& fake_ = driver_;
  const std::uint64_t granule_ = chosen_.plays.home.kind == vmm::location::place::device
                                     ? chosen_.plays.device_granularity.recommended_bytes
                                     : chosen_.plays.host_granularity.recommended_bytes;
  const bool has_streams_ = chosen_.plays.can.streams;
  const bool gives_rights_ = chosen_.rights;
  const vmm::manager_options options_ = chosen_.options;
  std::array<stream_handle, 3> streams_{};
  vmm::event_handle event_{};
  std::optional<vmm::manager> managed_;
  std::vector<block> live_;
  std::vector<address> freed_;
  std::vector<vmm::fake::fault> faults_;
  access_table peers_;
  bool struck_ = false;
  std::uint64_t next_tag_ = 1;
  std::size_t next_serial_ = 1;
  std::size_t checked_ = 0;
  std::size_t step_count_ = 0;
  std::uint64_t operations_ = 0;
  std::uint64_t failures_ = 0;
  std::uint64_t rights_given_ = 0;
  std::string detail_;
  vmm::manager_statistics last_{};
};
