// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_stream - what an allocation or a free of the stream pool costs the host when its memory is
// there, on recorded traces and against the number of live blocks, beside allocators that do the
// same bookkeeping.
//
// Traces: each allocator replays a trace forty times and gives everything back behind each pass.
// Two passes are not timed; then the allocators take turns, and only the events are timed, in the
// thread's own processor time (an index, a branch and a store an event are the loop's and not
// subtracted). Times are medians of the turns; memory is the peak of the first pass and that of all
// forty. The pool plays a trace's streams as one, on the fake driver; calls to it in the timed
// passes are counted and shown. Peers:
//   caching  best fit in cached segments, in the shape that frameworks use: an ordered set of free
//            blocks by stream, size and address for requests up to 1 MiB and one for larger ones,
//            a hash map from address to block, blocks that know their neighbours, one mutex.
//   malloc   glibc's, with a byte for every 512 requested; it never maps or trims.
//   pmr      std::pmr::unsynchronized_pool_resource over malloc, likewise.
// The last two keep their records inside the memory that they hand out, which an allocator of
// device memory cannot.
//
// Cold (--cold): what a call costs whose caches a program has used meanwhile. Each event is timed
// by itself, with two looks at the clock, whose own cost is measured in the same way and
// subtracted; between two events the thread writes to 2,000 cache lines of its own (128 KiB, as a
// little Python does), not one behind the other. The same allocators take turns. A turn's slowest
// thousandth is dropped as the machine's; the pool's own slow calls, where it grows or moves, are
// rarer than that on the project's traces.
//
// Lines (--lines): plays each trace with the pool alone, once to warm it and once between marks,
// for cache_lines.py, which runs this under valgrind and counts the cache lines of each call.
//
// With --created the pool's calls are made on a created stream, not on the default one: the pool
// then queries the driver for a capture. The fake driver's query costs less than a real one's.
//
// Live blocks: batches.hpp, in units of 512 bytes. Victims are random among all blocks, or among
// the 512 that were made last. "Lines alone" is the least that an allocator reaches which looks
// blocks up by their addresses: an entry and a record for a free, an entry for an allocation, of a
// cache line each, in huge pages, without a search, a lock or neighbours.
#include <malloc.h>
#include <sys/mman.h>

#include <memory_resource>
#include <unordered_map>

#include "batches.hpp"
#include "report.hpp"
#include "traces.hpp"

import vmm.fake;
import vmm.stream;
import vmm.trace;

namespace {

using clock_type = std::chrono::steady_clock;
using vmm::tools::event, vmm::tools::event_kind, vmm::tools::trace;

constexpr std::uint64_t block_bytes = vmm::tools::live_unit_bytes;
constexpr std::uint64_t mib = 1 << 20;

/// Of the steady clock, which is cheaper to read than that of the thread.
double clock_ns() {
  return std::chrono::duration<double, std::nano>(clock_type::now().time_since_epoch()).count();
}

// ---- the allocators ------------------------------------------------------------------

bool on_created_stream = false;
bool is_alone = false;

/// What peers play.
const trace& for_peers(const trace& input) {
  static const trace nothing;
  return is_alone ? nothing : input;
}

class pool_subject {
 public:
  using handle = vmm::address;

  pool_subject() {
    if (on_created_stream) stream_ = must(driver_.create_stream());
  }

  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t = 0) {
    const vmm::result<handle> at = pool_.allocate(size_bytes, stream_);
    if (!at) [[unlikely]]
      stop(at.error().detail);
    return *at;
  }
  [[gnu::noinline]] void give(handle at, std::uint16_t = 0) {
    if (!pool_.free(at, stream_)) [[unlikely]]
      stop("the pool refused a free");
  }
  /// Calls to the driver so far.
  [[nodiscard]] std::uint64_t calls() const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < vmm::call_count; ++i) {
      const auto kind = static_cast<vmm::call>(i);
      if (kind != vmm::call::query_granularity) sum += driver_.calls(kind);
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t held_bytes_max() { return pool_.statistics().peak_mapped_bytes; }

 private:
  vmm::fake_driver driver_;
  vmm::stream_handle stream_ = vmm::stream_handle::default_stream;
  vmm::stream_pool pool_{driver_, vmm::pool_options::from_environment({}).value()};
};

