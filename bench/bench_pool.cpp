// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_pool: recorded traces through the stream-ordered pool and through other allocators on a
// CUDA device, in one process and interleaved: vmm's pool, cuMemAllocAsync, and what a library of
// peers (bench/peers/peer.h) brings. Each round takes every allocator from nothing through the
// trace once and then through some warm passes. No kernel runs: times are the host's. A shared host
// changes its speed by up to two within a minute, so ratios are taken within a round, which lasts a
// few seconds, and the median of the rounds is told.
//
// All allocators are called through one virtual call an event. A pause after each leaves the device
// time to clear what was given back, so that nobody pays for the one before.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "peers/peer.h"

#include "must.hpp"

import vmm.cuda;
import vmm.replay;
import vmm.stream;
import vmm.trace;

namespace {

constexpr auto pause = std::chrono::milliseconds(150);

struct settings {
  std::vector<std::string> traces;
  std::string peers;  // a library
  std::string markdown;
  std::string head;
  unsigned round_count = 9;
  unsigned warm_count = 4;
};

void* native(vmm::stream_handle stream) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream));
}

// ---- allocators ---------------------------------------------------------------------------------

class contender {
 public:
  explicit contender(std::string name) : name_(std::move(name)) {}
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  virtual ~contender() = default;

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Whether the trace's stream 0 is a stream of its own and not the default one.
  [[nodiscard]] virtual bool on_created_stream() const { return false; }
  virtual void open() = 0;
  [[nodiscard]] virtual vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                           vmm::stream_handle stream) = 0;
  [[nodiscard]] virtual vmm::status free(vmm::address at, vmm::stream_handle stream) = 0;
  [[nodiscard]] virtual std::uint64_t peak_reserved_bytes() = 0;
  virtual void close() = 0;

 private:
  std::string name_;
};

class vmm_pool : public contender {
 public:
  vmm_pool(vmm::cuda_driver& driver, bool created_stream)
      : contender(created_stream ? "vmm, pool, on a created stream" : "vmm, pool"),
        driver_(driver),
        on_created_stream_(created_stream) {}
  [[nodiscard]] bool on_created_stream() const override { return on_created_stream_; }
  void open() override { pool_.emplace(driver_, options_); }
  [[nodiscard]] vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                   vmm::stream_handle stream) override {
    return pool_->allocate(size_bytes, stream);
  }
  [[nodiscard]] vmm::status free(vmm::address at, vmm::stream_handle stream) override {
    return pool_->free(at, stream);
  }
  [[nodiscard]] std::uint64_t peak_reserved_bytes() override {
    return pool_->statistics().peak_mapped_bytes;
  }
  void close() override { pool_.reset(); }

 private:
  vmm::cuda_driver& driver_;
  bool on_created_stream_;
  vmm::pool_options options_;
  std::optional<vmm::stream_pool<vmm::cuda_driver>> pool_;
};

vmm::error refused(const char* detail) { return vmm::refuse(vmm::errc::out_of_memory, detail); }

