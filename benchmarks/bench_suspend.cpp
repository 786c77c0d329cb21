// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_suspend: suspending and resuming regions, beside the driver's calls by hand and beside
// plain copies.
//
// Half of the memory is a manager's, half a pool's. By hand: handles of the sizes that a resume
// makes, in the same order of calls. All drivers' calls pass one observer, which counts the live
// handles. The compared runs alternate, and so does the first of each round; tables show medians,
// and ratios of the same turn with their lowest and highest. The program ends with 1 where contents
// are wrong or something has leaked, whatever the ratios are.
#include <unordered_set>

#include "report.hpp"

import vmm.manager;
import vmm.registry;
import vmm.stream;
import vmm.suspend;

namespace {

constexpr const char* usage =
    "usage: bench_suspend [--backend NAME] [--bytes BYTES] [--keep BYTES] [--cycle BYTES]\n"
    "                     [--cycles COUNT] [--rounds COUNT] [--markdown FILE] [--head TEXT]\n"
    "\n"
    "Suspending and resuming, beside the driver's calls by hand and beside plain copies.\n"
    "  --backend NAME   host, cuda, fake, ... (default: host)\n"
    "  --bytes BYTES    what is discarded (default: 256MiB)\n"
    "  --keep BYTES     what is kept (default: 64MiB)\n"
    "  --cycle BYTES    what each of many cycles discards (default: 64MiB)\n"
    "  --cycles COUNT   how many (default: 64)\n"
    "  --rounds COUNT   suspenders with backups of their own; twice as many turns of the other\n"
    "                   comparisons (default: 5)\n"
    "  --markdown FILE  also write the page there\n"
    "  --head TEXT      what stands at its head\n";

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t bytes_unit = 32 * mib;  // the smallest block is a 16th of a region_pair
constexpr std::uint64_t pinned_handle_bytes = 1024 * mib;
constexpr std::uint64_t chunk_bytes = 32 * mib;
// What a device's own count of its memory may change by without a leak.
constexpr std::uint64_t device_slack_bytes = 2 * mib;
constexpr vmm::stream_handle stream = vmm::stream_handle::default_stream;

struct plan {
  std::uint64_t bytes = 256 * mib;
  std::uint64_t keep_bytes = 64 * mib;
  std::uint64_t cycle_bytes = 64 * mib;
  unsigned cycles = 64;
  unsigned rounds = 5;
  std::string backend = "host";
};

/// The handles that are live, from the calls that succeeded.
class handle_watch {
 public:
  [[nodiscard]] vmm::status before(const vmm::call_record&) noexcept { return {}; }
  void after(const vmm::call_record& record) {
    if (record.failure != nullptr) return;
    if (record.kind == vmm::call::create) {
      live_.insert(record.results.object);
      made_.push_back(record.arguments.size_bytes);
    }
    if (record.kind == vmm::call::release) live_.erase(record.arguments.object);
  }
  [[nodiscard]] std::size_t live_count() const { return live_.size(); }
  /// The sizes of the handles that were made since the last call, in order.
  [[nodiscard]] std::vector<std::uint64_t> take_made() { return std::exchange(made_, {}); }

 private:
  std::unordered_set<std::uint64_t> live_;
  std::vector<std::uint64_t> made_;
};

struct rig {
  vmm::driver_interface& driver;
  handle_watch& handles;
  const plan& wanted;
};

std::string mib_of(std::uint64_t bytes) { return std::to_string(bytes / mib); }

std::uint64_t free_bytes(const rig& r) {
  return must(r.driver.query_memory(r.driver.home())).free_bytes;
}

// ---- memory -------------------------------------------------------------------------------------

/// A manager with 4 blocks and a pool with 8, of the same bytes in all.
class region_pair {
 public:
  region_pair(const rig& r, std::uint64_t bytes) : manager_(r.driver), pool_(r.driver) {
    for (int i = 0; i < 4; ++i) blocks_.push_back({must(manager_.allocate(bytes / 8)), bytes / 8});
    for (int i = 0; i < 8; ++i)
      blocks_.push_back({must(pool_.allocate(bytes / 16, stream)), bytes / 16});
  }
  region_pair(const region_pair&) = delete;
  region_pair& operator=(const region_pair&) = delete;

