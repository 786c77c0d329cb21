// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-graph - graph capture on a CUDA device: which of vmm's driver calls a capture forbids, and
// whether the pool keeps out of its way. The pool allocates and frees in a capture and beside it,
// grows, moves and trims meanwhile; then the graph is launched again and again between other work,
// and kernels check that neither wrote into the other's memory. And which streams can be captured
// at all, by the driver's word and by the backend's.
//
// Exits with 0 when no capture was spoiled by the pool, all contents were right, and the two words
// agree.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>  // see docs/support.md, clang 22
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "../../tools/program/usage.hpp"

#include "../../tools/program/cuda_calls.hpp"

import vmm;
import vmm.backend;
import vmm.kernels;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr const char* usage =
    "usage: vmm-graph\n"
    "  What captured graphs of a GPU do with the memory of vmm's pool, in a table. No options.\n";

// The calls that make and play graphs. vmm itself needs none of them.
class graphs {
 public:
  explicit graphs(const vmm::cuda_driver& driver)
      : begin_(call_of<PFN_cuStreamBeginCapture_v10010>(driver, "cuStreamBeginCapture", 10010)),
        end_(call_of<PFN_cuStreamEndCapture_v10000>(driver, "cuStreamEndCapture", 10000)),
        instantiate_(call_of<PFN_cuGraphInstantiateWithFlags_v11040>(
            driver, "cuGraphInstantiateWithFlags", 11040)),
        launch_(call_of<PFN_cuGraphLaunch_v10000>(driver, "cuGraphLaunch", 10000)),
        destroy_exec_(call_of<PFN_cuGraphExecDestroy_v10000>(driver, "cuGraphExecDestroy", 10000)),
        destroy_(call_of<PFN_cuGraphDestroy_v10000>(driver, "cuGraphDestroy", 10000)) {
    enter(driver);
  }
  void begin(vmm::stream_handle stream) {
    must(begin_(native(stream), CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  }
  // Whether the driver begins a capture on it; what was begun is ended.
  [[nodiscard]] CUresult try_begin(vmm::stream_handle stream) {
    const CUresult code = begin_(native(stream), CU_STREAM_CAPTURE_MODE_RELAXED);
    if (code == CUDA_SUCCESS) must(end(stream), "cuStreamEndCapture");
    return code;
  }
  // The driver's answer; without a place for the graph it is thrown away.
  CUresult end(vmm::stream_handle stream, CUgraphExec* into = nullptr) {
    CUgraph made = nullptr;
    const CUresult code = end_(native(stream), &made);
    if (code != CUDA_SUCCESS) return code;
    if (into != nullptr) must(instantiate_(into, made, 0), "cuGraphInstantiateWithFlags");
    return destroy_(made);
  }
  void launch(CUgraphExec what, vmm::stream_handle stream) {
    must(launch_(what, native(stream)), "cuGraphLaunch");
  }
  void destroy(CUgraphExec what) { must(destroy_exec_(what), "cuGraphExecDestroy"); }

 private:
  static CUstream native(vmm::stream_handle stream) { return vmm::native_stream<CUstream>(stream); }

  PFN_cuStreamBeginCapture_v10010 begin_;
  PFN_cuStreamEndCapture_v10000 end_;
  PFN_cuGraphInstantiateWithFlags_v11040 instantiate_;
  PFN_cuGraphLaunch_v10000 launch_;
  PFN_cuGraphExecDestroy_v10000 destroy_exec_;
  PFN_cuGraphDestroy_v10000 destroy_;
};

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
    const bool told = vmm::can_capture(driver.feature_set(), stream);
    alike = alike && told == (code == CUDA_SUCCESS);
    std::printf("| %s | %d | %s |\n", name, static_cast<int>(code), told ? "true" : "false");
  }
  return alike;
}

// ---- the pool beside and in a capture -----------------------------------------------------------

struct shown {
  std::uint64_t wrong_words = 0;
  std::uint64_t checked_blocks = 0;
  vmm::pool_statistics end{};
};