/// The driver's own pool, which keeps what is freed.
class driver_pool : public contender {
 public:
  explicit driver_pool(vmm::cuda_driver& driver)
      : contender("cuMemAllocAsync"),
        allocate_(find<PFN_cuMemAllocAsync_v11020>(driver, "cuMemAllocAsync")),
        free_(find<PFN_cuMemFreeAsync_v11020>(driver, "cuMemFreeAsync")),
        trim_(find<PFN_cuMemPoolTrimTo_v11020>(driver, "cuMemPoolTrimTo")),
        set_(find<PFN_cuMemPoolSetAttribute_v11020>(driver, "cuMemPoolSetAttribute")),
        get_(find<PFN_cuMemPoolGetAttribute_v11020>(driver, "cuMemPoolGetAttribute")) {
    const auto default_pool =
        find<PFN_cuDeviceGetDefaultMemPool_v11020>(driver, "cuDeviceGetDefaultMemPool");
    if (default_pool(&pool_, driver.home().ordinal) != CUDA_SUCCESS) stop("no asynchronous pool");
    set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ~std::uint64_t{0});
  }
  void open() override { set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0); }
  [[nodiscard]] vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                   vmm::stream_handle stream) override {
    CUdeviceptr at = 0;
    const CUresult code = allocate_(&at, size_bytes, static_cast<CUstream>(native(stream)));
    if (code != CUDA_SUCCESS) return refused("cuMemAllocAsync refuses");
    return vmm::address{at};
  }
  [[nodiscard]] vmm::status free(vmm::address at, vmm::stream_handle stream) override {
    const CUresult code = free_(at.value, static_cast<CUstream>(native(stream)));
    if (code != CUDA_SUCCESS) return refused("cuMemFreeAsync refuses");
    return {};
  }
  [[nodiscard]] std::uint64_t peak_reserved_bytes() override {
    std::uint64_t bytes = 0;
    (void)get_(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &bytes);
    return bytes;
  }
  void close() override {
    if (trim_(pool_, 0) != CUDA_SUCCESS) stop("cuMemPoolTrimTo refuses");
  }

 private:
  template <class Function>
  static Function find(const vmm::cuda_driver& driver, const char* symbol) {
    void* const found = driver.entry_point(symbol, 11020);
    if (found == nullptr) stop(std::string("the driver has no ") + symbol);
    return reinterpret_cast<Function>(found);
  }
  void set(CUmemPool_attribute what, std::uint64_t value) {
    if (set_(pool_, what, &value) != CUDA_SUCCESS) stop("cuMemPoolSetAttribute refuses");
  }

  PFN_cuMemAllocAsync_v11020 allocate_;
  PFN_cuMemFreeAsync_v11020 free_;
  PFN_cuMemPoolTrimTo_v11020 trim_;
  PFN_cuMemPoolSetAttribute_v11020 set_;
  PFN_cuMemPoolGetAttribute_v11020 get_;
  CUmemoryPool pool_ = nullptr;
};

class peer_allocator : public contender {
 public:
  explicit peer_allocator(const vmm_peer& peer) : contender(peer.name), peer_(peer) {}
  void open() override { expect(peer_.open()); }
  [[nodiscard]] vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                   vmm::stream_handle stream) override {
    void* const at = peer_.allocate(size_bytes, native(stream));
    if (at == nullptr) return refused("a peer refuses to allocate");
    return vmm::address{reinterpret_cast<std::uintptr_t>(at)};
  }
  [[nodiscard]] vmm::status free(vmm::address at, vmm::stream_handle stream) override {
    const auto value = static_cast<std::uintptr_t>(at.value);
    if (peer_.release(reinterpret_cast<void*>(value), native(stream)) != 0)
      return refused("a peer refuses to free");
    return {};
  }
  [[nodiscard]] std::uint64_t peak_reserved_bytes() override { return peer_.peak_reserved_bytes(); }
  void close() override { expect(peer_.close()); }

 private:
  void expect(int code) {
    if (code != 0) stop(name() + ": " + peer_.describe());
  }
  vmm_peer peer_;
};

// ---- measuring ----------------------------------------------------------------------------------

/// What replayer drives.
class subject {
 public:
  subject(contender& who, const std::vector<vmm::stream_handle>& streams)
      : who_(who), streams_(streams) {}
  [[nodiscard]] vmm::result<vmm::address> allocate(const vmm::tools::replay_request& request) {
    return who_.allocate(request.size_bytes, streams_[request.stream]);
  }
  [[nodiscard]] vmm::status free(vmm::address at, std::uint16_t stream) {
    return who_.free(at, streams_[stream]);
  }
  [[nodiscard]] vmm::status free(vmm::address at) { return free(at, 0); }
  [[nodiscard]] std::uint64_t held_bytes() const { return 0; }

 private:
  contender& who_;
  const std::vector<vmm::stream_handle>& streams_;
};

struct figures {
  std::vector<double> first_ms{};  // a pass from nothing, by round
  std::vector<double> warm_ns{};   // an event of a round's warm passes: their median, by round
  double best_warm_ns = std::numeric_limits<double>::infinity();  // of a single pass
  std::uint64_t reserved_bytes = 0;
  std::uint64_t device_bytes = 0;  // by which the device's free memory fell in the first pass
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The median of what `one` is of `other`, each value beside the other's of the same round.
double median_ratio(const std::vector<double>& one, const std::vector<double>& other) {
  std::vector<double> ratios(one.size());
  std::transform(one.begin(), one.end(), other.begin(), ratios.begin(), std::divides<>());
  return median(std::move(ratios));
}

class bench {
 public:
  bench(vmm::cuda_driver& driver, const settings& how) : driver_(driver), how_(how) {}