  void join(vmm::suspender& sleeper, vmm::suspend_contents contents) {
    must(sleeper.add(manager_, {"manager", contents}));
    must(sleeper.add(pool_, {"pool", contents}));
  }
  void leave(vmm::suspender& sleeper) {
    must(sleeper.remove(manager_));
    must(sleeper.remove(pool_));
  }
  [[nodiscard]] std::span<const vmm::address_range> blocks() const { return blocks_; }
  void close() {
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      must(i < 4 ? manager_.free(blocks_[i].base) : pool_.free(blocks_[i].base, stream));
    must(pool_.synchronize());
    blocks_.clear();
  }

 private:
  vmm::manager manager_;
  vmm::stream_pool pool_;
  std::vector<vmm::address_range> blocks_;
};

/// The same handles by hand.
class bare_memory {
 public:
  bare_memory(vmm::driver_interface& driver, std::vector<std::uint64_t> sizes)
      : driver_(driver), sizes_(std::move(sizes)) {
    std::uint64_t sum_bytes = 0;
    for (const std::uint64_t each : sizes_) sum_bytes += each;
    space_ = must(driver_.reserve({sum_bytes, 0, {}}));
    handles_.resize(sizes_.size());
    make();
  }
  void make() {
    const vmm::location home = driver_.home();
    const vmm::access_grant grant{home, vmm::access::read_write};
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      handles_[i] = must(driver_.create({.size_bytes = sizes_[i], .where = home}));
    vmm::address at = space_.base;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      must(driver_.map({at, sizes_[i], handles_[i], 0}));
      must(driver_.set_access({at, sizes_[i]}, {&grant, 1}));
      at = at + sizes_[i];
    }
  }
  void end() {
    vmm::address at = space_.base;
    for (const std::uint64_t each : sizes_) {
      must(driver_.unmap({at, each}));
      at = at + each;
    }
    for (const vmm::physical_handle each : handles_) must(driver_.release(each));
  }
  void close() {
    end();
    must(driver_.free_reservation(space_));
  }
  [[nodiscard]] std::size_t handle_count() const { return sizes_.size(); }

 private:
  vmm::driver_interface& driver_;
  std::vector<std::uint64_t> sizes_;
  std::vector<vmm::physical_handle> handles_;
  vmm::address_range space_{};
};

bool has_pinned(const vmm::driver_interface& driver) {
  const vmm::features& can = driver.feature_set();
  return can.streams && (can.host_location || can.host_node_location);
}

vmm::location pinned_place(const vmm::driver_interface& driver) {
  return driver.feature_set().host_node_location ? vmm::host_node(0) : vmm::host();
}

/// Memory of the host for plain copies, of the kind that backups are made of.
class plain_backup {
 public:
  plain_backup(vmm::driver_interface& driver, std::uint64_t bytes) : driver_(driver) {
    if (!has_pinned(driver)) {
      bytes_.resize(bytes);
      return;
    }
    const vmm::location where = pinned_place(driver);
    const vmm::access_grant grants[] = {{driver.home(), vmm::access::read_write},
                                        {where, vmm::access::read_write}};
    space_ = must(driver.reserve({bytes, 0, {}}));
    for (std::uint64_t at = 0; at < bytes; at += sizes_.back()) {
      sizes_.push_back(std::min(pinned_handle_bytes, bytes - at));
      handles_.push_back(must(driver.create({.size_bytes = sizes_.back(), .where = where})));
      must(driver.map({space_.base + at, sizes_.back(), handles_.back(), 0}));
    }
    must(driver.set_access({space_.base, bytes}, grants));
    copies_ = must(driver.create_stream());
  }
  void copy_out(std::span<const vmm::address_range> from) { copy(from, true); }
  void copy_in(std::span<const vmm::address_range> to) { copy(to, false); }
  void close() {
    if (handles_.empty()) return;
    must(driver_.destroy_stream(copies_));
    vmm::address at = space_.base;
    for (const std::uint64_t each : sizes_) {
      must(driver_.unmap({at, each}));
      at = at + each;
    }
    for (const vmm::physical_handle each : handles_) must(driver_.release(each));
    must(driver_.free_reservation(space_));
  }

