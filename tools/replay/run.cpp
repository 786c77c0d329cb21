// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.replay;

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.host;
import vmm.level_zero;
import vmm.manager;
import vmm.observe;
import vmm.std;
import vmm.stream;

namespace vmm::tools {
namespace {

// ---- drivers with a meter ------------------------------------------------------------------

struct meter_reading {
  call_counts calls{};
  call_times us_by_call{};  // of a real driver
  double us = 0;
};

/// The fake counts its calls and keeps a clock itself.
class fake_ground {
 public:
  static constexpr bool is_virtual = true;

  explicit fake_ground(const run_options& options)
      : driver_(options.busy_costs ? fake::profile::busy_cuda() : fake::profile::cuda()),
        is_busy_(options.busy_costs) {}
  [[nodiscard]] static result<std::unique_ptr<fake_ground>> open(const run_options& options) {
    return std::make_unique<fake_ground>(options);
  }
  [[nodiscard]] fake_driver& driver() noexcept { return driver_; }
  [[nodiscard]] meter_reading read() const {
    meter_reading out;
    for (std::size_t i = 0; i < call_count; ++i) out.calls[i] = driver_.calls(static_cast<call>(i));
    out.us = driver_.busy_us();
    return out;
  }
  void annotate(replay_report& report) {
    if (is_busy_) {
      constexpr fake::busy_table by = fake::profile::busy_factors;
      const auto [least, most] =
          std::minmax({by.create, by.release, by.map, by.set_access, by.unmap});
      const std::string to = most > least ? " to " + show_number(most, 1) : "";
      report.notes.push_back("calls that change memory cost " + show_number(least, 1) + to +
                             " times as much as in a replay on a GPU, as in running programs");
    }
  }
  /// Empty if everything was released and nothing was misused.
  [[nodiscard]] std::string complaint() {
    if (driver_.check_empty() && driver_.misuse_count() == 0) return "";
    return "the driver's resource counts are not zero afterwards: " + driver_.report(3);
  }

 private:
  fake_driver driver_;
  bool is_busy_;
};

/// Counts and times calls to a driver that does neither. One thread.
class call_watch {
 public:
  [[nodiscard]] status before(const call_record&) noexcept {
    begin_ = std::chrono::steady_clock::now();
    return {};
  }
  void after(const call_record& record) noexcept {
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin_;
    const auto kind = static_cast<std::size_t>(record.kind);
    seen_.us += taken.count();
    seen_.us_by_call[kind] += taken.count();
    ++seen_.calls[kind];
  }
  [[nodiscard]] const meter_reading& seen() const noexcept { return seen_; }

 private:
  std::chrono::steady_clock::time_point begin_;
  meter_reading seen_;
};

/// A driver that is watched.
template <class Driver>
class watched_ground {
 public:
  static constexpr bool is_virtual = false;

  explicit watched_ground(Driver driver) : driver_(std::move(driver), watch_) {}
  [[nodiscard]] auto& driver() noexcept { return driver_; }
  [[nodiscard]] meter_reading read() const { return watch_->seen(); }

 private:
  std::shared_ptr<call_watch> watch_ = std::make_shared<call_watch>();
  observed_backend<Driver, call_watch> driver_;
};

class host_ground : public watched_ground<host_driver> {
 public:
  using watched_ground::watched_ground;
  [[nodiscard]] static result<std::unique_ptr<host_ground>> open(const run_options&) {
    result<host_driver> driver = host_driver::open({.commit = commit_mode::lazy});
    if (!driver) return driver.error();
    return std::make_unique<host_ground>(std::move(*driver));
  }
  void annotate(replay_report& report) {
    report.notes.emplace_back(
        "host memory is committed lazily and never touched: times are of calls, not of memory");
    const result<memory_info> memory = driver().driver().query_memory(host());
    if (memory && report.peak_reserved_bytes > memory->total_bytes) {
      report.notes.push_back("the peak is more than this machine's " +
                             show_bytes(memory->total_bytes) + ": only lazy commit can hold it");
    }
  }
  [[nodiscard]] std::string complaint() {
    return driver().driver().resource_counts().empty() ? ""
                                                       : "the driver still holds memory afterwards";
  }
};

/// A GPU. Streams carry no work here, so that times are of calls alone.
template <class Driver>
class gpu_ground : public watched_ground<Driver> {
 public:
  using watched_ground<Driver>::watched_ground;
  [[nodiscard]] static result<std::unique_ptr<gpu_ground>> open(const run_options& options) {
    result<Driver> driver = Driver::open({.device = options.device});
    if (!driver) return driver.error();
    return std::make_unique<gpu_ground>(std::move(*driver));
  }
  void annotate(replay_report& report) {
    report.notes.push_back(std::string("device: ") +
                           this->driver().driver().description().device_name);
  }
  [[nodiscard]] std::string complaint() { return ""; }