/// See "lines alone" above.
class lines_subject {
 public:
  struct handle {
    std::uint32_t entry = 0;
    std::uint32_t record = 0;
  };

  [[gnu::noinline]] handle take(std::uint32_t size) {
    handle made{mixed(), used_};
    if (spare_.empty()) {
      if (++used_ > count_max) stop("more blocks than lines");
    } else {
      made.record = spare_.back();
      spare_.pop_back();
    }
    entries_[made.entry].word = 0;
    records_[made.record].word = size;
    live_bytes_ += size;
    return made;
  }
  [[gnu::noinline]] void give(handle gone) {
    const std::uint32_t found = gone.record + entries_[gone.entry].word;
    live_bytes_ -= std::exchange(records_[found].word, 0);
    spare_.push_back(found);
  }

 private:
  struct alignas(64) line {
    std::uint32_t word;
  };
  struct free_lines {
    void operator()(line* lines) const { std::free(lines); }
  };
  using lines = std::unique_ptr<line[], free_lines>;
  static constexpr std::uint32_t count_max = 1 << 20;

  static lines make() {
    constexpr std::size_t size_bytes = count_max * sizeof(line);
    void* const at = std::aligned_alloc(2 * mib, size_bytes);
    if (at == nullptr) stop("no memory for lines");
    (void)::madvise(at, size_bytes, MADV_HUGEPAGE);
    return lines(static_cast<line*>(at));
  }
  // One of a quarter as many lines as there are blocks.
  std::uint32_t mixed() {
    const std::uint64_t mix = ++taken_ * 0x9E3779B97F4A7C15u;
    return static_cast<std::uint32_t>(mix >> 32) & (std::bit_ceil(used_ + 4) / 4 - 1);
  }

  lines entries_ = make();
  lines records_ = make();
  std::vector<std::uint32_t> spare_;
  std::uint64_t taken_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint32_t used_ = 0;
};

/// Memory is only counted: the addresses are made up.
class caching_subject {
 public:
  struct block {
    std::uint64_t at = 0;
    std::uint64_t size_bytes = 0;
    std::uint16_t stream = 0;
    bool small = false;
    bool live = false;
    block* before = nullptr;
    block* after = nullptr;
  };
  using handle = std::uint64_t;

  caching_subject() = default;
  caching_subject(const caching_subject&) = delete;
  caching_subject& operator=(const caching_subject&) = delete;
  ~caching_subject() {
    for (const auto& live : live_) delete live.second;
    for (const auto& free : free_)
      for (const block* each : free) delete each;
  }

  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t stream = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::uint64_t rounded = vmm::tools::live_bytes_of(size_bytes);
    const bool small = rounded <= mib;
    block* const found = find(rounded, stream, small);
    const std::uint64_t rest = found->size_bytes - rounded;
    if (small ? rest >= block_bytes : rest > mib) split(*found, rounded);
    found->live = true;
    live_.emplace(found->at, found);
    return found->at;
  }

  [[gnu::noinline]] void give(handle at, std::uint16_t = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto where = live_.find(at);
    block* freed = where->second;
    live_.erase(where);
    freed->live = false;
    if (block* const left = freed->before; left != nullptr && !left->live) {
      free_[left->small].erase(left);
      swallow(*left, *freed);
      freed = left;
    }
    if (block* const right = freed->after; right != nullptr && !right->live) {
      free_[right->small].erase(right);
      swallow(*freed, *right);
    }
    free_[freed->small].insert(freed);
  }
  [[nodiscard]] static std::uint64_t calls() { return 0; }
  [[nodiscard]] std::uint64_t held_bytes_max() const { return held_bytes_; }

 private:
  struct by_size {
    bool operator()(const block* a, const block* b) const {
      if (a->stream != b->stream) return a->stream < b->stream;
      if (a->size_bytes != b->size_bytes) return a->size_bytes < b->size_bytes;
      return a->at < b->at;
    }
  };

  block* find(std::uint64_t size_bytes, std::uint16_t stream, bool small) {
    block wanted{.size_bytes = size_bytes, .stream = stream};
    auto& free = free_[small];
    const auto found = free.lower_bound(&wanted);
    if (found != free.end() && (*found)->stream == stream) {
      block* const best = *found;
      free.erase(found);
      return best;
    }
    return segment(size_bytes, stream, small);
  }

  block* segment(std::uint64_t size_bytes, std::uint16_t stream, bool small) {
    std::uint64_t length = (size_bytes + 2 * mib - 1) / (2 * mib) * (2 * mib);
    if (small) length = 2 * mib;
    if (!small && size_bytes < 10 * mib) length = 20 * mib;
    block* const made = new block{next_, length, stream, small};
    next_ += length + 2 * mib;
    held_bytes_ += length;
    return made;
  }

  void split(block& left, std::uint64_t size_bytes) {
    block* const right =
        new block{left.at + size_bytes, left.size_bytes - size_bytes, left.stream, left.small};
    right->before = &left;
    right->after = left.after;
    if (left.after != nullptr) left.after->before = right;
    left.after = right;
    left.size_bytes = size_bytes;
    free_[left.small].insert(right);
  }

  static void swallow(block& left, block& right) {
    left.size_bytes += right.size_bytes;
    left.after = right.after;
    if (right.after != nullptr) right.after->before = &left;
    delete &right;
  }

  std::mutex mutex_;
  std::set<block*, by_size> free_[2];  // large, small
  std::unordered_map<std::uint64_t, block*> live_;
  std::uint64_t next_ = std::uint64_t{1} << 40;
  std::uint64_t held_bytes_ = 0;
};