 private:
  void copy(std::span<const vmm::address_range> blocks, bool is_out) {
    std::uint64_t at = 0;
    for (const auto& [base, size_bytes] : blocks) {
      const auto bytes =
          handles_.empty() ? std::span(bytes_).subspan(at, size_bytes) : std::span<std::byte>();
      const vmm::address here = space_.base + at;
      if (!handles_.empty())
        must(driver_.copy({is_out ? here : base, is_out ? base : here, size_bytes, copies_}));
      else
        must(is_out ? driver_.read(bytes, base) : driver_.write(base, bytes));
      at += size_bytes;
    }
    if (!handles_.empty()) must(driver_.synchronize_stream(copies_));
  }

  vmm::driver_interface& driver_;
  std::vector<std::byte> bytes_;
  std::vector<std::uint64_t> sizes_;
  std::vector<vmm::physical_handle> handles_;
  vmm::address_range space_{};
  vmm::stream_handle copies_ = stream;
};

/// Words that have their own offset; factor 0 and offset 0 are zero everywhere.
struct word_pattern {
  std::uint64_t factor = 0;
  std::uint64_t offset = 0;

  // Visits the blocks in chunks, each with the words that belong there.
  template <class Visit>
  void each_chunk(std::span<const vmm::address_range> blocks, Visit&& visit) const {
    std::vector<std::uint64_t> words(chunk_bytes / sizeof(std::uint64_t));
    std::uint64_t number = 0;
    for (const vmm::address_range& block : blocks) {
      for (std::uint64_t done = 0; done < block.size_bytes; done += chunk_bytes) {
        const std::size_t count =
            std::min(chunk_bytes, block.size_bytes - done) / sizeof(std::uint64_t);
        for (std::size_t i = 0; i < count; ++i) words[i] = (number + i) * factor + offset;
        number += count;
        visit(block.base + done, std::span(words).first(count));
      }
    }
  }
  void write(const rig& r, std::span<const vmm::address_range> blocks) const {
    each_chunk(blocks, [&](vmm::address at, std::span<const std::uint64_t> words) {
      must(r.driver.write(at, std::as_bytes(words)));
    });
  }
  [[nodiscard]] std::uint64_t count_wrong(const rig& r,
                                          std::span<const vmm::address_range> blocks) const {
    std::vector<std::uint64_t> seen(chunk_bytes / sizeof(std::uint64_t));
    std::uint64_t wrong = 0;
    each_chunk(blocks, [&](vmm::address at, std::span<const std::uint64_t> words) {
      must(r.driver.read(std::as_writable_bytes(std::span(seen).first(words.size())), at));
      if (std::memcmp(seen.data(), words.data(), words.size_bytes()) == 0) return;
      for (std::size_t i = 0; i < words.size(); ++i) wrong += seen[i] != words[i] ? 1 : 0;
    });
    return wrong;
  }
};

// ---- comparisons --------------------------------------------------------------------------------

/// The times of what is measured and of what it stands beside, turn by turn.
struct comparison {
  const char* name;
  std::vector<double> own_us{};
  std::vector<double> other_us{};
};

void add_cost(const comparison& of, table& into) {
  into.row()
      .text("discard", of.name)
      .figure("ms", median(of.own_us) / 1e3, 3)
      .figure("by hand, ms", median(of.other_us) / 1e3, 3)
      .text("of by hand (lowest to highest)", with_spread(ratios_of(of.own_us, of.other_us), 3));
}