  /// Free bytes of the device, by its driver; not counted as one of the calls. Level Zero's driver
  /// does not report them.
  [[nodiscard]] std::uint64_t free_bytes()
    requires std::same_as<Driver, cuda_driver>
  {
    const result<memory_info> memory = this->driver().driver().query_memory(this->driver().home());
    return memory ? memory->free_bytes : 0;
  }
};

// ---- the allocators under test ------------------------------------------------------------------

/// An allocator's figures of its memory.
struct memory_numbers {
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_held_bytes = 0;
  std::uint64_t unmapped_bytes = 0;  // held, but behind no address
};

// A trace may end with live blocks.
template <class Options>
[[nodiscard]] Options without_leak_hook(Options options) {
  options.leak_hook.hook = nullptr;
  return options;
}

template <class Driver>
class manager_subject {
 public:
  using options = manager_options;

  manager_subject(Driver& driver, const options& rules)
      : manager_(driver, without_leak_hook(rules)) {}

  /// Variables whose values only the driver can check.
  static constexpr std::array variables = {"VMM_CHUNK_SIZE", "VMM_VA_SIZE"};

  [[nodiscard]] status set_up() { return manager_.set_up(); }

  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes, stream_handle stream) {
    return manager_.allocate({.size_bytes = size_bytes, .stream = stream});
  }
  [[nodiscard]] status free(address at, stream_handle) { return manager_.free(at); }
  [[nodiscard]] result<history> take_history() { return manager_.history().take(); }
  [[nodiscard]] memory_numbers numbers() {
    const manager_statistics now = manager_.statistics();
    return {now.held_bytes, now.peak_held_bytes, now.retained_bytes};
  }

  /// The manager's extents, with live blocks cut at the requested size.
  [[nodiscard]] result<std::vector<extent>> extents() {
    const result<std::vector<extent_info>> found = manager_.extents();
    if (!found) return found.error();
    std::vector<extent> out;
    for (const extent_info& each : *found)
      if (status added = add(each, out); !added) return added.error();
    return out;
  }

 private:
  [[nodiscard]] status add(const extent_info& each, std::vector<extent>& out) {
    const auto append = [&out](address base, std::uint64_t size_bytes, tools::extent_kind kind) {
      if (size_bytes != 0) out.push_back({{base, size_bytes}, kind});
    };
    const address base = each.where.base;
    if (each.kind == vmm::extent_kind::hole || each.kind == vmm::extent_kind::retired) {
      const bool is_hole = each.kind == vmm::extent_kind::hole;
      append(base, each.where.size_bytes, is_hole ? extent_kind::hole : extent_kind::stale);
      return {};
    }
    const bool is_live = each.kind == vmm::extent_kind::live;
    std::uint64_t used_bytes = 0;
    if (is_live) {
      const result<range_info> block = manager_.find(base);
      if (!block) return block.error();
      used_bytes = std::min(live_bytes_of(block->sizes.user_bytes), each.mapped_bytes);
      append(base, used_bytes, extent_kind::live);
    }
    append(base + used_bytes, each.mapped_bytes - used_bytes,
           is_live ? extent_kind::rounding : extent_kind::kept);
    append(base + each.mapped_bytes, each.where.size_bytes - each.mapped_bytes, extent_kind::hole);
    return {};
  }

  manager manager_;
};

template <class Driver>
class pool_subject {
 public:
  using options = pool_options;

