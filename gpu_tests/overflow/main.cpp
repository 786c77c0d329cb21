// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-overflow - blocks of a pool on a CUDA device, and kernels that write into them: within them,
// or where no block is. For a memory checker: the pool lies in plain memory and declares its blocks
// through NVTX, and what is written elsewhere is what the checker must see.
//
//   compute-sanitizer --nvtx yes --report-api-errors no vmm-overflow            no error
//   compute-sanitizer --nvtx yes --report-api-errors no vmm-overflow --planted  one error
//
// Where the one byte goes that is not the last of a block:
//   --planted   one byte over the end of a block, before the next one
//   --gap       the last byte before that next one
//   --freed     a block that was freed
//   --trimmed   a block that was freed and whose memory was released
// --workload COUNT allocates and frees COUNT blocks of many sizes on four streams, and kernels
// write and read each of them to its last byte: no error. --ask prints the cost of querying a
// stream for a capture, which the pool does at every call unless an option excludes captures.
//
// Exits with 0 when the kernels ran or the checker stopped the planted one.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "../../tools/program/usage.hpp"

import vmm;
import vmm.backend;
import vmm.kernels;
import vmm.nvtx;

namespace {

constexpr std::uint64_t block_bytes = 1000;
constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

using pool = vmm::stream_pool;

vmm::result<vmm::pool_options> watched(vmm::nvtx_declarer& declarer) {
  vmm::pool_options options;
  options.reservation_bytes = 256 * MiB;  // plain memory: all of it is taken at once
  options.watcher = &declarer;
  return vmm::pool_options::from_environment(options);
}

int fail(const vmm::error& what) {
  std::fprintf(stderr, "vmm-overflow: %s\n", vmm::describe(what).c_str());
  return 1;
}

vmm::status ask(vmm::cuda_driver& driver) {
  constexpr std::uint64_t count = 1'000'000;
  const auto stream = driver.create_stream();
  if (!stream) return stream.error();
  double best_ns = 1e300;
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (const auto seen = driver.query_capture(*stream); !seen) return seen.error();
    }
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
    best_ns = std::min(best_ns, taken.count() / static_cast<double>(count));
  }
  std::printf("asking whether a stream is being captured: %.1f ns (best of 5 rounds of %llu)\n",
              best_ns, static_cast<unsigned long long>(count));
  return driver.destroy_stream(*stream);
}

// Where the byte of a case goes; the blocks are freed first where the case says so.
vmm::result<vmm::address> target_of(std::string_view word, pool& memory,
                                    const std::array<vmm::address, 2>& blocks,
                                    vmm::stream_handle stream) {
  if (word.empty()) return blocks[0] + (block_bytes - 1);
  if (word == "--planted") return blocks[0] + block_bytes;
  if (word == "--gap") return vmm::address{blocks[1].value - 1};
  for (const vmm::address each : blocks) {
    if (vmm::status freed = memory.free(each, stream); !freed) return freed.error();
  }
  if (word == "--freed") return blocks[0];
  if (vmm::status idle = memory.synchronize(); !idle) return idle.error();
  const vmm::trim_report given = memory.trim(0);
  std::printf("%llu bytes given back\n", static_cast<unsigned long long>(given.released_bytes));
  return blocks[0];
}

