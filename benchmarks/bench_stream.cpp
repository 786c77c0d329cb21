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
// Live blocks: sizes from a bounded power law (exponent 1.2, 512 bytes to 2 MiB); 64 blocks are
// freed and 64 allocated in a timed batch, victims and sizes drawn outside it; the slowest 2 % of
// the batches are dropped as the machine's. Victims are random among all blocks, or among the 512
// that were made last.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "report.hpp"

import vmm.fake;
import vmm.stream;
import vmm.trace;

namespace {

using clock_type = std::chrono::steady_clock;
using vmm::tools::event;
using vmm::tools::event_kind;
using vmm::tools::trace;

constexpr std::uint64_t block_bytes = vmm::tools::live_unit_bytes;
constexpr std::uint64_t mib = 1 << 20;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "bench_stream: %s\n", why.c_str());
  std::exit(1);
}

double ns_since(clock_type::time_point start) {
  return std::chrono::duration<double, std::nano>(clock_type::now() - start).count();
}

/// Of the steady clock, which is cheaper to ask than that of the thread.
double clock_ns() {
  return std::chrono::duration<double, std::nano>(clock_type::now().time_since_epoch()).count();
}

/// Of this thread alone: what others do to the machine shows in caches only.
double cpu_ns() {
  timespec now{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
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
    if (!on_created_stream) return;
    const vmm::result<vmm::stream_handle> made = driver_.create_stream();
    if (!made) fail("the fake driver has no stream");
    stream_ = *made;
  }

  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t) {
    const vmm::result<handle> at = pool_.allocate(size_bytes, stream_);
    if (!at) [[unlikely]]
      fail(at.error().detail);
    return *at;
  }
  [[gnu::noinline]] void give(handle at, std::uint16_t) {
    if (!pool_.free(at, stream_)) [[unlikely]]
      fail("the pool refused a free");
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
    for (const auto& free : free_) {
      for (const block* each : free) delete each;
    }
  }

  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t stream) {
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

  [[gnu::noinline]] void give(handle at, std::uint16_t) {
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
    block wanted;
    wanted.size_bytes = size_bytes;
    wanted.stream = stream;
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

class malloc_subject {
 public:
  using handle = void*;
  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t) {
    return std::malloc(scaled(size_bytes));
  }
  [[gnu::noinline]] void give(handle at, std::uint16_t) { std::free(at); }
  [[nodiscard]] static std::uint64_t calls() { return 0; }
  [[nodiscard]] static std::uint64_t held_bytes_max() { return 0; }
};

class pmr_subject {
 public:
  struct handle {
    void* at = nullptr;
    std::size_t size = 0;
  };
  [[gnu::noinline]] handle take(std::uint64_t size_bytes, std::uint16_t) {
    const std::size_t size = scaled(size_bytes);
    return {memory_.allocate(size), size};
  }
  [[gnu::noinline]] void give(handle what, std::uint16_t) {
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
    for (std::size_t slot = 0; slot < is_live.size(); ++slot) {
      if (is_live[slot]) left_.push_back(slot);
    }
    (void)play();
    first_ratio_ = ratio();
  }

  /// Nanoseconds an event.
  double play() {
    const std::uint64_t before = subject_->calls();
    const double start_ns = cpu_ns();
    for (const event& now : input_.events) {
      if (now.kind == event_kind::allocate) {
        live_[now.slot] = subject_->take(now.size_bytes, now.stream);
      } else {
        subject_->give(live_[now.slot], now.stream);
      }
    }
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
      if (now.kind == event_kind::allocate) {
        at = subject_->take(now.size_bytes, now.stream);
      } else {
        subject_->give(at, now.stream);
      }
      ns.push_back(static_cast<float>(clock_ns() - start_ns));
    }
    for (const std::size_t slot : left_) subject_->give(live_[slot], 0);
    return cold_figure_of(ns, clock_cost);
  }

  /// Each call between two marks.
  void play_marked() {
    for (const event& now : input_.events) {
      auto& at = live_[now.slot];
      if (now.kind == event_kind::allocate) {
        marks.allocates = 1;
        at = subject_->take(now.size_bytes, now.stream);
      } else {
        marks.frees = 1;
        subject_->give(at, now.stream);
      }
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
  const trace& input_;
  std::vector<typename Subject::handle> live_;
  std::vector<std::size_t> left_;  // slots that the trace leaves live
  std::unique_ptr<Subject> subject_ = std::make_unique<Subject>();
  std::uint64_t calls_ = 0;
  double first_ratio_ = 0;
};

struct trace_row {
  std::string name;
  double pool_ns = 0;
  double pool_best_ns = 0;
  double caching_ns = 0;
  double malloc_ns = 0;
  double pmr_ns = 0;
  double speedup = 0;  // over caching, median of the turns' ratios
  std::uint64_t calls = 0;
  double pool_first_ratio = 0;
  double pool_ratio = 0;
  double caching_first_ratio = 0;
  double caching_ratio = 0;
};

trace_row measure(const trace& input) {
  constexpr int pass_count = 40;
  player<pool_subject> pool(input);
  player<caching_subject> caching(for_peers(input));
  player<malloc_subject> plain(for_peers(input));
  player<pmr_subject> pooled(for_peers(input));
  std::vector<double> ns[4];
  std::vector<double> speedups;
  std::uint64_t calls = 0;
  (void)pool.play();
  if (!is_alone) (void)caching.play();
  for (int pass = 2; pass < pass_count; ++pass) {
    ns[0].push_back(pool.play());
    calls += pool.calls();
    if (is_alone) continue;
    ns[1].push_back(caching.play());
    ns[2].push_back(plain.play());
    ns[3].push_back(pooled.play());
    speedups.push_back(ns[1].back() / ns[0].back());
  }
  trace_row row{input.name, median(ns[0])};
  row.pool_best_ns = *std::min_element(ns[0].begin(), ns[0].end());
  row.caching_ns = median(ns[1]);
  row.malloc_ns = median(ns[2]);
  row.pmr_ns = median(ns[3]);
  row.speedup = median(speedups);
  row.calls = calls;
  row.pool_first_ratio = pool.first_ratio();
  row.pool_ratio = pool.ratio();
  row.caching_first_ratio = caching.first_ratio();
  row.caching_ratio = caching.ratio();
  return row;
}

// ---- cold caches ---------------------------------------------------------------------

struct cold_row {
  std::string name;
  cold_figure pool;
  cold_figure caching;
  cold_figure plain;
  cold_figure pooled;
};

cold_figure median_of(const std::vector<cold_figure>& turns) {
  std::vector<double> means;
  std::vector<double> medians;
  for (const cold_figure& turn : turns) {
    means.push_back(turn.mean_ns);
    medians.push_back(turn.median_ns);
  }
  return {median(means), median(medians)};
}

cold_row measure_cold(const trace& input) {
  constexpr int turns = 3;
  other_work work;
  player<pool_subject> pool(input);
  player<caching_subject> caching(for_peers(input));
  player<malloc_subject> plain(for_peers(input));
  player<pmr_subject> pooled(for_peers(input));
  (void)pool.play();
  std::vector<cold_figure> seen[4];
  for (int turn = 0; turn < turns; ++turn) {
    seen[0].push_back(pool.play_cold(work));
    if (is_alone) continue;
    seen[1].push_back(caching.play_cold(work));
    seen[2].push_back(plain.play_cold(work));
    seen[3].push_back(pooled.play_cold(work));
  }
  return {input.name, median_of(seen[0]), median_of(seen[1]), median_of(seen[2]),
          median_of(seen[3])};
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

constexpr std::size_t batch = 64;
constexpr std::size_t recent_count = 512;
using engine = std::mt19937_64;

/// Drawn beforehand, so that drawing one in between leaves caches and branch predictors alone.
std::vector<std::uint32_t> draw_sizes() {
  constexpr double exponent = 1.2;
  constexpr double size_max = 4096;
  engine random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<std::uint32_t> sizes(1 << 20);
  for (std::uint32_t& size : sizes) {
    const double rest = 1 - uniform(random) * (1 - std::pow(size_max, -exponent));
    const double drawn = std::clamp(std::pow(rest, -1 / exponent), 1.0, size_max);
    size = static_cast<std::uint32_t>(drawn) * static_cast<std::uint32_t>(block_bytes);
  }
  return sizes;
}

template <class Subject>
class churn {
 public:
  explicit churn(std::size_t live_count) {
    for (std::size_t i = 0; i < live_count; ++i) live_.push_back(subject_->take(next_size(), 0));
  }

  /// Nanoseconds an allocation or free, over `batches` of 64 of each; victims are among the last
  /// `reach` blocks.
  double replace(std::size_t batches, std::size_t reach) {
    std::vector<double> times;
    times.reserve(batches);
    for (std::size_t b = 0; b < batches; ++b) {
      draw(reach);
      const auto start = clock_type::now();
      for (std::size_t i = 0; i < batch; ++i) subject_->give(handles_[i], 0);
      for (std::size_t i = 0; i < batch; ++i) handles_[i] = subject_->take(sizes_[i], 0);
      times.push_back(ns_since(start));
      for (std::size_t i = 0; i < batch; ++i) live_[victims_[i]] = handles_[i];
    }
    const auto kept = times.begin() + static_cast<std::ptrdiff_t>(times.size() - times.size() / 50);
    std::nth_element(times.begin(), kept - 1, times.end());
    return std::accumulate(times.begin(), kept, 0.0) /
           (static_cast<double>(kept - times.begin()) * 2 * batch);
  }

 private:
  std::uint32_t next_size() {
    static const std::vector<std::uint32_t> sizes = draw_sizes();
    return sizes[next_size_++ % sizes.size()];
  }

  void draw(std::size_t reach) {
    const std::size_t from = live_.size() - std::min(reach, live_.size());
    for (std::size_t i = 0; i < batch; ++i) {
      do {
        victims_[i] = from + random_() % (live_.size() - from);
      } while (std::find(victims_, victims_ + i, victims_[i]) != victims_ + i);
      handles_[i] = live_[victims_[i]];
      sizes_[i] = next_size();
    }
  }

  engine random_{1};
  std::size_t next_size_ = 0;
  std::unique_ptr<Subject> subject_ = std::make_unique<Subject>();
  std::vector<typename Subject::handle> live_;
  std::size_t victims_[batch] = {};
  std::uint32_t sizes_[batch] = {};
  typename Subject::handle handles_[batch] = {};
};

struct live_row {
  std::size_t live_count = 0;
  double pool_random_ns = 0;
  double pool_recent_ns = 0;
  double caching_random_ns = 0;
  double caching_recent_ns = 0;
};

/// The allocators take turns. Before each, a part of its round is not counted: the other one has
/// had the caches.
live_row measure_live(std::size_t live_count) {
  const int turns = live_count < 1'000'000 ? 9 : 5;
  const std::size_t round = live_count / batch + 1;
  const std::size_t counted = std::clamp(round, std::size_t{1'000}, std::size_t{4'000});
  constexpr std::size_t everything = ~std::size_t{0};
  churn<pool_subject> pool(live_count);
  churn<caching_subject> caching(is_alone ? 0 : live_count);
  (void)pool.replace(2 * round, everything);
  if (!is_alone) (void)caching.replace(2 * round, everything);
  std::vector<double> ns[4];
  const auto turn = [&](auto& subject, std::size_t reach, std::vector<double>& into) {
    (void)subject.replace(counted / 4 + 1, reach);
    into.push_back(subject.replace(counted, reach));
  };
  for (int i = 0; i < turns; ++i) {
    turn(pool, everything, ns[0]);
    if (!is_alone) turn(caching, everything, ns[2]);
    turn(pool, recent_count, ns[1]);
    if (!is_alone) turn(caching, recent_count, ns[3]);
  }
  return {live_count, median(ns[0]), median(ns[1]), median(ns[2]), median(ns[3])};
}

// ---- the report ----------------------------------------------------------------------

struct report {
  std::vector<trace_row> traces;
  std::vector<cold_row> colds;
  std::vector<live_row> lives;
};

double growth(const report& all, double live_row::* column) {
  return all.lives.back().*column / all.lives.front().*column;
}

void print_cold_json(const std::vector<cold_row>& rows) {
  const auto print = [](const char* name, const cold_figure& of) {
    std::printf(", \"%s_mean_ns\": %.1f, \"%s_median_ns\": %.1f", name, of.mean_ns, name,
                of.median_ns);
  };
  std::printf("{\"cold\": [");
  for (const cold_row& row : rows) {
    std::printf("%s{\"trace\": \"%s\", \"lines\": %zu", &row == rows.data() ? "" : ", ",
                row.name.c_str(), other_work::line_count);
    print("pool", row.pool);
    print("caching", row.caching);
    print("malloc", row.plain);
    print("pmr", row.pooled);
    std::printf("}");
  }
  std::printf("]}\n");
}

void print_colds(const std::vector<cold_row>& rows) {
  std::printf("Cold, ns a call with %zu cache lines touched between calls: mean (median)\n\n",
              other_work::line_count);
  std::printf("  %-18s %16s %16s %16s %16s %14s\n", "trace", "vmm.stream", "caching", "malloc",
              "pmr", "caching/ours");
  for (const cold_row& row : rows) {
    std::printf("  %-18s", row.name.c_str());
    for (const cold_figure& each : {row.pool, row.caching, row.plain, row.pooled})
      std::printf(" %8.0f (%5.0f)", each.mean_ns, each.median_ns);
    std::printf(" %14.2f\n", row.caching.mean_ns / row.pool.mean_ns);
  }
}

void print_json(const report& all) {
  std::printf("{\"traces\": [");
  for (const trace_row& row : all.traces) {
    std::printf("%s{\"trace\": \"%s\", \"ns_per_event\": %.2f, \"ns_per_event_best\": %.2f",
                &row == all.traces.data() ? "" : ", ", row.name.c_str(), row.pool_ns,
                row.pool_best_ns);
    std::printf(", \"caching_ns\": %.2f, \"malloc_ns\": %.2f, \"pmr_ns\": %.2f", row.caching_ns,
                row.malloc_ns, row.pmr_ns);
    std::printf(", \"caching_by_ours\": %.3f, \"warm_driver_calls\": %llu", row.speedup,
                static_cast<unsigned long long>(row.calls));
    std::printf(", \"pool_first_peak\": %.3f, \"pool_peak\": %.3f", row.pool_first_ratio,
                row.pool_ratio);
    std::printf(", \"caching_first_peak\": %.3f, \"caching_peak\": %.3f}", row.caching_first_ratio,
                row.caching_ratio);
  }
  std::printf("], \"live_blocks\": [");
  for (const live_row& row : all.lives) {
    std::printf("%s{\"count\": %zu, \"random_ns\": %.2f, \"recent_ns\": %.2f",
                &row == all.lives.data() ? "" : ", ", row.live_count, row.pool_random_ns,
                row.pool_recent_ns);
    std::printf(", \"caching_random_ns\": %.2f, \"caching_recent_ns\": %.2f}",
                row.caching_random_ns, row.caching_recent_ns);
  }
  std::printf("]");
  if (!all.lives.empty()) {
    std::printf(", \"growth_random\": %.3f, \"growth_recent\": %.3f",
                growth(all, &live_row::pool_random_ns), growth(all, &live_row::pool_recent_ns));
  }
  std::printf("}\n");
}

void print_traces(const std::vector<trace_row>& rows) {
  std::printf("Warm, ns an event (medians of turns; best in brackets):\n\n");
  std::printf("  %-18s %16s %9s %8s %8s %14s %22s\n", "trace", "vmm.stream", "caching", "malloc",
              "pmr", "caching/ours", "driver calls, warm");
  for (const trace_row& row : rows) {
    std::printf("  %-18s %8.1f (%5.1f) %9.1f %8.1f %8.1f %14.2f %22llu\n", row.name.c_str(),
                row.pool_ns, row.pool_best_ns, row.caching_ns, row.malloc_ns, row.pmr_ns,
                row.speedup, static_cast<unsigned long long>(row.calls));
  }
  std::printf("\nMost memory held over most live bytes, in the first pass and in forty:\n\n");
  std::printf("  %-18s %16s %16s\n", "trace", "vmm.stream", "caching");
  for (const trace_row& row : rows) {
    std::printf("  %-18s %9.3f, %5.3f %9.3f, %5.3f\n", row.name.c_str(), row.pool_first_ratio,
                row.pool_ratio, row.caching_first_ratio, row.caching_ratio);
  }
}

void print_lives(const report& all) {
  std::printf("\nAgainst live blocks, ns an allocation or free:\n\n");
  std::printf("  %12s %27s %27s\n", "", "random victim", "recent victim");
  std::printf("  %12s %16s %10s %16s %10s\n", "live blocks", "vmm.stream", "caching", "vmm.stream",
              "caching");
  for (const live_row& row : all.lives) {
    std::printf("  %12zu %16.1f %10.1f %16.1f %10.1f\n", row.live_count, row.pool_random_ns,
                row.caching_random_ns, row.pool_recent_ns, row.caching_recent_ns);
  }
  std::printf("  %12s %16.2f %10.2f %16.2f %10.2f\n", "last/first",
              growth(all, &live_row::pool_random_ns), growth(all, &live_row::caching_random_ns),
              growth(all, &live_row::pool_recent_ns), growth(all, &live_row::caching_recent_ns));
#ifndef NDEBUG
  std::printf("\nThis is not a release build: the figures say little. Use ./run bench stream.\n");
#endif
}

void print(const report& all, std::string_view part, bool json) {
  if (part == "--cold") {
    json ? print_cold_json(all.colds) : print_colds(all.colds);
  } else if (json) {
    print_json(all);
  } else {
    if (part != "--live") print_traces(all.traces);
    if (part != "--traces") print_lives(all);
  }
}

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
  if (files.empty()) {
    for (const char* name : {"gpt_train", "llama_generate", "maskrcnn_train", "beam_kv"})
      files.push_back(std::string(VMM_TRACES) + "/" + name + ".trace.gz");
  }
  (void)::mallopt(M_MMAP_MAX, 0);
  (void)::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  report all;
  for (std::size_t i = 0; part != "--live" && i < files.size(); ++i) {
    const vmm::tools::read_outcome read = vmm::tools::read_trace(files[i]);
    if (!read) fail(describe(read.trouble));
    if (part == "--lines") {
      play_for_lines(*read.value);
    } else if (part == "--cold") {
      all.colds.push_back(measure_cold(*read.value));
    } else {
      all.traces.push_back(measure(*read.value));
    }
  }
  if (part.empty() || part == "--live") {
    for (const std::size_t count : {1'000u, 10'000u, 100'000u, 1'000'000u})
      all.lives.push_back(measure_live(count));
  }
  if (part != "--lines") print(all, part, json);
  return 0;
}