  pool_subject(Driver& driver, const options& rules) : pool_(driver, without_leak_hook(rules)) {}

  static constexpr std::array variables = {"VMM_VA_SIZE",    "VPMM_VA_SIZE",   "VMM_POOL_PAGE_SIZE",
                                           "VPMM_PAGE_SIZE", "VMM_POOL_PAGES", "VPMM_PAGES"};

  [[nodiscard]] status set_up() { return pool_.set_up(); }

  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes, stream_handle stream) {
    return pool_.allocate(size_bytes, stream);
  }
  [[nodiscard]] status free(address at, stream_handle stream) { return pool_.free(at, stream); }
  [[nodiscard]] result<history> take_history() { return pool_.history().take(); }
  [[nodiscard]] memory_numbers numbers() {
    const pool_statistics now = pool_.statistics();
    return {now.mapped_bytes, now.peak_mapped_bytes, 0};
  }

  /// Up to the last region that is not a hole.
  [[nodiscard]] result<std::vector<extent>> extents() {
    const result<std::vector<pool_region>> regions = pool_.regions();
    if (!regions) return regions.error();
    std::vector<extent> out;
    for (const pool_region& region : *regions) out.push_back({region.range, kind_of(region.kind)});
    while (!out.empty() && out.back().kind == extent_kind::hole) out.pop_back();
    return out;
  }

 private:
  [[nodiscard]] static tools::extent_kind kind_of(pool_region_kind kind) noexcept {
    switch (kind) {
      case pool_region_kind::live: return extent_kind::live;
      case pool_region_kind::free: return extent_kind::kept;
      case pool_region_kind::hole: return extent_kind::hole;
      case pool_region_kind::stale:
      case pool_region_kind::busy: break;
    }
    return extent_kind::stale;
  }

  stream_pool pool_;
};

/// A driver, an allocator on it, and one stream for each that the trace names. Streams outlive the
/// allocator, whose last frees they order.
template <class Ground, template <class> class Subject>
class bench_rig {
 public:
  using driver_type = std::remove_reference_t<decltype(std::declval<Ground&>().driver())>;
  using subject_type = Subject<driver_type>;

  bench_rig(std::unique_ptr<Ground> ground, const typename subject_type::options& options)
      : ground_(std::move(ground)), subject_(std::in_place, ground_->driver(), options) {}

  [[nodiscard]] status open_streams(const trace& input) {
    std::uint16_t last = 0;
    for (const event& each : input.events) last = std::max(last, each.stream);
    streams_.assign(std::size_t{last} + 1, stream_handle::default_stream);
    if constexpr (stream_backend<driver_type>) {
      if (!ground_->driver().feature_set().streams) return {};
      for (std::size_t i = 1; i < streams_.size(); ++i) {
        const result<stream_handle> made = ground_->driver().create_stream();
        if (!made) return made.error();
        streams_[i] = *made;
      }
    }
    return {};
  }

  [[nodiscard]] result<address> allocate(const replay_request& request) {
    return subject_->allocate(request.size_bytes, streams_[request.stream]);
  }
  [[nodiscard]] status free(address at, std::uint16_t stream) {
    return subject_->free(at, streams_[stream]);
  }
  [[nodiscard]] status free(address at) { return free(at, std::uint16_t{0}); }
  [[nodiscard]] std::uint64_t held_bytes() const { return subject_->numbers().held_bytes; }

  [[nodiscard]] Ground& ground() noexcept { return *ground_; }
  [[nodiscard]] subject_type& subject() noexcept { return *subject_; }

  /// Ends the allocator; empty when the driver has everything back.
  [[nodiscard]] std::string close() {
    subject_.reset();
    if constexpr (stream_backend<driver_type>) {
      const bool has_streams = ground_->driver().feature_set().streams;
      for (std::size_t i = 1; has_streams && i < streams_.size(); ++i) {
        if (const status gone = ground_->driver().destroy_stream(streams_[i]); !gone)
          return describe(gone.error());
      }
    }
    return ground_->complaint();
  }

 private:
  std::unique_ptr<Ground> ground_;
  mutable std::optional<subject_type> subject_;
  std::vector<stream_handle> streams_;
};