vmm::status play(vmm::cuda_driver& driver, vmm::nvtx_declarer& declarer, std::string_view word) {
  auto kernels = vmm::tools::kernel_set::load(driver);
  if (!kernels) return kernels.error();
  const auto stream = driver.create_stream();
  if (!stream) return stream.error();
  const auto options = watched(declarer);
  if (!options) return options.error();
  pool memory(driver, *options);
  std::array<vmm::address, 2> blocks;
  for (vmm::address& each : blocks) {
    const auto at = memory.allocate(block_bytes, *stream);
    if (!at) return at.error();
    each = *at;
  }
  std::printf("blocks of %llu bytes at 0x%llx and 0x%llx; heaps declared: %llu, regions: %llu\n",
              static_cast<unsigned long long>(block_bytes),
              static_cast<unsigned long long>(blocks[0].value),
              static_cast<unsigned long long>(blocks[1].value),
              static_cast<unsigned long long>(declarer.heap_count()),
              static_cast<unsigned long long>(declarer.region_count()));
  for (const vmm::address at : blocks) {
    if (vmm::status poked = kernels->poke(at, 1, *stream); !poked) return poked;
  }
  if (vmm::status idle = driver.synchronize_stream(*stream); !idle) return idle;
  const auto target = target_of(word, memory, blocks, *stream);
  if (!target) return target.error();
  vmm::status outcome = kernels->poke(*target, 1, *stream);
  if (outcome) outcome = driver.synchronize_stream(*stream);
  std::printf("a byte at 0x%llx: %s\n", static_cast<unsigned long long>(target->value),
              outcome ? "the kernel ran" : "the kernel was stopped");
  if (!outcome) return word.empty() ? outcome : vmm::status{};
  if (word == "--freed" || word == "--trimmed") return {};
  for (const vmm::address each : blocks) {
    if (vmm::status freed = memory.free(each, *stream); !freed) return freed;
  }
  return {};
}

// ---- many blocks -------------------------------------------------------------------------------

// Blocks of many sizes, on streams of their own, each written and read by kernels without a wait.
class workload {
 public:
  workload(vmm::cuda_driver& driver, vmm::tools::kernel_set& kernels, pool& memory)
      : driver_(driver), kernels_(kernels), memory_(memory) {}

  [[nodiscard]] vmm::status run(std::uint64_t count) {
    for (vmm::stream_handle& each : streams_) {
      const auto made = driver_.create_stream();
      if (!made) return made.error();
      each = *made;
    }
    const auto event = driver_.create_event();
    if (!event) return event.error();
    event_ = *event;
    const auto counter = memory_.allocate(sizeof(std::uint64_t), streams_[0]);
    if (!counter) return counter.error();
    wrong_ = *counter;
    if (vmm::status cleared = driver_.write(wrong_, std::array<std::byte, 8>{}); !cleared)
      return cleared;
    while (made_count_ < count || !live_.empty()) {
      const bool makes = made_count_ < count && live_.size() < live_max && random_() % 9 < 5;
      vmm::status done = makes ? make() : (live_.empty() ? vmm::status{} : drop());
      if (!done) return done;
      if (random_() % 256 == 0) (void)memory_.trim(0);
    }
    return tell();
  }

 private:
  static constexpr std::size_t live_max = 60;
  static constexpr std::uint64_t spin_ns = 5'000'000;
  struct block {
    vmm::address at{};
    std::uint64_t size_bytes = 0;
    std::uint64_t seed = 0;
    vmm::stream_handle stream{};
  };

  // Words, and some bytes behind the last of them.
  std::uint64_t any_size() {
    const std::uint64_t kind = random_() % 20;
    const std::uint64_t largest = kind == 0 ? 12 * MiB : (kind < 6 ? MiB / 4 : 4096);
    return 8 * (1 + random_() % (largest / 8)) + 1 + random_() % 7;
  }
  [[nodiscard]] vmm::tools::pattern_request words_of(const block& in) const {
    return {{in.at, in.size_bytes / 8 * 8}, in.seed, in.stream};
  }