  void add(std::unique_ptr<contender> who) { all_.push_back(std::move(who)); }

  [[nodiscard]] std::vector<figures> run(const vmm::tools::trace& input) {
    open_streams(input);
    std::vector<figures> out(all_.size());
    for (unsigned round = 0; round < how_.round_count; ++round) {
      for (std::size_t i = 0; i < all_.size(); ++i) take(*all_[i], input, out[i]);
    }
    for (std::size_t i = 1; i < streams_.size(); ++i) must(driver_.destroy_stream(streams_[i]));
    must(driver_.destroy_stream(created_));
    return out;
  }
  [[nodiscard]] const std::vector<std::unique_ptr<contender>>& all() const { return all_; }

 private:
  void open_streams(const vmm::tools::trace& input) {
    std::uint16_t last = 0;
    for (const vmm::tools::event& each : input.events) last = std::max(last, each.stream);
    streams_.assign(std::size_t{last} + 1, vmm::stream_handle::default_stream);
    for (std::size_t i = 1; i < streams_.size(); ++i) streams_[i] = must(driver_.create_stream());
    created_ = must(driver_.create_stream());
  }

  [[nodiscard]] std::uint64_t free_bytes() {
    return must(driver_.query_memory(driver_.home())).free_bytes;
  }

  void take(contender& who, const vmm::tools::trace& input, figures& into) {
    who.open();
    const std::uint64_t free_before = free_bytes();
    std::vector<vmm::stream_handle> streams = streams_;
    if (who.on_created_stream()) streams[0] = created_;
    subject under_test{who, streams};
    vmm::tools::replayer player{under_test, input};
    const auto passed = [&](const vmm::tools::timed_pass& pass) {
      if (pass.failures.count != 0)
        stop(who.name() + ": " + vmm::describe(pass.failures.first.why));
      return pass.elapsed_ns;
    };
    into.first_ms.push_back(passed(player.play()) / 1e6);
    const std::uint64_t free_after = free_bytes();
    into.reserved_bytes = std::max(into.reserved_bytes, who.peak_reserved_bytes());
    into.device_bytes =
        std::max(into.device_bytes, free_before - std::min(free_before, free_after));
    (void)player.reset();
    std::vector<double> warm_ns;
    for (unsigned i = 0; i < how_.warm_count; ++i) {
      warm_ns.push_back(passed(player.play()) / static_cast<double>(input.events.size()));
      (void)player.reset();
      into.best_warm_ns = std::min(into.best_warm_ns, warm_ns.back());
    }
    into.warm_ns.push_back(median(std::move(warm_ns)));
    must(driver_.synchronize_stream(streams[0]));
    who.close();
    std::this_thread::sleep_for(pause);
  }

  vmm::cuda_driver& driver_;
  const settings& how_;
  std::vector<std::unique_ptr<contender>> all_;
  std::vector<vmm::stream_handle> streams_;
  vmm::stream_handle created_{};
};

void add_peers(bench& to, const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) stop(::dlerror());
  const auto list = reinterpret_cast<vmm_peers_function>(::dlsym(opened, "vmm_peers"));
  if (list == nullptr) stop(library + " is no library of peers");
  const vmm_peer* first = nullptr;
  const int count = list(&first);
  for (int i = 0; i < count; ++i) to.add(std::make_unique<peer_allocator>(first[i]));
}

// ---- the table ----------------------------------------------------------------------------------

