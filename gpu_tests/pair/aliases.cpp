// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The part aliases, one memory at two addresses: each rule of docs/multi_device.md, by kernels of
// device 0.
// Each order is also left out once, and old bytes must be seen: else the trial shows nothing.

#include "parts.hpp"

import vmm.multi_device;

namespace vmm::gpu {
namespace {

// One memory with two views; a stream that writes and one that reads.
struct aliases : rig {
  aliases(cuda_driver& on, std::uint64_t size_bytes)
      : rig(on, {.stream_count = 2, .with_aliases = true}),
        memory(must(aliased_memory::make(on, {.size_bytes = size_bytes}))),
        first(memory.mappings().front()),
        second(must(memory.add_mapping())) {}
  aliases(const aliases&) = delete;
  aliases& operator=(const aliases&) = delete;
  ~aliases() { (void)memory.release(); }

  aliased_memory memory;
  address_range first;
  address_range second;
  stream_handle writer = streams[0];
  stream_handle reader = streams[1];
};

struct outcome {
  std::uint64_t wrong = 0;
  std::string seen;
};

std::string words_of(std::uint64_t wrong, std::uint64_t looked_at) {
  return text_of("%llu of %llu words wrong", wide(wrong), wide(looked_at));
}

outcome counted(aliases& in, std::uint64_t looked_at) {
  const std::uint64_t wrong = in.wrong_words();
  return {wrong, words_of(wrong, looked_at)};
}

// ---- the rules -----------------------------------------------------------------------

std::uint64_t rounds_of(const settings& how) { return how.is_quick ? 4 : 200; }

outcome one_stream(aliases& in, const settings& how) {
  const std::uint64_t rounds = rounds_of(how);
  in.clear();
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    const bool is_even = seed % 2 == 0;
    in.fill(is_even ? in.first : in.second, seed, in.writer);
    in.check(is_even ? in.second : in.first, seed, in.writer);
  }
  return counted(in, rounds * in.first.size_bytes / 8);
}

outcome ordered_streams(aliases& in, const settings& how) {
  const std::uint64_t rounds = rounds_of(how);
  in.clear();
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    in.spin(200'000, in.writer);
    in.fill(in.first, seed, in.writer);
    must(in.memory.order(in.writer, in.reader));
    in.check(in.second, seed, in.reader);
    must(in.memory.order(in.reader, in.writer));
  }
  return counted(in, rounds * in.first.size_bytes / 8);
}

// Old bytes are seen: the reader does not wait for the writer's 50 ms.
outcome unordered_streams(aliases& in, const settings& how) {
  in.fill(in.first, 1, in.writer);
  in.finish();
  in.clear();
  in.spin(50'000'000, in.writer);
  in.fill(in.first, 2, in.writer);
  in.check(in.second, 2, in.reader);
  outcome seen = counted(in, in.first.size_bytes / 8);
  seen.wrong = seen.wrong != 0 || how.is_quick ? 0 : 1;  // the stub driver's kernels are never late
  return seen;
}

// Neighbouring chunks are written at the same time, each through one view only.
outcome disjoint_bytes(aliases& in, const settings& how) {
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
        in.fill(chunk(in.first, i), round * count + i, in.writer);
        in.fill(chunk(in.second, i + 1), round * count + i + 1, in.reader);
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

outcome host_reads(aliases& in, const settings&) {
  std::vector<std::uint64_t> words(in.first.size_bytes / 8);
  outcome seen;
  constexpr std::uint64_t seed = 11;
  in.fill(in.first, seed, in.writer);
  in.finish();
  must(in.driver.read(std::as_writable_bytes(std::span(words)), in.second.base));
  for (std::uint64_t i = 0; i < words.size(); ++i)
    seen.wrong += words[i] == seed + i * tools::pattern_step ? 0 : 1;
  seen.seen = words_of(seen.wrong, words.size());
  return seen;
}

outcome one_kernel(aliases& in, const settings& how) {
  const std::uint64_t rounds = rounds_of(how);
  in.clear();
  for (std::uint64_t seed = 1; seed <= rounds; ++seed)
    must(in.kernels.write_and_read({in.first, seed, in.writer}, in.second.base, in.counter));
  return counted(in, rounds * in.first.size_bytes / 8);
}

// The last of the trials: the views go one by one.
outcome mappings_end(aliases& in, const settings&) {
  const auto free_bytes = [&] { return must(in.driver.query_memory(in.driver.home())).free_bytes; };
  in.clear();
  in.fill(in.first, 21, in.writer);
  in.finish();
  must(in.memory.drop_mapping(in.first.base));
  in.check(in.second, 21, in.writer);
  const address_range third = must(in.memory.add_mapping());
  in.check(third, 21, in.writer);
  outcome seen = counted(in, 2 * in.second.size_bytes / 8);
  const std::uint64_t before = free_bytes();
  must(in.memory.drop_mapping(third.base));
  const std::uint64_t with_one = free_bytes();
  must(in.memory.release());
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
  outcome (*run)(aliases&, const settings&);
};

constexpr std::array<trial, 7> trials{
    {{"1", "work of one stream, through either view", "0 wrong", &one_stream},
     {"2", "another stream, behind order()", "0 wrong", &ordered_streams},
     {"2", "another stream, without it", "old words", &unordered_streams},
     {"3", "neighbouring chunks at the same time, each by one view", "0 wrong", &disjoint_bytes},
     {"4", "the host, when the work has finished", "0 wrong", &host_reads},
     {"fence", "one kernel, with fence.proxy.alias", "0 wrong", &one_kernel},
     {"5", "a view goes, and then the last", "0 wrong; the memory goes last", &mappings_end}}};

}  // namespace

verdict try_aliases(const settings& how) {
  cuda_driver driver = open_one(0);
  const std::uint64_t size_bytes = how.size_bytes(64 * mib);
  aliases in(driver, size_bytes);
  std::size_t right_count = 0;
  std::printf("| rule | trial | seen | expected |\n| --- | --- | --- | --- |\n");
  for (const trial& one : trials) {
    const outcome seen = one.run(in, how);
    right_count += seen.wrong == 0 ? 1 : 0;
    std::printf("| %s | %s | %s | %s |\n", one.rule, one.what, seen.seen.c_str(), one.expected);
    std::fflush(stdout);
  }
  return judge_trials(right_count, trials.size());
}

}  // namespace vmm::gpu