shown play(vmm::cuda_driver& driver, graphs& driven, vmm::stream_handle a, vmm::stream_handle b) {
  auto kernels = must(vmm::tools::kernel_set::load(driver));
  vmm::pool_options options;
  options.capture = vmm::capture_rule::private_memory;
  options.rules.handle_bytes = 2 * mib;
  options.rules.headroom = 0;
  options.rules.slack_bytes = 0;
  options.rules.harvest_share = 0;
  vmm::stream_pool pool(driver, options);
  const vmm::address counter = must(pool.allocate(512, b));
  must(driver.fill({{counter, 512}, 0, b}));
  must(driver.synchronize_stream(b));
  const vmm::address before = must(pool.allocate(8 * mib, a));
  const vmm::address wall = must(pool.allocate(2 * mib, a));
  must(kernels.spin(20'000'000, a));
  must(pool.free(before, a));
  driven.begin(a);
  const std::uint64_t number = must(pool.captures().number(a));
  const vmm::address temporary = must(pool.allocate(4 * mib, a));
  must(kernels.fill({{temporary, 4 * mib}, 1, a}));
  const vmm::address kept = must(pool.allocate(4 * mib, a));
  must(kernels.copy({kept, temporary, {}, 4 * mib, a}));
  must(pool.free(temporary, a));
  const vmm::address beside = must(pool.allocate(24 * mib, b));  // grows while a is captured
  must(kernels.fill({{beside, 24 * mib}, 5, b}));
  must(pool.free(beside, b));
  (void)pool.trim(0);
  CUgraphExec graph = nullptr;
  must(driven.end(a, &graph), "cuStreamEndCapture, after what the pool did meanwhile");
  shown found;
  for (std::uint64_t round = 0; round < 200; ++round) {
    const vmm::address eager = must(pool.allocate((2 + round % 5) * mib, b));
    const vmm::address_range range{eager, (2 + round % 5) * mib};
    must(kernels.fill({range, round * 7 + 3, b}));
    driven.launch(graph, a);
    must(kernels.spin(10'000, b));
    must(kernels.check({range, round * 7 + 3, b}, counter));
    must(pool.free(eager, b));
    if (round % 10 == 9) (void)pool.trim(0);
    if (round % 20 != 19) continue;
    must(driver.synchronize_stream(a));
    must(kernels.check({{kept, 4 * mib}, 1, b}, counter));
    must(driver.synchronize_stream(b));
    found.checked_blocks += 21;
  }
  must(pool.validate());
  driven.destroy(graph);
  must(pool.captures().release(number, a));
  must(driver.synchronize_stream(b));
  must(driver.read(std::as_writable_bytes(std::span(&found.wrong_words, 1)), counter));
  for (const vmm::address at : {kept, wall}) must(pool.free(at, a));
  must(pool.free(counter, b));
  found.end = pool.statistics();
  return found;
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  if (count > 1) {
    std::fputs(usage, stderr);
    return 2;
  }
  auto opened = vmm::cuda_driver::open();
  if (!opened) stop(vmm::describe(opened.error()).c_str());
  vmm::cuda_driver& driver = *opened;
  graphs driven(driver);
  const vmm::stream_handle a = must(driver.create_stream());
  const vmm::stream_handle b = must(driver.create_stream());
  show_rules(driver, driven, a);
  const bool alike = show_streams(driver, driven, b);
  const shown found = play(driver, driven, a, b);
  std::printf(
      "\nA graph with memory of the pool, launched 200 times between other work: %llu blocks "
      "checked, %llu words wrong; %llu bytes kept after its release; %llu handles moved.\n",
      static_cast<unsigned long long>(found.checked_blocks),
      static_cast<unsigned long long>(found.wrong_words),
      static_cast<unsigned long long>(found.end.captured_bytes),
      static_cast<unsigned long long>(found.end.moved_count));
  must(driver.destroy_stream(a));
  must(driver.destroy_stream(b));
  return alike && found.wrong_words == 0 && found.end.captured_bytes == 0 ? 0 : 1;
}