[[nodiscard]] constexpr std::size_t scaled(std::uint64_t size_bytes) {
  return static_cast<std::size_t>(vmm::tools::live_bytes_of(size_bytes) / block_bytes);
}

struct malloc_subject {
  using handle = void*;
  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t = 0) {
    return std::malloc(scaled(size_bytes));
  }
  [[gnu::noinline]] void give(handle at, std::uint16_t = 0) { std::free(at); }
  [[nodiscard]] static std::uint64_t calls() { return 0; }
  [[nodiscard]] static std::uint64_t held_bytes_max() { return 0; }
};

class pmr_subject {
 public:
  struct handle {
    void* at = nullptr;
    std::size_t size = 0;
  };
  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t = 0) {
    const std::size_t size = scaled(size_bytes);
    return {memory_.allocate(size), size};
  }
  [[gnu::noinline]] void give(handle what, std::uint16_t = 0) {
    memory_.deallocate(what.at, what.size);
  }
  [[nodiscard]] static std::uint64_t calls() { return 0; }
  [[nodiscard]] static std::uint64_t held_bytes_max() { return 0; }

 private:
  std::pmr::unsynchronized_pool_resource memory_;
};

// ---- traces --------------------------------------------------------------------------

/// Cache lines of a program that calls an allocator now and then.
class other_work {
 public:
  static constexpr std::size_t line_count = 2'000;

  [[gnu::noinline]] void touch() {
    constexpr std::size_t stride = 1'171;  // it and line_count have no common divisor
    std::size_t at = 0;
    for (std::size_t i = 0; i < line_count; ++i) {
      ++lines_[at].count;
      at += stride;
      if (at >= line_count) at -= line_count;
    }
  }

 private:
  struct alignas(64) line {
    std::uint64_t count = 0;
  };
  std::vector<line> lines_ = std::vector<line>(line_count);
};

/// Nanoseconds a call.
struct cold_figure {
  double mean_ns = 0;
  double median_ns = 0;
};

/// Of single calls, less what a look at the clock costs. The slowest thousandth counts for the
/// median only.
cold_figure cold_figure_of(std::vector<float>& ns, double clock_cost_ns) {
  const auto kept = ns.end() - static_cast<std::ptrdiff_t>(ns.size() / 1000);
  std::nth_element(ns.begin(), kept - 1, ns.end());
  const double mean =
      std::accumulate(ns.begin(), kept, 0.0) / static_cast<double>(kept - ns.begin());
  const auto middle = ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2);
  std::nth_element(ns.begin(), middle, ns.end());
  return {mean - clock_cost_ns, static_cast<double>(*middle) - clock_cost_ns};
}