void add_speed(const comparison& of, std::uint64_t bytes, table& into) {
  const double gigabytes_us = static_cast<double>(bytes) / 1e3;
  into.row()
      .text("keep", of.name)
      .figure("ms", median(of.own_us) / 1e3, 2)
      .figure("GB/s", gigabytes_us / median(of.own_us), 2)
      .figure("plain copy, GB/s", gigabytes_us / median(of.other_us), 2)
      .text("of the plain copy (lowest to highest)",
            with_spread(ratios_of(of.other_us, of.own_us), 3));
}

// The one and the other, whose places change from turn to turn.
template <class Own, class Other>
void take_turn(bool is_own_first, Own&& own, Other&& other) {
  if (is_own_first) own();
  other();
  if (!is_own_first) own();
}

std::string measure_discard(const rig& r) {
  region_pair memory(r, r.wanted.bytes);
  vmm::suspender sleeper;
  memory.join(sleeper, vmm::suspend_contents::discard);
  const std::uint64_t free_before = free_bytes(r);
  const vmm::suspend_report report = must(sleeper.suspend());
  const std::uint64_t given_back =
      std::max(free_bytes(r), free_before) - free_before;  // other programs may take some
  (void)r.handles.take_made();
  must(sleeper.resume());
  bare_memory bare(r.driver, r.handles.take_made());
  comparison down{"suspend; unmap and release"};
  comparison up{"resume; create, map and set_access"};
  comparison both{"both"};
  const auto own = [&] {
    down.own_us.push_back(time_us([&] { (void)must(sleeper.suspend()); }));
    up.own_us.push_back(time_us([&] { must(sleeper.resume()); }));
    both.own_us.push_back(down.own_us.back() + up.own_us.back());
  };
  const auto other = [&] {
    down.other_us.push_back(time_us([&] { bare.end(); }));
    up.other_us.push_back(time_us([&] { bare.make(); }));
    both.other_us.push_back(down.other_us.back() + up.other_us.back());
  };
  for (unsigned turn = 0; turn < 2 * r.wanted.rounds + 1; ++turn)
    take_turn(turn % 2 == 0, own, other);
  table rows;
  for (const comparison* each : {&down, &up, &both}) add_cost(*each, rows);
  const std::string text =
      "Discard of " + mib_of(r.wanted.bytes) + " MiB, " + std::to_string(bare.handle_count()) +
      " handles; " + mib_of(report.suspended_bytes) + " MiB go back by the report, " +
      mib_of(given_back) + " MiB by the device's count. Goal: at most 1.2 of by hand.\n\n" +
      rows.markdown();
  bare.close();
  memory.leave(sleeper);
  memory.close();
  return text;
}

struct kept_times {
  comparison first_out{"suspend, the backup is made"};
  comparison first_in{"resume, the first"};
  comparison again_out{"suspend, the backup is there"};
  comparison again_in{"resume, again"};
};

// One suspender: its backup is made by the first suspension, and used again by two more.
void measure_backup(region_pair& memory, plain_backup& plain, bool is_own_first, kept_times& into) {
  vmm::suspender sleeper;
  memory.join(sleeper, vmm::suspend_contents::keep);
  for (int pass = 0; pass < 3; ++pass) {
    comparison& out = pass == 0 ? into.first_out : into.again_out;
    comparison& in = pass == 0 ? into.first_in : into.again_in;
    take_turn(
        is_own_first,
        [&] {
          out.own_us.push_back(time_us([&] { (void)must(sleeper.suspend()); }));
          in.own_us.push_back(time_us([&] { must(sleeper.resume()); }));
        },
        [&] {
          out.other_us.push_back(time_us([&] { plain.copy_out(memory.blocks()); }));
          in.other_us.push_back(time_us([&] { plain.copy_in(memory.blocks()); }));
        });
  }
  memory.leave(sleeper);
}

