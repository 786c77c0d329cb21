// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.fit;

import vmm.recording;
import vmm.std;

namespace vmm::tools {

namespace {

// cudaMallocAsync takes memory in units of 32 MiB, and grows while a program repeats itself.
// Sixteen recorded programs held up to 1.43 times their live peak on an H100 at first, and from
// 1.14 to 3.27 times after forty passes (docs/results/pool.md).
constexpr std::uint64_t async_unit_bytes = std::uint64_t{32} << 20;
constexpr double async_most = 3.27;
// Of a model without segment events to compare with: sixteen recorded programs on an H100 stayed
// within 0.8 % of native and 0.1 % of expandable segments.
constexpr double usual_error = 0.01;
// Set, not measured: 22 recorded programs held under vmm on an H100 what this replay holds.
constexpr double pool_error = 0.02;

[[nodiscard]] std::uint64_t round_up_to(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

[[nodiscard]] std::uint64_t scaled(std::uint64_t bytes, double factor) noexcept {
  const double out = static_cast<double>(bytes) * factor;
  return out <= 0 ? 0 : out >= 1e19 ? no_size : static_cast<std::uint64_t>(out);
}

[[nodiscard]] bool is_more(recorded_action action) noexcept {
  return action == recorded_action::segment_alloc || action == recorded_action::segment_map;
}
[[nodiscard]] bool is_less(recorded_action action) noexcept {
  return action == recorded_action::segment_free || action == recorded_action::segment_unmap;
}

/// The segments of the file's own allocator.
struct recorded_segments {
  std::vector<segment_change> changes{};
  std::uint64_t held_at_start_bytes = 0;
  std::uint64_t held_max_bytes = 0;
  bool is_expandable = false;
};

[[nodiscard]] segment_action action_of(recorded_action action) noexcept {
  switch (action) {
    case recorded_action::segment_alloc: return segment_action::alloc;
    case recorded_action::segment_free: return segment_action::free;
    case recorded_action::segment_map: return segment_action::map;
    default: return segment_action::unmap;
  }
}

[[nodiscard]] recorded_segments segments_of(const recording& from, std::uint64_t device) {
  recorded_segments out;
  std::uint64_t held_bytes = 0;
  for (const recorded_segment& each : from.segments) {
    if (each.device != device) continue;
    held_bytes += each.size_bytes;
    out.is_expandable = out.is_expandable || each.is_expandable;
  }
  const auto events = events_of(from, device);
  out.held_max_bytes = held_bytes;
  for (std::size_t i = events.size(); i-- != 0;) {
    const recorded_event& each = events[i];
    if (is_more(each.action)) held_bytes -= std::min(held_bytes, each.size_bytes);
    if (is_less(each.action)) held_bytes += each.size_bytes;
    out.held_max_bytes = std::max(out.held_max_bytes, held_bytes);
  }
  out.held_at_start_bytes = held_bytes;
  for (const recorded_event& each : events) {
    if (!is_more(each.action) && !is_less(each.action)) continue;
    out.changes.push_back({action_of(each.action), each.size_bytes, each.at});
    out.is_expandable = out.is_expandable || each.action == recorded_action::segment_map;
  }
  return out;
}

[[nodiscard]] double relative(std::uint64_t one, std::uint64_t other) noexcept {
  if (other == 0) return one == 0 ? 0 : 1;
  const double a = static_cast<double>(one);
  const double b = static_cast<double>(other);
  return (a > b ? a - b : b - a) / b;
}

class fit_maker {
 public:
  fit_maker(const recording& from, const request_stream& asked, const fit_options& options)
      : from_(from), asked_(asked), wanted_(options) {}

  [[nodiscard]] fit_answer make() {
    out_.device = wanted_.device ? *wanted_.device : busiest_device(from_);
    out_.device_count = device_count(from_);
    out_.request_count = asked_.requests.size();
    out_.allocation_count = asked_.allocation_count;
    out_.peak_live_bytes = asked_.peak_live_bytes;
    out_.peak_index = asked_.peak_index;
    out_.beside_bytes = wanted_.beside_bytes;
    options_ = recorded_options_ = options_of(from_);
    out_.problem = read_conf(wanted_.conf, options_);
    if (!out_.problem.empty()) return std::move(out_);
    if (asked_.allocation_count == 0) {
      out_.problem = "has no allocation of device " + std::to_string(out_.device);
      if (asked_.left_out_count != 0)
        out_.problem += ": no program can have made its events, " +
                        std::to_string(asked_.left_out_count) +
                        " in number, without an address, with a size below 0 or above 256 TiB";
      return std::move(out_);
    }
    segments_ = segments_of(from_, out_.device);
    out_.recorded = recorded_under(from_, out_.device, recorded_options_);
    out_.is_recorded_known =
        from_.form == recording_form::torch_snapshot || from_.form == recording_form::history;
    out_.judged = judged_by(wanted_, out_.recorded);
    out_.has_named_devices = !wanted_.devices.empty();
    out_.has_events = asked_.has_events;
    find_available();
    find_start();
    compare();
    find_figures();
    answer_devices();
    find_owners();
    add_notes();
    return std::move(out_);
  }

 private:
  // ---- figures ----

  [[nodiscard]] static caching_options options_for(fit_allocator which, caching_options options) {
    options.expandable_segments = which == fit_allocator::expandable;
    return options;
  }
  // What was held before the first event. A peak before it is not in the file.
  void find_start() {
    out_.is_peak_known = is_peak_known(from_, out_.device, asked_);
    out_.has_lost_frees = asked_.lost_free_count != 0;
    if (wanted_.is_estimate || from_.form != recording_form::torch_snapshot) return;
    const bool is_expandable = out_.recorded == fit_allocator::expandable;
    start_ = start_of(from_, out_.device, asked_, is_expandable);
    if (is_expandable) return;
    // A segment with a live block cannot be released.
    for (const start_layout& each : start_) {
      const bool is_in_use =
          std::any_of(each.parts.begin(), each.parts.end(),
                      [](const start_part& part) { return part.kind == start_part_kind::live; });
      if (!is_in_use) continue;
      for (const start_part& part : each.parts) in_use_at_start_bytes_ += part.size_bytes;
    }
  }
  // A run of the file's own allocator, with the file's options, that has no other limit than its
  // device had.
  void compare() {
    const bool is_torch = from_.form == recording_form::torch_snapshot;
    if (wanted_.is_estimate || !is_torch || segments_.changes.empty()) return;
    fit_check made{.allocator = out_.recorded,
                   .recorded_held_bytes = segments_.held_max_bytes,
                   .recorded_count = segments_.changes.size()};
    caching_device device{.places = segments_.changes};
    if (out_.available_at_oom_bytes) device.limit_bytes = *out_.available_at_oom_bytes;
    say(std::string("check of ") + name_of(out_.recorded));
    caching_model model(options_for(out_.recorded, recorded_options_), device);
    std::vector<segment_change> predicted;
    model.set_listener([&](const segment_change& each) { predicted.push_back(each); });
    // Garbage collection releases segments too, before the driver has refused one.
    const bool has_shortages = recorded_options_.garbage_collection_threshold <= 0;
    (void)play(asked_, model, {.start = start_, .has_shortages = has_shortages});
    made.predicted_held_bytes = model.peak_held_bytes();
    made.replayed_count = predicted.size();
    for (std::size_t i = 0; i < std::min(segments_.changes.size(), predicted.size()); ++i) {
      const segment_change& one = predicted[i];
      const segment_change& other = segments_.changes[i];
      made.same_count += one.action == other.action && one.size_bytes == other.size_bytes ? 1 : 0;
    }
    made.error = relative(made.predicted_held_bytes, made.recorded_held_bytes);
    out_.check = made;
  }
  void say(const std::string& replay) const {
    if (wanted_.progress) wanted_.progress(replay);
  }
  void set_model_error(fit_figure& into) const {
    into.error = wanted_.is_estimate ? batch_error : out_.check ? out_.check->error : usual_error;
    into.source = wanted_.is_estimate ? error_source::batch
                  : out_.check        ? error_source::check
                                      : error_source::no_check;
  }

  [[nodiscard]] fit_figure& figure(fit_allocator which) {
    return out_.figures[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] std::uint64_t peak_of(fit_allocator which, const caching_device& device) const {
    caching_model model(options_for(which, options_), device);
    play_options options;
    if (which == out_.recorded) options.start = start_;
    return play(asked_, model, options).value_or(model.peak_held_bytes());
  }
  void find_figures() {
    for (const fit_allocator which : {fit_allocator::native, fit_allocator::expandable}) {
      caching_device device;
      say(name_of(which));
      // With other options the driver would have been called for other segments.
      const bool is_as_recorded =
          which == out_.recorded &&
          options_for(which, options_) == options_for(which, recorded_options_);
      if (is_as_recorded && !wanted_.is_estimate) device.places = segments_.changes;
      const std::uint64_t held_bytes = peak_of(which, device);
      fit_figure& into = figure(which);
      into.held_bytes = into.held_low_bytes = held_bytes;
      set_model_error(into);
      if (!device.places.empty()) continue;
      // Which of two equal blocks is taken depends on where the driver puts segments.
      device.has_descending_addresses = true;
      const double difference = relative(peak_of(which, device), held_bytes);
      if (difference <= into.error) continue;
      into.error = difference;
      into.source = error_source::addresses;
    }
    fit_figure& async = figure(fit_allocator::async);
    async.held_low_bytes = async_least_bytes(asked_.peak_live_bytes);
    async.held_bytes = round_up_to(scaled(asked_.peak_live_bytes, async_most), async_unit_bytes);
    fit_figure& pool = figure(fit_allocator::vmm);
    say(name_of(fit_allocator::vmm));
    const auto held = play_pool(asked_, {roomy_bytes(asked_), from_.form});
    if (!held) out_.notes.emplace_back("vmm's pool could not be replayed: its figure is a bound");
    pool.held_bytes = held ? held->held_bytes : 2 * asked_.peak_live_bytes;
    pool.held_low_bytes = held ? held->held_bytes : asked_.peak_live_bytes;
    pool.error = pool_error;
  }

  // ---- devices ----

  void answer_devices() {
    const std::vector<fit_device> devices =
        wanted_.devices.empty() ? usual_devices() : wanted_.devices;
    for (const fit_device& each : devices) {
      fit_device_answer made;
      made.device = each;
      const std::uint64_t limit_bytes =
          each.size_bytes - std::min(each.size_bytes, wanted_.beside_bytes);
      for (std::size_t i = 0; i < fit_allocator_count; ++i) {
        const auto which = static_cast<fit_allocator>(i);
        say(name_of(which) + (" on " + each.name));
        retry_count_ = 0;
        made.fits[i] = verdict(which, limit_bytes, each.size_bytes);
        if (made.fits[i] == fit_verdict::yes) made.retries[i] = retry_count_;
      }
      out_.devices.push_back(std::move(made));
    }
  }
  [[nodiscard]] fit_verdict verdict(fit_allocator which, std::uint64_t limit_bytes,
                                    std::uint64_t device_bytes) {
    const fit_figure& of = figure(which);
    // The models of PyTorch's caches apply their fraction themselves.
    if (which == fit_allocator::vmm || which == fit_allocator::async)
      limit_bytes = std::min(limit_bytes, scaled(device_bytes, options_.memory_fraction));
    if (out_.has_lost_frees) return fit_verdict::within_error;
    if (is_less_than_live(limit_bytes)) return fit_verdict::no;
    if (!out_.is_peak_known) return known_part(which, limit_bytes, device_bytes);
    if (which == fit_allocator::async || of.held_low_bytes < of.held_bytes) {  // bounds
      if (limit_bytes >= of.held_bytes) return fit_verdict::yes;
      return limit_bytes < of.held_low_bytes ? fit_verdict::no : fit_verdict::within_error;
    }
    const bool is_low = is_served(which, scaled(limit_bytes, 1 - of.error), device_bytes);
    if (is_low) return fit_verdict::yes;
    const bool is_high =
        of.error > 0 && is_served(which, scaled(limit_bytes, 1 + of.error), device_bytes);
    return is_high ? fit_verdict::within_error : fit_verdict::no;
  }
  // Of a program with an unknown peak: it does not fit where its known part does not.
  [[nodiscard]] fit_verdict known_part(fit_allocator which, std::uint64_t limit_bytes,
                                       std::uint64_t device_bytes) {
    const fit_figure& of = figure(which);
    if (which == out_.recorded && limit_bytes < in_use_at_start_bytes_) return fit_verdict::no;
    const bool is_served_or_band =
        which == fit_allocator::async
            ? limit_bytes >= of.held_low_bytes
            : is_served(which, scaled(limit_bytes, 1 + of.error), device_bytes);
    return is_served_or_band ? fit_verdict::within_error : fit_verdict::no;
  }
  // Workspaces of an estimate are left out where they do not fit.
  [[nodiscard]] bool is_less_than_live(std::uint64_t limit_bytes) const noexcept {
    return !wanted_.is_estimate && limit_bytes < asked_.peak_live_bytes;
  }
  [[nodiscard]] bool is_served(fit_allocator which, std::uint64_t limit_bytes,
                               std::uint64_t device_bytes) {
    if (is_less_than_live(limit_bytes)) return false;
    const bool is_pool = which == fit_allocator::vmm;
    const bool is_plain = is_pool || options_.memory_fraction >= 1;
    if (is_plain && limit_bytes >= figure(which).held_bytes) return true;
    if (is_pool) {
      const auto held = play_pool(asked_, {limit_bytes, from_.form, wanted_.is_estimate});
      if (held) retry_count_ = held->retry_count;
      return held.has_value();
    }
    caching_model model(options_for(which, options_),
                        {.limit_bytes = limit_bytes, .device_bytes = device_bytes});
    const bool is_good =
        play(asked_, model, {.has_spare_workspaces = wanted_.is_estimate}).has_value();
    retry_count_ = model.retry_count();
    return is_good;
  }

  // ---- other data of the file -------

  // At an out-of-memory event the device had this much for the allocator: the memory held, and the
  // free memory.
  void find_available() {
    const auto events = events_of(from_, out_.device);
    std::uint64_t held_bytes = segments_.held_at_start_bytes;
    for (const recorded_event& each : events) {
      if (is_more(each.action)) held_bytes += each.size_bytes;
      if (is_less(each.action)) held_bytes -= std::min(held_bytes, each.size_bytes);
      constexpr std::uint64_t most = std::uint64_t{1} << 48;
      if (each.action == recorded_action::oom && each.at != 0 && each.at < most)
        out_.available_at_oom_bytes = held_bytes + each.at;
    }
  }
  void find_owners() {
    std::vector<std::uint32_t> context_by_slot(asked_.slot_count);
    std::vector<std::uint64_t> bytes_by_slot(asked_.slot_count);
    for (std::uint64_t i = 0; i <= asked_.peak_index && i < asked_.requests.size(); ++i) {
      const request& each = asked_.requests[i];
      if (each.kind == request_kind::allocate) {
        context_by_slot[each.slot] = asked_.contexts[i];
        bytes_by_slot[each.slot] = std::max<std::uint64_t>(round_up_to(each.size_bytes, 512), 512);
      } else if (each.kind == request_kind::free || each.kind == request_kind::free_completed) {
        bytes_by_slot[each.slot] = 0;
      }
    }
    std::unordered_map<std::uint32_t, fit_owner> by_context;
    for (std::size_t slot = 0; slot < bytes_by_slot.size(); ++slot) {
      if (bytes_by_slot[slot] == 0) continue;
      fit_owner& owner = by_context[context_by_slot[slot]];
      owner.context = context_by_slot[slot];
      owner.size_bytes += bytes_by_slot[slot];
      ++owner.count;
    }
    for (const auto& [context, owner] : by_context) out_.owners.push_back(owner);
    std::sort(out_.owners.begin(), out_.owners.end(), [](const fit_owner& a, const fit_owner& b) {
      return a.size_bytes != b.size_bytes ? a.size_bytes > b.size_bytes : a.context < b.context;
    });
    constexpr std::size_t owner_count_max = 10;
    if (out_.owners.size() > owner_count_max) out_.owners.resize(owner_count_max);
  }
  void add_notes() {
    const std::vector<std::string> notes = notes_of(from_, out_.device, asked_);
    out_.notes.insert(out_.notes.end(), notes.begin(), notes.end());
    if (!wanted_.is_estimate && !out_.check && from_.form == recording_form::torch_snapshot)
      out_.notes.emplace_back("the file has no segment events to compare the models with");
    if (wanted_.conf.empty() && from_.settings.empty() &&
        from_.form == recording_form::torch_snapshot)
      out_.notes.emplace_back("the file has no allocator settings: PyTorch's defaults apply");
  }

  const recording& from_;
  const request_stream& asked_;
  const fit_options& wanted_;
  caching_options options_{};           // of the figures
  caching_options recorded_options_{};  // of the check
  recorded_segments segments_{};
  std::vector<start_layout> start_{};
  std::uint64_t in_use_at_start_bytes_ = 0;
  std::uint64_t retry_count_ = 0;  // of the last replay within a limit
  fit_answer out_{};
};

[[nodiscard]] std::uint64_t refused_count(const recording& from, std::uint64_t device) {
  const auto events = events_of(from, device);
  return static_cast<std::uint64_t>(std::count_if(
      events.begin(), events.end(),
      [](const recorded_event& each) { return each.action == recorded_action::oom; }));
}

}  // namespace

bool is_peak_known(const recording& from, std::uint64_t device, const request_stream& asked) {
  return asked.has_events && asked.live_before_count == 0 && from.lost_event_count == 0 &&
         asked.left_out_count == 0 && asked.lost_free_count == 0 && asked.unknown_live_count == 0 &&
         from.cut_line_count == 0 && refused_count(from, device) == 0 &&
         segments_of(from, device).held_at_start_bytes == 0;
}

std::vector<std::string> notes_of(const recording& from, std::uint64_t device,
                                  const request_stream& asked) {
  std::vector<std::string> out;
  constexpr const char* lost_beginning =
      ". The recording has lost its beginning, and an earlier peak with it";
  const auto note = [&](const char* what, std::uint64_t count, const char* more = "") {
    if (count != 0) out.push_back(what + (": " + std::to_string(count)) + more);
  };
  if (!asked.has_events) {
    out.emplace_back(
        "the file has no events: only what was live when it was written is known, and not the "
        "peak; a device that holds it is not reported to fit. python -m libvmm record writes "
        "events");
  } else if (asked.live_before_count != 0) {
    note("blocks live before the first event", asked.live_before_count, lost_beginning);
  } else {
    note("bytes held before the first event", segments_of(from, device).held_at_start_bytes,
         lost_beginning);
  }
  note("events lost before the first one", from.lost_event_count);
  note("blocks live at the end, but not by the events", asked.unknown_live_count,
       ". Recording ended before the file was written");
  note("lines cut at the end of the file, and left out", from.cut_line_count);
  note("requests refused while the program was recorded", refused_count(from, device),
       ". With more memory the program may hold more");
  note("frees missing in the file", asked.lost_free_count);
  note("events that fit no allocation, and are left out", asked.left_out_count);
  if (const std::string unread = problem_of_settings(from); !unread.empty())
    out.push_back("an option of the file's settings is left out: " + unread);
  return out;
}

fit_allocator judged_by(const fit_options& options, fit_allocator recorded) {
  if (options.judged) return *options.judged;
  // An option of the text is the same, whatever was set before.
  caching_options one;
  caching_options other;
  other.expandable_segments = !one.expandable_segments;
  (void)read_conf(options.conf, one);  // has been tried
  (void)read_conf(options.conf, other);
  if (one.expandable_segments != other.expandable_segments) return recorded;
  return one.expandable_segments ? fit_allocator::expandable : fit_allocator::native;
}

std::uint64_t async_least_bytes(std::uint64_t live_bytes) noexcept {
  return round_up_to(live_bytes, async_unit_bytes);
}

int worse_code(int code, fit_verdict verdict) noexcept {
  if (code == 1 || verdict == fit_verdict::no) return 1;
  return verdict == fit_verdict::within_error ? 2 : code;
}

int exit_code_of(const fit_answer& found) {
  int code = 0;
  for (const fit_device_answer& each : found.devices)
    code = worse_code(code, each.fits[static_cast<std::size_t>(found.judged)]);
  return found.has_named_devices ? code : 0;
}

fit_allocator recorded_under(const recording& from, std::uint64_t device,
                             const caching_options& options) {
  if (from.form == recording_form::history) return fit_allocator::vmm;
  const recorded_segments found = segments_of(from, device);
  const bool is_expandable =
      found.is_expandable || (found.changes.empty() && options.expandable_segments);
  return is_expandable ? fit_allocator::expandable : fit_allocator::native;
}

bool is_served(fit_allocator which, const request_stream& asked, const recording& from,
               const fit_options& options, const fit_device& device, double factor) {
  const std::uint64_t own_bytes =
      device.size_bytes - std::min(device.size_bytes, options.beside_bytes);
  const std::uint64_t limit_bytes = scaled(own_bytes, factor);
  if (which == fit_allocator::vmm)
    return play_pool(asked, {limit_bytes, from.form, true}).has_value();
  if (which == fit_allocator::async)
    return round_up_to(scaled(asked.peak_live_bytes, async_most), async_unit_bytes) <= limit_bytes;
  caching_options conf = options_of(from);
  (void)read_conf(options.conf, conf);  // has been tried
  conf.expandable_segments = which == fit_allocator::expandable;
  caching_model model(conf, {.limit_bytes = limit_bytes, .device_bytes = device.size_bytes});
  return play(asked, model, {.has_spare_workspaces = true}).has_value();
}

const char* name_of(fit_allocator which) noexcept {
  constexpr std::array names = {"native", "expandable", "async", "vmm"};
  return names[static_cast<std::size_t>(which)];
}

const char* name_of(error_source source) noexcept {
  constexpr std::array names = {"check", "no_check", "addresses", "allowance", "batch"};
  return names[static_cast<std::size_t>(source)];
}

const char* name_of(fit_verdict verdict) noexcept {
  constexpr std::array names = {"yes", "no", "within_error"};
  return names[static_cast<std::size_t>(verdict)];
}

fit_answer answer_requests(const recording& from, const request_stream& asked,
                           const fit_options& options) {
  return fit_maker(from, asked, options).make();
}

fit_answer answer(const recording& from, const fit_options& options) {
  const std::uint64_t device = options.device ? *options.device : busiest_device(from);
  fit_options wanted = options;
  wanted.device = device;
  fit_answer out;
  out.problem = problem_of_device(from, device);
  if (!out.problem.empty()) return out;
  return answer_requests(from, requests_of(from, device), wanted);
}

}  // namespace vmm::tools
