// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The command graph: which of vmm's driver calls a capture on a CUDA device forbids, and
// whether the pool keeps out of its way. The pool allocates and frees in a capture and beside it,
// grows, moves and trims meanwhile; then the graph is launched again and again between other work,
// and kernels check that neither wrote into the other's memory. And which streams can be captured
// at all, by the driver's word and by the backend's.
//
// Exits with 0 when no capture was spoiled by the pool, all contents were right, and the two words
// agree.

#include "../graphs.hpp"

namespace vmm::gpu {
namespace {

// ---- which calls a capture forbids --------------------------------------------------------------

struct probe {
  const char* name;
  std::function<vmm::status()> call;
  std::function<void()> undo = [] {};
};

template <class T>
vmm::status status_of(const vmm::result<T>& answer) {
  if (!answer) return answer.error();
  return {};
}

void show_rules(vmm::cuda_driver& driver, graphs& driven, vmm::stream_handle captured) {
  const vmm::stream_handle other = must(driver.create_stream());
  const vmm::event_handle event = must(driver.create_event());
  const vmm::address_range range = must(driver.reserve({4 * mib, 0, {}}));
  const vmm::physical_handle held = must(driver.create({2 * mib, driver.home()}));
  const vmm::access_grant grant{driver.home()};
  const vmm::address_range part{range.base, 2 * mib};
  vmm::physical_handle made{};
  std::array<std::byte, 64> bytes{};
  must(driver.record_event(event, other));
  const std::vector<probe> probes{
      {"create",
       [&] {
         const auto answer = driver.create({2 * mib, driver.home()});
         if (answer) made = *answer;
         return status_of(answer);
       },
       [&] {
         if (made != vmm::physical_handle::none) must(driver.release(made));
       }},
      {"map", [&] { return driver.map({part.base, 2 * mib, held, 0}); }},
      {"set_access", [&] { return driver.set_access(part, {&grant, 1}); },
       [&] { must(driver.set_access(part, {&grant, 1})); }},
      {"write", [&] { return driver.write(part.base, std::span(bytes)); }},
      {"unmap", [&] { return driver.unmap(part); }},
      {"release", [&] { return driver.release(held); }},
      {"create_event",
       [&] {
         const auto answer = driver.create_event();
         if (answer) must(driver.destroy_event(*answer));
         return status_of(answer);
       }},
      {"record_event", [&] { return driver.record_event(event, other); }},
      {"record_all", [&] { return driver.record_all(event); }},
      {"query_event", [&] { return status_of(driver.query_event(event)); }},
      {"synchronize_event", [&] { return driver.synchronize_event(event); }},
      {"synchronize_stream", [&] { return driver.synchronize_stream(other); }},
      {"synchronize_all", [&] { return driver.synchronize_all(); }},
      {"query_memory", [&] { return status_of(driver.query_memory(driver.home())); }},
      {"query_capture", [&] { return status_of(driver.query_capture(other)); }},
  };
  std::printf(
      "| call beside a capture | global: answer | capture's end | relaxed: answer "
      "| capture's end |\n| --- | --- | --- | --- | --- |\n");
  for (const probe& each : probes) {
    std::printf("| %s |", each.name);
    bool done = false;
    for (const bool relaxed : {false, true}) {
      if (done) {  // calls that can be made once were made
        std::printf(" made | |");
        continue;
      }
      driven.begin(captured);
      if (relaxed) (void)driver.exchange_capture_mode(vmm::capture_mode::relaxed);
      const vmm::status answer = each.call();
      if (relaxed) (void)driver.exchange_capture_mode(vmm::capture_mode::any_thread);
      const CUresult end = driven.end(captured);
      constexpr std::array<std::string_view, 3> made_once{"map", "unmap", "release"};
      done = answer && std::count(made_once.begin(), made_once.end(), each.name) != 0;
      std::printf(" %s | %d |", answer ? "success" : answer.error().native_name,
                  static_cast<int>(end));
      each.undo();
      made = {};
    }
    std::printf("\n");
  }
  must(driver.destroy_event(event));
  must(driver.destroy_stream(other));
  must(driver.free_reservation(range));
}

// ---- which streams can be captured --------------------------------------------------------------

// True when the backend says of each stream what the driver does.
bool show_streams(const vmm::cuda_driver& driver, graphs& driven, vmm::stream_handle created) {
  const std::pair<const char*, vmm::stream_handle> streams[] = {
      {"default, 0", vmm::stream_handle::default_stream},
      {"default, CU_STREAM_LEGACY", static_cast<vmm::stream_handle>(1)},
      {"each thread's, CU_STREAM_PER_THREAD", static_cast<vmm::stream_handle>(2)},
      {"created", created},
  };
  bool alike = true;
  std::printf("\n| stream | cuStreamBeginCapture returns | can_capture |\n| --- | --- | --- |\n");
  for (const auto& [name, stream] : streams) {
    const CUresult code = driven.try_begin(stream);
    const bool expected = vmm::can_capture(driver.feature_set(), stream);
    alike = alike && expected == (code == CUDA_SUCCESS);
    std::printf("| %s | %d | %s |\n", name, static_cast<int>(code), expected ? "true" : "false");
  }
  return alike;
}

// ---- the pool beside and in a capture -----------------------------------------------------------

struct shown {
  std::uint64_t wrong_words = 0;
  std::uint64_t checked_blocks = 0;
  vmm::pool_statistics end{};
};

shown play(rig& r, graphs& driven) {
  const vmm::stream_handle a = r.streams[0];
  const vmm::stream_handle b = r.streams[1];
  vmm::pool_options options;
  options.capture = vmm::capture_rule::private_memory;
  options.policy.handle_bytes_max = 2 * mib;
  options.policy.headroom = 0;
  options.policy.tuning.slack_bytes = 0;
  options.policy.tuning.min_move_share = 0;
  vmm::stream_pool pool(r.driver, options);
  const vmm::address first = must(pool.allocate(512, b));
  const vmm::address before = must(pool.allocate(8 * mib, a));
  const vmm::address wall = must(pool.allocate(2 * mib, a));
  r.spin(20'000'000, a);
  must(pool.free(before, a));
  driven.begin(a);
  const std::uint64_t number = must(pool.captures().number(a));
  const vmm::address temporary = must(pool.allocate(4 * mib, a));
  r.fill({temporary, 4 * mib}, 1, a);
  const vmm::address kept = must(pool.allocate(4 * mib, a));
  must(r.kernels.copy({kept, temporary, 4 * mib, a}));
  must(pool.free(temporary, a));
  const vmm::address beside = must(pool.allocate(24 * mib, b));  // grows while a is captured
  r.fill({beside, 24 * mib}, 5, b);
  must(pool.free(beside, b));
  (void)pool.trim(0);
  CUgraphExec graph = nullptr;
  must(driven.end(a, &graph), "cuStreamEndCapture, after what the pool did meanwhile");
  shown found;
  for (std::uint64_t round = 0; round < 200; ++round) {
    const vmm::address eager = must(pool.allocate((2 + round % 5) * mib, b));
    const vmm::address_range range{eager, (2 + round % 5) * mib};
    r.fill(range, round * 7 + 3, b);
    driven.launch(graph, a);
    r.spin(10'000, b);
    r.check(range, round * 7 + 3, b);
    must(pool.free(eager, b));
    if (round % 10 == 9) (void)pool.trim(0);
    if (round % 20 != 19) continue;
    must(r.driver.synchronize_stream(a));
    r.check({kept, 4 * mib}, 1, b);
    must(r.driver.synchronize_stream(b));
    found.checked_blocks += 21;
  }
  must(pool.validate());
  driven.destroy(graph);
  must(pool.captures().release(number, a));
  found.wrong_words = r.wrong_words();
  for (const vmm::address at : {kept, wall}) must(pool.free(at, a));
  must(pool.free(first, b));
  found.end = pool.statistics();
  return found;
}

}  // namespace

int run_graph(const settings&) {
  vmm::cuda_driver driver = open_device();
  graphs driven(driver);
  rig r(driver, {.stream_count = 2});
  show_rules(driver, driven, r.streams[0]);
  const bool alike = show_streams(driver, driven, r.streams[1]);
  const shown found = play(r, driven);
  std::printf(
      "\nA graph with memory of the pool, launched 200 times between other work: %llu blocks "
      "checked, %llu words wrong; %llu bytes kept after its release; %llu handles moved.\n",
      wide(found.checked_blocks), wide(found.wrong_words), wide(found.end.captured_bytes),
      wide(found.end.moved_count));
  return alike && found.wrong_words == 0 && found.end.captured_bytes == 0 ? 0 : 1;
}

}  // namespace vmm::gpu