/// A rig whose memory is the decrease of the driver's free memory since the gauge was made: queried
/// after each event that created some.
template <class Rig>
class device_gauge {
 public:
  explicit device_gauge(Rig& rig) : rig_(rig), free_before_(rig.ground().free_bytes()) {}

  [[nodiscard]] result<address> allocate(const replay_request& request) {
    return rig_.allocate(request);
  }
  [[nodiscard]] status free(address at, std::uint16_t stream) { return rig_.free(at, stream); }
  [[nodiscard]] status free(address at) { return rig_.free(at); }
  [[nodiscard]] std::uint64_t held_bytes() const {
    const std::uint64_t created = rig_.ground().read().calls[std::size_t(call::create)];
    if (created != created_seen_) {
      const std::uint64_t free_now = rig_.ground().free_bytes();
      held_bytes_ = free_before_ > free_now ? free_before_ - free_now : 0;
      created_seen_ = created;
    }
    return held_bytes_;
  }

 private:
  Rig& rig_;
  std::uint64_t free_before_;
  mutable std::uint64_t created_seen_ = 0;
  mutable std::uint64_t held_bytes_ = 0;
};

// ---- the picture ------------------------------------------------------------------

/// "event 34,418 of 62,560, in iteration 12"
std::string place_of(const trace& input, std::uint64_t index) {
  std::string text = "event " + show_count(index + 1) + " of " + show_count(input.events.size());
  const iteration* within = nullptr;
  for (const iteration& mark : input.iterations)
    if (mark.first_event <= index) within = &mark;
  if (within != nullptr) text += ", in iteration " + show_count(within->number);
  return text;
}

picture picture_of(const replay_report& report, const trace& input, std::uint64_t at,
                   const memory_numbers& numbers, std::vector<extent> extents) {
  picture what;
  what.title = "Address space at the peak of reserved memory";
  what.captions.push_back("Trace " + report.trace + " on the " + report.backend +
                          " driver, policy " + report.policy + ", after " + place_of(input, at));
  what.captions.push_back(
      show_bytes(numbers.held_bytes) +
      " of physical memory are reserved for a trace whose live bytes peak at " +
      show_bytes(input.peak_live_bytes) + ": " +
      show_number(
          static_cast<double>(numbers.held_bytes) / static_cast<double>(input.peak_live_bytes), 3) +
      " times as much.");
  what.unmapped_bytes = numbers.unmapped_bytes;
  what.extents = std::move(extents);
  return what;
}

// ---- a run ------------------------------------------------------------------

run_outcome refused(std::string problem) {
  run_outcome out;
  out.problem = std::move(problem);
  return out;
}

/// Why a replay ended early; no text when it did not.
struct trouble {
  std::string text;
  bool is_callers_fault = false;
};

/// An option that does not fit the driver came from one of `variables`: those that are set stand
/// before the reason.
template <std::size_t Count>
trouble cause_of(const error& why, const std::array<const char*, Count>& variables) {
  if (why.code != errc::bad_option) return {describe(why)};
  std::string set;
  for (const char* const name : variables) {
    std::string_view value;
    read_text_option(name, value);
    if (value.empty()) continue;
    set += (set.empty() ? "" : ", ") + std::string(name) + "=" + std::string(value);
  }
  return {set + (set.empty() ? "" : ": ") + why.detail, true};
}

template <class Rig, class Ground, class Options>
[[nodiscard]] result<std::unique_ptr<Rig>> open_rig(const trace& input, const run_options& options,
                                                    const Options& rules) {
  result<std::unique_ptr<Ground>> ground = Ground::open(options);
  if (!ground) return ground.error();
  auto rig = std::make_unique<Rig>(std::move(*ground), rules);
  if (const status opened = rig->open_streams(input); !opened) return opened.error();
  return rig;
}

