// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-pair, one memory at two addresses: each rule of docs/multi_device.md, by kernels of device 0.
// Each order is also left out once, and old bytes must be seen: else the trial shows nothing.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "../../backends/cuda/abi.h"
#include "parts.hpp"

import vmm.kernels;
import vmm.multi_device;

namespace vmm::tools {
namespace {

// Each thread writes a word through one view and reads it through the other.
constexpr const char* fence_text = R"ptx(
.version 7.5
.target sm_75
.address_size 64

.visible .entry vmm_alias_words(.param .u64 written, .param .u64 read, .param .u64 count,
                                .param .u64 seed, .param .u64 wrong)
{
  .reg .pred %done, %more, %right;
  .reg .b32 %width, %block, %thread, %blocks;
  .reg .b64 %to, %from, %n, %s, %bad, %index, %wide, %stride, %word, %seen, %offset, %at;

  ld.param.u64 %to, [written];
  ld.param.u64 %from, [read];
  ld.param.u64 %n, [count];
  ld.param.u64 %s, [seed];
  ld.param.u64 %bad, [wrong];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;
  cvta.to.global.u64 %bad, %bad;
  mov.u32 %width, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %index, %block, %width;
  cvt.u64.u32 %wide, %thread;
  add.u64 %index, %index, %wide;
  mul.wide.u32 %stride, %blocks, %width;
  setp.ge.u64 %done, %index, %n;
  @%done bra END;
NEXT:
  mul.lo.u64 %word, %index, 0x9E3779B97F4A7C15;
  add.u64 %word, %word, %s;
  shl.b64 %offset, %index, 3;
  add.u64 %at, %offset, %to;
  st.global.u64 [%at], %word;
  fence.proxy.alias;
  add.u64 %at, %offset, %from;
  ld.global.u64 %seen, [%at];
  setp.eq.u64 %right, %seen, %word;
  @%right bra AFTER;
  red.global.add.u64 [%bad], 1;
AFTER:
  add.u64 %index, %index, %stride;
  setp.lt.u64 %more, %index, %n;
  @%more bra NEXT;
END:
  ret;
}
)ptx";

// One memory with two views, two streams, and a counter.
struct rig {
  rig(cuda_driver& on, std::uint64_t size_bytes)
      : driver(on),
        kernels(must(kernel_set::load(on), "loading kernels")),
        own(on),
        counter(must(own.allocate(2 * mib), "a counter")),
        writer(must(on.create_stream(), "a stream")),
        reader(must(on.create_stream(), "a stream")),
        memory(must(aliased_memory::make(on, {.size_bytes = size_bytes}), "aliased memory")),
        first(memory.mappings().front()),
        second(must(memory.add_mapping(), "a second view")) {}
  rig(const rig&) = delete;
  rig& operator=(const rig&) = delete;
  ~rig() {
    (void)memory.release();
    (void)own.free(counter);
    (void)driver.destroy_stream(writer);
    (void)driver.destroy_stream(reader);
  }

  void clear() {
    const std::array<std::byte, 8> zeros{};
    must(driver.write(counter, zeros), "clearing the counter");
  }
  void write(address_range at, std::uint64_t seed, stream_handle on) {
    must(kernels.fill({at, seed, on}), "a kernel that writes");
  }
  void check(address_range at, std::uint64_t seed, stream_handle on) {
    must(kernels.check({at, seed, on}, counter), "a kernel that reads");
  }
  void finish() {
    must(driver.synchronize_stream(writer), "the stream that writes");
    must(driver.synchronize_stream(reader), "the stream that reads");
  }
  /// Words that kernels have found wrong since clear().
  std::uint64_t wrong() {
    finish();
    std::array<std::byte, 8> bytes{};
    must(driver.read(bytes, counter), "reading the counter");
    std::uint64_t count = 0;
    std::memcpy(&count, bytes.data(), sizeof count);
    return count;
  }