std::string number(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string rows(const vmm::tools::trace& input, const bench& from,
                 const std::vector<figures>& seen) {
  std::string text;
  const auto live = static_cast<double>(input.peak_live_bytes);
  const figures& own = seen.front();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const figures& f = seen[i];
    const double warm_ns = median(f.warm_ns);
    const double first_ms = median(f.first_ms);
    const double warm_ms = warm_ns * static_cast<double>(input.events.size()) / 1e6;
    text += "| " + input.name + " | " + from.all()[i]->name() + " | " + number(warm_ns, 1) + " | " +
            number(f.best_warm_ns, 1) + " | " + number(median_ratio(f.warm_ns, own.warm_ns), 2) +
            " | " + number(f.best_warm_ns / own.best_warm_ns, 2) + " | " + number(first_ms, 1) +
            " | " + number(first_ms - warm_ms, 1) + " | " +
            number(static_cast<double>(f.reserved_bytes) / live, 3) + " | " +
            number(static_cast<double>(f.device_bytes) / live, 3) + " |\n";
  }
  return text;
}

constexpr const char* table_head =
    "| trace | allocator | warm, ns an event | best | by the pool's | best by its best | from "
    "nothing, ms | of which growth, ms | peak reserved / peak live | device's own / peak live |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";

void publish(const settings& how, const vmm::cuda_driver& driver, const std::string& table) {
  std::fputs(table.c_str(), stdout);
  if (how.markdown.empty()) return;
  std::ofstream file(how.markdown, std::ios::binary);
  file << "# Traces through the pool and through other allocators\n\n"
       << (how.head.empty() ? driver.description().device_name : how.head) << ".\n\n"
       << "Recorded traces, one process, " << how.round_count
       << " interleaved rounds; each takes an allocator from nothing through the trace and then "
       << how.warm_count
       << " times more. Medians; host time; no kernel runs. By the pool's: the median of the "
          "rounds' ratios, since a shared host changes its speed from round to round. A trace's "
          "first stream is the default "
          "stream, for all of them, as it was where the trace was recorded; on a created stream "
          "the pool asks the driver at each call whether it is being captured. Growth is the first "
          "pass less a warm "
          "one: the driver's calls, and what an allocator does around them. Reserved is the "
          "allocator's own account; the device's own is by how much its free memory fell over the "
          "first pass. Live bytes are requests rounded up to 512.\n\n"
       << table << "\nCommand: `scripts/gpu.sh pool`.\n";
  if (!file.flush()) stop("cannot write " + how.markdown);
}

bool read_settings(int count, char** words, settings& into) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (!word.starts_with("--")) {
      into.traces.emplace_back(word);
      continue;
    }
    if (i + 1 >= count) return false;
    const char* const value = words[++i];
    if (word == "--peers") {
      into.peers = value;
    } else if (word == "--markdown") {
      into.markdown = value;
    } else if (word == "--head") {
      into.head = value;
    } else if (word == "--rounds") {
      into.round_count = static_cast<unsigned>(std::max(1, std::atoi(value)));
    } else if (word == "--warm") {
      into.warm_count = static_cast<unsigned>(std::max(1, std::atoi(value)));
    } else {
      return false;
    }
  }
  return !into.traces.empty();
}

}  // namespace

int main(int count, char** words) {
  settings how;
  if (!read_settings(count, words, how)) {
    std::fputs(
        "usage: bench_pool TRACE... [--peers LIBRARY] [--rounds N] [--warm N] [--markdown FILE] "
        "[--head TEXT]\n",
        stderr);
    return 2;
  }
  auto driver = vmm::cuda_driver::open();
  if (!driver) {
    std::printf("no CUDA device: %s\n", vmm::describe(driver.error()).c_str());
    return 2;
  }
  const auto set =
      reinterpret_cast<PFN_cuCtxSetCurrent_v4000>(driver->entry_point("cuCtxSetCurrent", 4000));
  set(reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(driver->native_context())));
  bench all(*driver, how);
  all.add(std::make_unique<vmm_pool>(*driver, false));
  all.add(std::make_unique<vmm_pool>(*driver, true));
  all.add(std::make_unique<driver_pool>(*driver));
  if (!how.peers.empty()) add_peers(all, how.peers);
  std::string table = table_head;
  for (const std::string& path : how.traces) {
    const vmm::tools::read_outcome input = vmm::tools::read_trace(path);
    if (!input) stop(vmm::tools::describe(input.trouble));
    table += rows(*input.value, all, all.run(*input.value));
  }
  publish(how, *driver, table);
  return 0;
}