/// Fills the report's measured part.
template <class Ground, template <class> class Subject, class Options>
[[nodiscard]] trouble measure(const trace& input, const run_options& options, const Options& rules,
                              replay_report& report) {
  auto opened = open_rig<bench_rig<Ground, Subject>, Ground>(input, options, rules);
  if (!opened) return {describe(opened.error())};
  bench_rig<Ground, Subject>& rig = **opened;
  const meter_reading before = rig.ground().read();
  if (const status ready = rig.subject().set_up(); !ready)
    return cause_of(ready.error(), bench_rig<Ground, Subject>::subject_type::variables);
  if (!options.plays) return {rig.close()};
  replayer player{rig, input};
  const timed_pass first = player.play(options.progress);
  const meter_reading after = rig.ground().read();
  report.first_pass_ns = first.elapsed_ns;
  report.failures = first.failures;
  report.first_pass_peak_reserved_bytes = rig.subject().numbers().peak_held_bytes;
  for (std::size_t i = 0; i < call_count; ++i) {
    report.driver_calls[i] = after.calls[i] - before.calls[i];
    report.driver_us_by_call[i] = after.us_by_call[i] - before.us_by_call[i];
  }
  report.driver_us = after.us - before.us;
  std::uint64_t warm_failure_count = 0;
  for (std::uint32_t i = 0; i < options.warm_pass_count; ++i) {
    warm_failure_count += player.reset().count;
    const timed_pass warm = player.play();
    warm_failure_count += warm.failures.count;
    report.warm_passes_ns.push_back(warm.elapsed_ns);
  }
  report.peak_reserved_bytes = rig.subject().numbers().peak_held_bytes;
  const meter_reading last = rig.ground().read();
  for (std::size_t i = 0; i < call_count; ++i)
    report.warm_driver_calls[i] = last.calls[i] - after.calls[i];
  rig.ground().annotate(report);
  warm_failure_count += player.reset().count;
  if (warm_failure_count != 0)
    report.notes.push_back(show_count(warm_failure_count) + " failures after the first pass");
  return {rig.close()};
}

/// One more pass, untimed, that queries the device's driver for used memory.
template <class Ground, template <class> class Subject, class Options>
[[nodiscard]] std::string measure_device(const trace& input, const run_options& options,
                                         const Options& rules, replay_report& report) {
  using rig_type = bench_rig<Ground, Subject>;
  auto opened = open_rig<rig_type, Ground>(input, options, rules);
  if (!opened) return describe(opened.error());
  device_gauge<rig_type> gauge{**opened};
  replayer player{gauge, input};
  report.device_peak_bytes = player.observe().peak_held_bytes;
  (void)player.reset();
  return (*opened)->close();
}

/// Finds the peak, replays up to it, and reports the layout.
template <class Ground, template <class> class Subject, class Options>
[[nodiscard]] std::string draw_peak(const trace& input, const run_options& options,
                                    const Options& rules, const replay_report& report,
                                    picture& drawn) {
  std::uint64_t peak_event = 0;
  {
    auto opened = open_rig<bench_rig<Ground, Subject>, Ground>(input, options, rules);
    if (!opened) return describe(opened.error());
    replayer player{**opened, input};
    peak_event = player.observe().peak_event;
  }
  auto opened = open_rig<bench_rig<Ground, Subject>, Ground>(input, options, rules);
  if (!opened) return describe(opened.error());
  replayer player{**opened, input};
  (void)player.play_until(peak_event);  // the measured pass has reported failures
  auto extents = (*opened)->subject().extents();
  if (!extents) return describe(extents.error());
  drawn =
      picture_of(report, input, peak_event, (*opened)->subject().numbers(), std::move(*extents));
  return "";
}

/// Plays the trace once more, with a history, which is taken before anything is freed that the
/// trace
/// leaves live. A growth and what belongs to it count as events as well.
template <class Ground, template <class> class Subject, class Options>
[[nodiscard]] std::string record_history(const trace& input, const run_options& options,
                                         Options rules, history& taken) {
  history_options how;
  const std::uint64_t wanted = std::bit_ceil(std::uint64_t{4} * input.events.size());
  how.event_count = std::clamp(wanted, std::uint64_t{1} << 16, std::uint64_t{1} << 22);
  auto ring = history_ring::make(how);
  if (!ring) return describe(ring.error());
  rules.recorder = ring->get();
  auto opened = open_rig<bench_rig<Ground, Subject>, Ground>(input, options, rules);
  if (!opened) return describe(opened.error());
  replayer player{**opened, input};
  (void)player.play();  // the measured pass has reported failures
  auto seen = (*opened)->subject().take_history();
  if (!seen) return describe(seen.error());
  taken = std::move(*seen);
  return (*opened)->close();
}