  vmm::status make() {
    block fresh{{}, any_size(), random_(), streams_[random_() % streams_.size()]};
    const auto at = memory_.allocate(fresh.size_bytes, fresh.stream);
    if (!at) return at.error();
    fresh.at = *at;
    ++made_count_;
    live_.push_back(fresh);
    if (random_() % 16 == 0) {  // what follows on the stream has not begun when it is freed
      if (vmm::status late = kernels_.spin(spin_ns, fresh.stream); !late) return late;
    }
    if (vmm::status filled = kernels_.fill(words_of(fresh)); !filled) return filled;
    return kernels_.poke(fresh.at + (fresh.size_bytes - 1), 1, fresh.stream);
  }
  vmm::status drop() {
    std::swap(live_[random_() % live_.size()], live_.back());
    const block gone = live_.back();
    live_.pop_back();
    if (vmm::status checked = kernels_.check(words_of(gone), wrong_); !checked) return checked;
    if (vmm::status marked = driver_.record_event(event_, gone.stream); !marked) return marked;
    const auto finished = driver_.query_event(event_);
    if (!finished) return finished.error();
    if (!*finished) ++unfinished_count_;
    return memory_.free(gone.at, gone.stream);
  }
  vmm::status tell() {
    for (const vmm::stream_handle each : streams_) {
      if (vmm::status idle = driver_.synchronize_stream(each); !idle) return idle;
    }
    std::array<std::byte, 8> seen{};
    if (vmm::status read = driver_.read(seen, wrong_); !read) return read;
    const auto wrong = std::bit_cast<std::uint64_t>(seen);
    const vmm::pool_statistics now = memory_.statistics();
    std::printf(
        "%llu blocks on %zu streams, %llu wrong words; %llu freed while kernels that use them had "
        "not ended; the pool grew %llu times to %llu MiB\n",
        static_cast<unsigned long long>(made_count_), streams_.size(),
        static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(unfinished_count_),
        static_cast<unsigned long long>(now.grown_count),
        static_cast<unsigned long long>(now.peak_mapped_bytes / MiB));
    if (wrong != 0) return vmm::refuse(vmm::errc::internal, "kernels found wrong words");
    return memory_.free(wrong_, streams_[0]);
  }

  vmm::cuda_driver& driver_;
  vmm::tools::kernel_set& kernels_;
  pool& memory_;
  std::array<vmm::stream_handle, 4> streams_{};
  std::mt19937_64 random_{1};
  std::vector<block> live_;
  std::uint64_t made_count_ = 0;
  std::uint64_t unfinished_count_ = 0;
  vmm::event_handle event_{};
  vmm::address wrong_{};
};

vmm::status work(vmm::cuda_driver& driver, vmm::nvtx_declarer& declarer, std::uint64_t count) {
  auto kernels = vmm::tools::kernel_set::load(driver);
  if (!kernels) return kernels.error();
  const auto options = watched(declarer);
  if (!options) return options.error();
  pool memory(driver, *options);
  return workload(driver, *kernels, memory).run(count);
}

constexpr const char* usage =
    "usage: vmm-overflow [--planted | --gap | --freed | --trimmed | --workload COUNT | --ask]\n"
    "COUNT, the number of blocks of a workload, is from 1 on.\n";

}  // namespace

int main(int argc, char** argv) {
  vmm::tools::answer_help(argc, argv, usage);
  const std::string_view word = argc > 1 ? argv[1] : "";
  constexpr std::array<std::string_view, 6> plain{"",        "--planted", "--gap",
                                                  "--freed", "--trimmed", "--ask"};
  const bool works = word == "--workload" && argc == 3;
  const auto count = works ? vmm::tools::read_count(argv[2], 1) : std::nullopt;
  if (works ? !count : argc > 2 || std::find(plain.begin(), plain.end(), word) == plain.end()) {
    std::fputs(usage, stderr);
    return 2;
  }
  auto declarer = vmm::nvtx_declarer::open();
  if (!declarer) return fail(declarer.error());
  auto driver = vmm::cuda_driver::open({.memory = vmm::cuda_memory::plain});
  if (!driver) return fail(driver.error());
  vmm::status done;
  if (works) {
    done = work(*driver, **declarer, *count);
  } else {
    done = word == "--ask" ? ask(*driver) : play(*driver, **declarer, word);
  }
  return done ? 0 : fail(done.error());
}
