// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The command overflow: blocks of a pool on a CUDA device, and kernels that write into them: within
// them, or where no block is. For a memory checker: the pool lies in plain memory and declares its
// blocks through NVTX, and what is written elsewhere is what the checker must see.
//
//   compute-sanitizer --nvtx yes --report-api-errors no vmm-gpu-test overflow            no error
//   compute-sanitizer --nvtx yes --report-api-errors no vmm-gpu-test overflow --planted  one error
//
// Where the one byte goes that is not the last of a block:
//   --planted   one byte over the end of a block, before the next one
//   --gap       the last byte before that next one
//   --freed     a block that was freed
//   --trimmed   a block that was freed and whose memory was released
// --workload COUNT allocates and frees COUNT blocks of many sizes on four streams, and kernels
// write and read each of them to its last byte: no error.
//
// Exits with 0 when the kernels ran or the checker stopped the planted one.

#include "../rig.hpp"

import vmm.observe;

namespace vmm::gpu {
namespace {

constexpr std::uint64_t block_bytes = 1000;

using pool = vmm::stream_pool;

vmm::pool_options watched(vmm::nvtx_declarer& declarer) {
  vmm::pool_options options;
  options.reservation_bytes = 256 * mib;  // plain memory: all of it is taken at once
  options.observer = &declarer;
  return must(vmm::pool_options::from_environment(options));
}

// Where the byte of a case goes; the blocks are freed first where the case says so.
vmm::address target_of(const std::string& word, pool& memory,
                       const std::array<vmm::address, 2>& blocks, vmm::stream_handle stream) {
  if (word.empty()) return blocks[0] + (block_bytes - 1);
  if (word == "--planted") return blocks[0] + block_bytes;
  if (word == "--gap") return vmm::address{blocks[1].value - 1};
  for (const vmm::address each : blocks) must(memory.free(each, stream));
  if (word == "--freed") return blocks[0];
  must(memory.synchronize());
  std::printf("%llu bytes given back\n", wide(memory.trim(0).released_bytes));
  return blocks[0];
}

void play(vmm::cuda_driver& driver, vmm::nvtx_declarer& declarer, const std::string& word) {
  auto kernels = must(vmm::tools::kernel_set::load(driver));
  const vmm::stream_handle stream = must(driver.create_stream());
  pool memory(driver, watched(declarer));
  std::array<vmm::address, 2> blocks;
  for (vmm::address& each : blocks) each = must(memory.allocate(block_bytes, stream));
  std::printf("blocks of %llu bytes at 0x%llx and 0x%llx; heaps declared: %llu, regions: %llu\n",
              wide(block_bytes), wide(blocks[0].value), wide(blocks[1].value),
              wide(declarer.heap_count()), wide(declarer.region_count()));
  for (const vmm::address at : blocks) must(kernels.poke(at, 1, stream));
  must(driver.synchronize_stream(stream));
  const vmm::address target = target_of(word, memory, blocks, stream);
  vmm::status outcome = kernels.poke(target, 1, stream);
  if (outcome) outcome = driver.synchronize_stream(stream);
  std::printf("a byte at 0x%llx: %s\n", wide(target.value),
              outcome ? "the kernel ran" : "the kernel was stopped");
  if (word.empty()) must(outcome);
  if (!outcome || word == "--freed" || word == "--trimmed") return;
  for (const vmm::address each : blocks) must(memory.free(each, stream));
}

// ---- many blocks -------------------------------------------------------------------------------

// Blocks of many sizes, on streams of their own, each written and read by kernels without a wait.
class workload {
 public:
  workload(vmm::cuda_driver& driver, vmm::tools::kernel_set& kernels, pool& memory)
      : driver_(driver), kernels_(kernels), memory_(memory) {}

  [[nodiscard]] int run(std::uint64_t count) {
    for (vmm::stream_handle& each : streams_) each = must(driver_.create_stream());
    event_ = must(driver_.create_event());
    wrong_ = must(memory_.allocate(sizeof(std::uint64_t), streams_[0]));
    must(driver_.write(wrong_, std::array<std::byte, 8>{}));
    while (created_count_ < count || !live_.empty()) {
      const bool makes = created_count_ < count && live_.size() < live_max && random_() % 9 < 5;
      if (makes) {
        make();
      } else if (!live_.empty()) {
        drop();
      }
      if (random_() % 256 == 0) (void)memory_.trim(0);
    }
    return report();
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
    const std::uint64_t largest = kind == 0 ? 12 * mib : (kind < 6 ? mib / 4 : 4096);
    return 8 * (1 + random_() % (largest / 8)) + 1 + random_() % 7;
  }
  [[nodiscard]] vmm::tools::pattern_request words_of(const block& in) const {
    return {{in.at, in.size_bytes / 8 * 8}, in.seed, in.stream};
  }

  void make() {
    block fresh{{}, any_size(), random_(), streams_[random_() % streams_.size()]};
    fresh.at = must(memory_.allocate(fresh.size_bytes, fresh.stream));
    ++created_count_;
    live_.push_back(fresh);
    // What follows on the stream has not begun when it is freed.
    if (random_() % 16 == 0) must(kernels_.spin(spin_ns, fresh.stream));
    must(kernels_.fill(words_of(fresh)));
    must(kernels_.poke(fresh.at + (fresh.size_bytes - 1), 1, fresh.stream));
  }
  void drop() {
    std::swap(live_[random_() % live_.size()], live_.back());
    const block gone = live_.back();
    live_.pop_back();
    must(kernels_.check(words_of(gone), wrong_));
    must(driver_.record_event(event_, gone.stream));
    if (!must(driver_.query_event(event_))) ++unfinished_count_;
    must(memory_.free(gone.at, gone.stream));
  }
  [[nodiscard]] int report() {
    for (const vmm::stream_handle each : streams_) must(driver_.synchronize_stream(each));
    std::uint64_t wrong = 0;
    must(driver_.read(std::as_writable_bytes(std::span(&wrong, 1)), wrong_));
    const vmm::pool_statistics now = memory_.statistics();
    std::printf(
        "%llu blocks on %zu streams, %llu wrong words; %llu freed while kernels that use them had "
        "not ended; the pool grew %llu times to %llu MiB\n",
        wide(created_count_), streams_.size(), wide(wrong), wide(unfinished_count_),
        wide(now.slow_count), wide(now.peak_mapped_bytes / mib));
    must(memory_.free(wrong_, streams_[0]));
    return wrong == 0 ? 0 : 1;
  }

  vmm::cuda_driver& driver_;
  vmm::tools::kernel_set& kernels_;
  pool& memory_;
  std::array<vmm::stream_handle, 4> streams_{};
  std::mt19937_64 random_{1};
  std::vector<block> live_;
  std::uint64_t created_count_ = 0;
  std::uint64_t unfinished_count_ = 0;
  vmm::event_handle event_{};
  vmm::address wrong_{};
};

}  // namespace

int run_overflow(const settings& how) {
  const auto declarer = must(vmm::nvtx_declarer::open());
  auto driver = must(vmm::cuda_driver::open({.memory = vmm::cuda_memory::plain}));
  if (how.count != 0) {
    auto kernels = must(vmm::tools::kernel_set::load(driver));
    pool memory(driver, watched(*declarer));
    return workload(driver, kernels, memory).run(how.count);
  }
  play(driver, *declarer, how.target);
  return 0;
}

}  // namespace vmm::gpu