  cuda_driver& driver;
  kernel_set kernels;
  manager own;
  address counter;
  stream_handle writer;
  stream_handle reader;
  aliased_memory memory;
  address_range first;
  address_range second;
};

struct outcome {
  std::uint64_t wrong = 0;
  std::string seen;
};

std::string words_of(std::uint64_t wrong, std::uint64_t looked_at) {
  return text_of("%llu of %llu words wrong", static_cast<unsigned long long>(wrong),
                 static_cast<unsigned long long>(looked_at));
}

outcome counted(rig& in, std::uint64_t looked_at) {
  const std::uint64_t wrong = in.wrong();
  return {wrong, words_of(wrong, looked_at)};
}

// ---- the rules -----------------------------------------------------------------------

std::uint64_t rounds_of(const pair_settings& how) { return how.is_quick ? 4 : 200; }

outcome one_stream(rig& in, const pair_settings& how) {
  const std::uint64_t rounds = rounds_of(how);
  in.clear();
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    const bool is_even = seed % 2 == 0;
    in.write(is_even ? in.first : in.second, seed, in.writer);
    in.check(is_even ? in.second : in.first, seed, in.writer);
  }
  return counted(in, rounds * in.first.size_bytes / 8);
}

outcome ordered_streams(rig& in, const pair_settings& how) {
  const std::uint64_t rounds = rounds_of(how);
  in.clear();
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    must(in.kernels.spin(200'000, in.writer), "a kernel that waits");
    in.write(in.first, seed, in.writer);
    must(in.memory.order(in.writer, in.reader), "ordering");
    in.check(in.second, seed, in.reader);
    must(in.memory.order(in.reader, in.writer), "ordering");
  }
  return counted(in, rounds * in.first.size_bytes / 8);
}

// Old bytes are seen: the reader does not wait for the writer's 50 ms.
outcome unordered_streams(rig& in, const pair_settings& how) {
  in.write(in.first, 1, in.writer);
  in.finish();
  in.clear();
  must(in.kernels.spin(50'000'000, in.writer), "a kernel that waits");
  in.write(in.first, 2, in.writer);
  in.check(in.second, 2, in.reader);
  outcome seen = counted(in, in.first.size_bytes / 8);
  seen.wrong = seen.wrong != 0 || how.is_quick ? 0 : 1;  // the stub driver's kernels are never late
  return seen;
}

// Neighbouring chunks are written at the same time, each through one view only.
outcome disjoint_bytes(rig& in, const pair_settings& how) {
  const std::uint64_t span_bytes = how.is_quick ? 64 << 10 : mib;
  const std::uint64_t round_count = how.is_quick ? 1 : 20;
  std::uint64_t looked_at = 0;
  in.clear();
  for (const std::uint64_t chunk_bytes : {std::uint64_t{512}, std::uint64_t{4096}}) {
    const auto chunk = [&](const address_range& view, std::uint64_t index) {
      return address_range{view.base + index * chunk_bytes, chunk_bytes};
    };
    const std::uint64_t count = span_bytes / chunk_bytes;
    for (std::uint64_t round = 1; round <= round_count; ++round) {
      for (std::uint64_t i = 0; i < count; i += 2) {
        in.write(chunk(in.first, i), round * count + i, in.writer);
        in.write(chunk(in.second, i + 1), round * count + i + 1, in.reader);
      }
      in.finish();
      for (std::uint64_t i = 0; i < count; ++i)
        in.check(chunk(i % 2 == 0 ? in.second : in.first, i), round * count + i, in.writer);
      in.finish();
      looked_at += span_bytes / 8;
    }
  }
  return counted(in, looked_at);
}

outcome host_reads(rig& in, const pair_settings&) {
  std::vector<std::uint64_t> words(in.first.size_bytes / 8);
  outcome seen;
  constexpr std::uint64_t seed = 11;
  in.write(in.first, seed, in.writer);
  in.finish();
  must(in.driver.read(std::as_writable_bytes(std::span(words)), in.second.base), "a host's read");
  for (std::uint64_t i = 0; i < words.size(); ++i)
    seen.wrong += words[i] == seed + i * pattern_step ? 0 : 1;
  seen.seen = words_of(seen.wrong, words.size());
  return seen;
}

outcome one_kernel(rig& in, const pair_settings& how) {
  const std::uint64_t rounds = rounds_of(how);
  const auto load = call_of<PFN_cuModuleLoadData_v2000>(in.driver, "cuModuleLoadData", 2000);
  const auto unload = call_of<PFN_cuModuleUnload_v2000>(in.driver, "cuModuleUnload", 2000);
  const auto get = call_of<PFN_cuModuleGetFunction_v2000>(in.driver, "cuModuleGetFunction", 2000);
  const auto start = call_of<PFN_cuLaunchKernel_v4000>(in.driver, "cuLaunchKernel", 4000);
  if (!in.driver.push_context()) stop("a context could not be made current");
  in.clear();
  CUmodule loaded = nullptr;
  CUfunction kernel = nullptr;
  CUresult code = load(&loaded, fence_text);
  if (code == CUDA_SUCCESS) code = get(&kernel, loaded, "vmm_alias_words");
  std::uint64_t to = in.first.base.value;
  std::uint64_t from = in.second.base.value;
  std::uint64_t count = in.first.size_bytes / 8;
  std::uint64_t counter = in.counter.value;
  for (std::uint64_t seed = 1; seed <= rounds && code == CUDA_SUCCESS; ++seed) {
    std::array<void*, 5> arguments{&to, &from, &count, &seed, &counter};
    code = start(kernel, 1024, 1, 1, 256, 1, 1, 0, native_stream<CUstream>(in.writer),
                 arguments.data(), nullptr);
  }
  if (code != CUDA_SUCCESS) stop(text_of("the kernel with the fence returned %d", code));
  outcome seen = counted(in, rounds * count);
  (void)unload(loaded);
  in.driver.pop_context();
  return seen;
}

// The last of the trials: the views go one by one.
outcome views_go(rig& in, const pair_settings&) {
  const auto free_bytes = [&] {
    return must(in.driver.query_memory(in.driver.home()), "asking for free memory").free_bytes;
  };
  in.clear();
  in.write(in.first, 21, in.writer);
  in.finish();
  must(in.memory.drop_mapping(in.first.base), "dropping a view");
  in.check(in.second, 21, in.writer);
  const address_range third = must(in.memory.add_mapping(), "a third view");
  in.check(third, 21, in.writer);
  outcome seen = counted(in, 2 * in.second.size_bytes / 8);
  const std::uint64_t before = free_bytes();
  must(in.memory.drop_mapping(third.base), "dropping a view");
  const std::uint64_t with_one = free_bytes();
  must(in.memory.release(), "the last view");
  const std::uint64_t after = free_bytes();
  const bool is_kept = with_one < before + in.second.size_bytes;
  const bool is_back = after >= before + in.second.size_bytes;
  seen.seen += is_kept && is_back ? "; the memory went with the last view"
                                  : "; the memory went at another time";
  seen.wrong += is_kept && is_back ? 0 : 1;
  return seen;
}

struct trial {
  const char* rule;
  const char* what;
  const char* expected;
  outcome (*run)(rig&, const pair_settings&);
};

constexpr std::array<trial, 7> trials{
    {{"1", "work of one stream, through either view", "0 wrong", &one_stream},
     {"2", "another stream, behind order()", "0 wrong", &ordered_streams},
     {"2", "another stream, without it", "old words", &unordered_streams},
     {"3", "neighbouring chunks at the same time, each by one view", "0 wrong", &disjoint_bytes},
     {"4", "the host, when the work has finished", "0 wrong", &host_reads},
     {"fence", "one kernel, with fence.proxy.alias", "0 wrong", &one_kernel},
     {"5", "a view goes, and then the last", "0 wrong; the memory goes last", &views_go}}};

}  // namespace

verdict try_aliases(const pair_settings& how) {
  cuda_driver driver = open_device(0);
  const std::uint64_t size_bytes = how.size_bytes(64 * mib);
  rig in(driver, size_bytes);
  int right_count = 0;
  std::printf("| rule | trial | seen | expected |\n| --- | --- | --- | --- |\n");
  for (const trial& one : trials) {
    const outcome seen = one.run(in, how);
    right_count += seen.wrong == 0 ? 1 : 0;
    std::printf("| %s | %s | %s | %s |\n", one.rule, one.what, seen.seen.c_str(), one.expected);
    std::fflush(stdout);
  }
  give_figure(text_of("%d of %d trials as expected", right_count, static_cast<int>(trials.size())));
  return right_count == static_cast<int>(trials.size()) ? verdict::ok : verdict::failed;
}

}  // namespace vmm::tools