// Adds the words that are not what they should be to `wrong`.
std::string measure_keep(const rig& r, std::uint64_t& wrong) {
  const std::uint64_t bytes = r.wanted.keep_bytes;
  region_pair memory(r, bytes);
  const word_pattern pattern{0x9e3779b97f4a7c15, 1};
  std::uint64_t wrong_kept = 0;
  pattern.write(r, memory.blocks());
  kept_times times;
  {
    plain_backup plain(r.driver, bytes);
    plain.copy_out(memory.blocks());
    plain.copy_in(memory.blocks());
    for (unsigned round = 0; round < r.wanted.rounds; ++round) {
      measure_backup(memory, plain, round % 2 == 0, times);
      if (round == 0) wrong_kept += pattern.count_wrong(r, memory.blocks());
    }
    plain.close();
  }
  wrong_kept += pattern.count_wrong(r, memory.blocks());
  vmm::suspender sleeper;
  memory.join(sleeper, vmm::suspend_contents::zero);
  (void)must(sleeper.suspend());
  must(sleeper.resume());
  const std::uint64_t wrong_zero = word_pattern{}.count_wrong(r, memory.blocks());
  memory.leave(sleeper);
  memory.close();
  wrong += wrong_kept + wrong_zero;
  table rows;
  for (const comparison* each :
       {&times.first_out, &times.first_in, &times.again_out, &times.again_in})
    add_speed(*each, bytes, rows);
  return "\nKeep of " + mib_of(bytes) + " MiB in " +
         (has_pinned(r.driver) ? "pinned" : "pageable") +
         " memory; GB are 10^9 bytes. Goal: at least 0.9 of a plain copy, with a backup that is "
         "there.\n\n" +
         rows.markdown() + "\nContents: " + std::to_string(wrong_kept) +
         " wrong words after keep, " + std::to_string(wrong_zero) + " after zero.\n";
}

// ---- many cycles --------------------------------------------------------------------------------

std::string measure_cycles(const rig& r, bool& has_leak) {
  region_pair memory(r, r.wanted.cycle_bytes);
  vmm::suspender sleeper;
  memory.join(sleeper, vmm::suspend_contents::discard);
  std::vector<double> down_us;
  std::vector<double> up_us;
  const auto cycle = [&] {
    down_us.push_back(time_us([&] { (void)must(sleeper.suspend()); }));
    up_us.push_back(time_us([&] { must(sleeper.resume()); }));
  };
  cycle();
  down_us.clear();
  up_us.clear();
  const std::size_t handles_before = r.handles.live_count();
  const std::uint64_t free_before = free_bytes(r);
  for (unsigned i = 0; i < r.wanted.cycles; ++i) cycle();
  const std::size_t handles_after = r.handles.live_count();
  const std::uint64_t free_after = free_bytes(r);
  // The host's memory is everybody's.
  const bool is_device = r.driver.home().kind == vmm::location::place::device;
  const std::uint64_t lost_bytes = std::max(free_before, free_after) - free_after;
  has_leak =
      has_leak || handles_after != handles_before || (is_device && lost_bytes > device_slack_bytes);
  memory.leave(sleeper);
  memory.close();
  table rows;
  rows.row()
      .text("suspend, us (lowest to highest)", with_spread(down_us, 1))
      .text("resume, us (lowest to highest)", with_spread(up_us, 1))
      .count("handles before", handles_before)
      .count("after", handles_after)
      .text("memory lost, bytes", is_device ? std::to_string(lost_bytes) : "-");
  return "\n" + std::to_string(r.wanted.cycles) + " cycles of " + mib_of(r.wanted.cycle_bytes) +
         " MiB, discarded, after a first one.\n\n" + rows.markdown();
}

// ---- the program --------------------------------------------------------------------------------