/// Two looks at the clock with nothing in between, after other work: the median.
double clock_cost_ns(other_work& work) {
  std::vector<double> ns(2'001);
  for (double& each : ns) {
    work.touch();
    const double start = clock_ns();
    each = clock_ns() - start;
  }
  return median(ns);
}

/// Written at the beginning and end of a call: visible to a tracer of memory accesses.
struct alignas(64) call_marks {
  volatile std::uint64_t allocates = 0;
  volatile std::uint64_t frees = 0;
  volatile std::uint64_t ends = 0;
};
call_marks marks;

/// One allocator and a trace that it plays again and again.
template <class Subject>
class player {
 public:
  explicit player(const trace& input) : input_(input), live_(input.slot_count) {
    std::vector<bool> is_live(input.slot_count);
    for (const event& each : input.events) is_live[each.slot] = each.kind == event_kind::allocate;
    for (std::size_t slot = 0; slot < is_live.size(); ++slot)
      if (is_live[slot]) left_.push_back(slot);
    (void)play();
    first_ratio_ = ratio();
  }

  /// Nanoseconds an event.
  double play() {
    const std::uint64_t before = subject_->calls();
    const double start_ns = cpu_ns();
    for (const event& now : input_.events) call(now, live_[now.slot]);
    const double taken_ns = cpu_ns() - start_ns;
    calls_ = subject_->calls() - before;
    for (const std::size_t slot : left_) subject_->give(live_[slot], 0);
    return taken_ns / static_cast<double>(input_.events.size());
  }

  /// With other work before each event.
  cold_figure play_cold(other_work& work) {
    std::vector<float> ns;
    ns.reserve(input_.events.size());
    const double clock_cost = clock_cost_ns(work);
    for (const event& now : input_.events) {
      auto& at = live_[now.slot];
      work.touch();
      const double start_ns = clock_ns();
      call(now, at);
      ns.push_back(static_cast<float>(clock_ns() - start_ns));
    }
    for (const std::size_t slot : left_) subject_->give(live_[slot], 0);
    return cold_figure_of(ns, clock_cost);
  }

  /// Each call between two marks.
  void play_marked() {
    for (const event& now : input_.events) {
      auto& at = live_[now.slot];
      auto& begins = now.kind == event_kind::allocate ? marks.allocates : marks.frees;
      begins = 1;
      call(now, at);
      marks.ends = 1;
    }
    for (const std::size_t slot : left_) subject_->give(live_[slot], 0);
  }

  /// In the last pass.
  [[nodiscard]] std::uint64_t calls() const { return calls_; }
  /// The most memory held by the most bytes live, in the first pass.
  [[nodiscard]] double first_ratio() const { return first_ratio_; }
  /// In all passes so far.
  [[nodiscard]] double ratio() const {
    if (input_.peak_live_bytes == 0) return 0;
    return static_cast<double>(subject_->held_bytes_max()) /
           static_cast<double>(input_.peak_live_bytes);
  }

 private:
  [[gnu::always_inline]] void call(const event& now, typename Subject::handle& at) {
    if (now.kind == event_kind::allocate) {
      at = subject_->take(now.size_bytes, now.stream);
    } else {
      subject_->give(at, now.stream);
    }
  }

  const trace& input_;
  std::vector<typename Subject::handle> live_;
  std::vector<std::size_t> left_;  // slots that the trace leaves live
  std::unique_ptr<Subject> subject_ = std::make_unique<Subject>();
  std::uint64_t calls_ = 0;
  double first_ratio_ = 0;
};

constexpr std::size_t kind_count = 4;
constexpr std::array<const char*, kind_count> titles{"vmm.stream", "caching", "malloc", "pmr"};
constexpr std::array<const char*, kind_count> keys{"pool", "caching", "malloc", "pmr"};

/// The pool and its peers on one trace.
struct players {
  explicit players(const trace& input)
      : pool(input), caching(for_peers(input)), plain(for_peers(input)), pooled(for_peers(input)) {}

  template <class Visit>
  void each(Visit&& visit) {
    visit(0, pool);
    if (is_alone) return;
    visit(1, caching);
    visit(2, plain);
    visit(3, pooled);
  }

  player<pool_subject> pool;
  player<caching_subject> caching;
  player<malloc_subject> plain;
  player<pmr_subject> pooled;
};

void measure(const trace& input, table& into) {
  constexpr int pass_count = 40;
  players all(input);
  std::array<std::vector<double>, kind_count> ns;
  std::uint64_t calls = 0;
  all.each([](std::size_t, auto& one) { (void)one.play(); });
  for (int pass = 2; pass < pass_count; ++pass) {
    all.each([&](std::size_t i, auto& one) { ns[i].push_back(one.play()); });
    calls += all.pool.calls();
  }
  into.row()
      .text("trace", input.name, "trace")
      .figure("vmm.stream, ns", median(ns[0]), 1, "ns_per_event")
      .figure("best", *std::ranges::min_element(ns[0]), 1, "ns_per_event_best");
  for (std::size_t i = 1; i < kind_count; ++i)
    into.figure(titles[i], median(ns[i]), 1, keys[i] + std::string("_ns"));
  into.figure("caching / ours", median(ratios_of(ns[1], ns[0])), 2, "caching_by_ours")
      .count("driver calls, warm", calls, "warm_driver_calls")
      .figure("held / live, first pass", all.pool.first_ratio(), 3, "pool_first_peak")
      .figure("in forty", all.pool.ratio(), 3, "pool_peak")
      .figure("caching, first pass", all.caching.first_ratio(), 3, "caching_first_peak")
      .figure("in forty", all.caching.ratio(), 3, "caching_peak");
}

// ---- cold caches ---------------------------------------------------------------------

void measure_cold(const trace& input, table& into) {
  constexpr int turns = 3;
  other_work work;
  players all(input);
  (void)all.pool.play();
  std::array<std::vector<double>, kind_count> means;
  std::array<std::vector<double>, kind_count> medians;
  for (int turn = 0; turn < turns; ++turn) {
    all.each([&](std::size_t i, auto& one) {
      const cold_figure seen = one.play_cold(work);
      means[i].push_back(seen.mean_ns);
      medians[i].push_back(seen.median_ns);
    });
  }
  into.row().text("trace", input.name, "trace");
  for (std::size_t i = 0; i < kind_count; ++i)
    into.figure(titles[i] + std::string(", mean ns"), median(means[i]), 0,
                keys[i] + std::string("_mean_ns"))
        .figure("median", median(medians[i]), 0, keys[i] + std::string("_median_ns"));
  into.figure("caching / ours", median(means[1]) / median(means[0]), 2);
}

// ---- cache lines ---------------------------------------------------------------------

void play_for_lines(const trace& input) {
  std::printf("marks %p %p %p of %s\n", static_cast<volatile void*>(&marks.allocates),
              static_cast<volatile void*>(&marks.frees), static_cast<volatile void*>(&marks.ends),
              input.name.c_str());
  std::fflush(stdout);
  player<pool_subject> pool(input);
  pool.play_marked();
}

// ---- live blocks ---------------------------------------------------------------------

/// What is timed: random and recent victims of the pool, then of caching, and random ones of lines
/// alone.
constexpr std::size_t live_columns = 5;
using live_times = std::array<std::vector<double>, live_columns>;

/// The allocators with so many blocks live, each warm.
class live_players {
 public:
  explicit live_players(std::size_t live_count)
      : counted_(std::clamp(round_of(live_count), std::size_t{1'000}, std::size_t{4'000})),
        pool_(live_count),
        caching_(is_alone ? 0 : live_count),
        lines_(live_count) {
    const std::size_t warm = 2 * round_of(live_count);
    (void)pool_.replace(warm);
    (void)lines_.replace(warm);
    if (!is_alone) (void)caching_.replace(warm);
  }

  /// Before each, a part of its round is not counted: another one has had the caches.
  void take_turn(live_times& ns) {
    constexpr std::size_t recent_count = 512;
    const auto turn = [&](auto& subject, std::size_t reach, std::vector<double>& into) {
      (void)subject.replace(counted_ / 4 + 1, reach);
      into.push_back(subject.replace(counted_, reach) / 2);
    };
    turn(pool_, among_all, ns[0]);
    if (!is_alone) turn(caching_, among_all, ns[2]);
    turn(pool_, recent_count, ns[1]);
    if (!is_alone) turn(caching_, recent_count, ns[3]);
    turn(lines_, among_all, ns[4]);
  }

 private:
  std::size_t counted_;
  batch_churn<pool_subject, block_bytes> pool_;
  batch_churn<caching_subject, block_bytes> caching_;
  batch_churn<lines_subject, block_bytes> lines_;
};

using live_row = std::array<double, live_columns>;

void add_live(const std::string& name, const live_row& ns, table& into) {
  into.row()
      .text("live blocks", name, "count")
      .figure("vmm.stream, random victim, ns", ns[0], 1, "random_ns")
      .figure("recent victim", ns[1], 1, "recent_ns")
      .figure("caching, random victim", ns[2], 1, "caching_random_ns")
      .figure("recent victim", ns[3], 1, "caching_recent_ns")
      .figure("lines alone, random victim", ns[4], 1, "lines_random_ns");
}

/// The numbers of live blocks take turns: a machine changes its clock within a second. Ratios are
/// of one turn.
void measure_lives(table& into, table& growth) {
  constexpr std::array<std::size_t, 4> counts{1'000, 10'000, 100'000, 1'000'000};
  constexpr int turns = 9;
  std::vector<std::unique_ptr<live_players>> players;
  for (const std::size_t count : counts) players.push_back(std::make_unique<live_players>(count));
  std::array<live_times, counts.size()> ns;
  for (int i = 0; i < turns; ++i)
    for (std::size_t at = 0; at < counts.size(); ++at) players[at]->take_turn(ns[at]);
  for (std::size_t at = 0; at < counts.size(); ++at) {
    live_row medians{};
    std::ranges::transform(ns[at], medians.begin(), median);
    add_live(std::to_string(counts[at]), medians, into);
  }
  live_row middle;
  middle.fill(std::numeric_limits<double>::quiet_NaN());  // of what took no turn
  live_row lowest = middle;
  live_row highest = middle;
  for (std::size_t i = 0; i < live_columns; ++i) {
    const std::vector<double> ratios = ratios_of(ns.back()[i], ns.front()[i]);
    if (ratios.empty()) continue;
    middle[i] = median(ratios);
    lowest[i] = std::ranges::min(ratios);
    highest[i] = std::ranges::max(ratios);
  }
  add_live("last / first", middle, growth);
  add_live("lowest", lowest, growth);
  add_live("highest", highest, growth);
}

// ---- the report ----------------------------------------------------------------------

constexpr const char* usage =
    "usage: bench_stream [--json [--alone]] [--created] [--traces | --live | --cold | --lines]\n"
    "                    [TRACE...]\n"
    "  --traces, --live   only one half\n"
    "  --cold             calls with other work between them, whose caches are cold; nothing else\n"
    "  --lines            the pool's calls between marks, for benchmarks/cache_lines.py; nothing "
    "else\n"
    "  --alone            the pool without its peers, whose figures are 0\n"
    "  --created          the pool's calls on a stream that was created, which may be captured\n"
    "  TRACE              trace files; without one, those of the project\n";

[[noreturn]] void misuse() {
  std::fputs(usage, stderr);
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  std::string_view part;
  std::vector<std::string> files;
  option_list line(usage);
  line.flag("--json", json).flag("--created", on_created_stream).flag("--alone", is_alone);
  std::array<std::pair<std::string_view, bool>, 4> parts{
      {{"--traces", false}, {"--live", false}, {"--cold", false}, {"--lines", false}}};
  for (auto& [name, is_chosen] : parts) line.flag(name, is_chosen);
  line.files(files).read(argc, argv);
  for (const auto& [name, is_chosen] : parts) {
    if (is_chosen && !part.empty()) misuse();
    if (is_chosen) part = name;
  }
  if (is_alone && !json) misuse();
  files = or_those_of_the_project(std::move(files), 4);
  (void)::mallopt(M_MMAP_MAX, 0);
  (void)::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  table traces;
  table lives;
  table growth;
  for (std::size_t i = 0; part != "--live" && i < files.size(); ++i) {
    const trace input = read_or_stop(files[i]);
    if (part == "--lines") {
      play_for_lines(input);
    } else if (part == "--cold") {
      measure_cold(input, traces);
    } else {
      measure(input, traces);
    }
  }
  if (part.empty() || part == "--live") measure_lives(lives, growth);
  if (part == "--lines") return 0;
  if (json) {
    print((part == "--cold" ? "{\"cold\": " : "{\"traces\": ") + traces.json() +
          ", \"live_blocks\": " + lives.json() + ", \"growth\": " + growth.json() + "}\n");
  } else {
    print(traces.markdown() + "\n" + lives.markdown() + "\n" + growth.markdown());
  }
#ifndef NDEBUG
  std::puts("\nThis is not a release build: the figures say little. Use ./run bench stream.");
#endif
  return 0;
}