template <class Ground, template <class> class Subject, class Options>
run_outcome run_on(const trace& input, const run_options& options, const Options& rules) {
  run_outcome out;
  replay_report report;
  report.trace = input.name;
  report.backend = options.backend;
  if (options.device != 0) report.backend += ":" + std::to_string(options.device);
  report.policy = rules.policy.name;
  report.allocation_count = input.allocation_count;
  report.free_count = input.free_count;
  report.iteration_count = input.iterations.size();
  report.peak_live_bytes = input.peak_live_bytes;
  report.driver_us_is_virtual = Ground::is_virtual;
  trouble met = measure<Ground, Subject>(input, options, rules, report);
  out.problem = std::move(met.text);
  out.is_callers_fault = met.is_callers_fault;
  if constexpr (requires(Ground& g) { g.free_bytes(); }) {
    if (out.problem.empty() && options.asks_device && options.plays)
      out.problem = measure_device<Ground, Subject>(input, options, rules, report);
  }
  if (out.problem.empty() && options.draw && options.plays)
    out.problem = draw_peak<Ground, Subject>(input, options, rules, report, out.drawn);
  if (out.problem.empty() && options.record && options.plays)
    out.problem = record_history<Ground, Subject>(input, options, rules, out.taken);
  if (out.problem.empty()) out.report = std::move(report);
  return out;
}

run_outcome callers_fault(const char* what) {
  run_outcome out = refused(what);
  out.is_callers_fault = true;
  return out;
}

template <template <class> class Subject, class Options>
run_outcome run_with(const trace& input, const run_options& options, const Options& rules) {
  if (options.backend == "fake") return run_on<fake_ground, Subject>(input, options, rules);
  if (options.busy_costs) return callers_fault("only the fake driver has costs to choose from");
  if (options.backend == "host") return run_on<host_ground, Subject>(input, options, rules);
  if (options.backend == "cuda") {
    // Held over all passes, so that the device's context is made once.
    const result<cuda_driver> device = cuda_driver::open({.device = options.device});
    if (!device) return refused("no CUDA device: " + describe(device.error()));
    return run_on<gpu_ground<cuda_driver>, Subject>(input, options, rules);
  }
  if (options.backend == "level_zero") {
    const result<level_zero_driver> device = level_zero_driver::open({.device = options.device});
    if (!device) return refused("no Level Zero device: " + describe(device.error()));
    return run_on<gpu_ground<level_zero_driver>, Subject>(input, options, rules);
  }
  return callers_fault("a backend is one of fake, host, cuda, level_zero");
}

}  // namespace

run_outcome run_replay(const trace& input, const run_options& options) {
  if (const result<pool_policy> named = pool_policy::by_name(options.policy); named) {
    result<pool_options> rules = pool_options::from_environment({});
    if (!rules) return callers_fault(rules.error().detail);
    if (const auto other = manager_options::from_environment({}); !other)
      return callers_fault(other.error().detail);
    rules->policy = *named;
    return run_with<pool_subject>(input, options, *rules);
  }
  result<manager_options> rules = manager_options::from_environment({});
  if (!rules) return callers_fault(rules.error().detail);
  if (!options.policy.empty()) {
    if (const auto other = pool_options::from_environment({}); !other)
      return callers_fault(other.error().detail);
    const result<manager_policy> named = manager_policy::by_name(options.policy);
    if (!named)
      return callers_fault("a policy is one of va_pool, keep_mapped, virtual_caching, pool, vpmm");
    rules->policy = *named;
    // Other variables of a manager_policy stay; from_environment has checked them.
    (void)read_number_option("VMM_FRAG_RATIO", rules->policy.fragment_ratio, "");
    (void)read_bytes_option("VMM_CHUNK_SIZE", rules->policy.chunk_bytes, "");
  }
  return run_with<manager_subject>(input, options, *rules);
}

}  // namespace vmm::tools