std::uint64_t bytes_of(const char* value) {
  const std::optional<std::uint64_t> bytes = vmm::parse_bytes(value);
  if (!bytes || *bytes == 0 || *bytes % bytes_unit != 0)
    stop("bytes are multiples of " + mib_of(bytes_unit) + "MiB; not '" + value + "'");
  return *bytes;
}

plan read_plan(int count, char** words, report_words& report) {
  plan wanted;
  const auto bytes = [](std::uint64_t& into) {
    return [&into](const char* value) { into = bytes_of(value); };
  };
  option_list(usage)
      .text("--backend", wanted.backend)
      .value("--bytes", bytes(wanted.bytes))
      .value("--keep", bytes(wanted.keep_bytes))
      .value("--cycle", bytes(wanted.cycle_bytes))
      .count("--cycles", wanted.cycles)
      .count("--rounds", wanted.rounds)
      .page(report)
      .read(count, words);
  return wanted;
}

// At most what fits in memory, with a remark.
std::string fit(std::uint64_t& bytes, std::uint64_t room_bytes, const char* what) {
  if (bytes <= room_bytes) return "";
  const std::uint64_t fitting = room_bytes / bytes_unit * bytes_unit;
  if (fitting == 0) stop(std::string("there is not even memory for 32 MiB to ") + what);
  const std::string text = " Only " + mib_of(fitting) + " MiB instead of " + mib_of(bytes) +
                           " to " + what + ": more does not fit.";
  bytes = fitting;
  return text;
}

// By hand stands beside what is discarded; a plain copy and a backup beside what is kept.
std::string scale_down(vmm::driver_interface& driver, plan& wanted) {
  const std::uint64_t room_bytes = must(driver.query_memory(driver.home())).free_bytes;
  // A device's driver has no query of the host's memory.
  const vmm::result<vmm::any_backend> host = vmm::open_backend("host");
  const std::uint64_t host_bytes =
      host ? must(host->get()->query_memory(vmm::host())).free_bytes : room_bytes;
  const bool is_shared = driver.home().kind != vmm::location::place::device;
  const std::uint64_t keep_room_bytes =
      is_shared ? room_bytes / 4 : std::min(room_bytes / 10 * 9, host_bytes / 5 * 2);
  return fit(wanted.bytes, room_bytes / 5 * 2, "discard") +
         fit(wanted.keep_bytes, keep_room_bytes, "keep") +
         fit(wanted.cycle_bytes, room_bytes / 5 * 2, "discard in cycles");
}

}  // namespace

int main(int count, char** words) {
  report_words report;
  plan wanted = read_plan(count, words, report);
  const auto handles = std::make_shared<handle_watch>();
  vmm::observed_backend<vmm::any_backend, handle_watch> driver(
      must(vmm::open_backend(wanted.backend)), handles);
  const std::string name(driver.name());
  const std::string about =
      "Half of the memory is a manager's, 4 blocks, and half a pool's, 8 blocks. By hand: the "
      "same handles, with one map, set_access and unmap for each. Medians; ratios are of the same "
      "turn." +
      scale_down(driver, wanted);
  print(name + ": " + about + "\n\n");
  const rig r{driver, *handles, wanted};
  std::uint64_t wrong = 0;
  bool has_leak = false;
  std::string tables = measure_discard(r);
  tables += measure_keep(r, wrong);
  tables += measure_cycles(r, has_leak);
  has_leak = has_leak || handles->live_count() != 0;
  tables += "\nWrong words: " + std::to_string(wrong) +
            ". Handles at the end: " + std::to_string(handles->live_count()) + ". " +
            (has_leak ? "Something leaked" : "Nothing leaked") + ".\n";
  publish({.path = report.markdown,
           .title = "Suspend and resume",
           .head = report.head.empty() ? name : report.head,
           .about = about,
           .command = "bench_suspend --backend " + wanted.backend},
          tables);
  return wrong == 0 && !has_leak ? 0 : 1;
}
