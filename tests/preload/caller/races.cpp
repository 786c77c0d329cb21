// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A capture that another thread begins in the middle of a call. The stub driver reports when the
// call reaches the driver: there the other thread begins, or is kept from it until the call is
// over.

#include "driver.h"
#include "words.h"

#include <condition_variable>

namespace caller {
namespace {

// A thread that captures a stream of its own when a call of the first thread is in the driver.
class capturer {
 public:
  capturer(const driver& cu, context_id context, int mode)
      : cu_(cu), stream_(make_stream(cu)), first_(std::this_thread::get_id()) {
    thread_ = std::thread([this, context, mode] { run(context, mode); });
  }
  ~capturer() { thread_.join(); }
  capturer(const capturer&) = delete;
  capturer& operator=(const capturer&) = delete;

  // What the driver calls back.
  static void met(void* self) { static_cast<capturer*>(self)->meet(); }

  // After the call. Whether the capture came to a graph.
  bool end() {
    is_met = !enter(phase::called, phase::ready);
    wait_while(phase::called);
    (void)enter(phase::to_end, phase::captures);
    wait_while(phase::to_end);
    return is_whole_.load();
  }

  bool is_met = false;

 private:
  enum class phase { ready, called, captures, to_end, ended };

  // The capture begins here, or is not let in: then it is not waited for any longer.
  void meet() {
    if (std::this_thread::get_id() != first_ || !enter(phase::called, phase::ready)) return;
    std::unique_lock held(guard_);
    changed_.wait_for(held, std::chrono::milliseconds(5), [&] { return now_ != phase::called; });
  }
  // False in another phase than the one before.
  bool enter(phase next, phase before) {
    const std::lock_guard held(guard_);
    if (now_ != before) return false;
    now_ = next;
    changed_.notify_all();
    return true;
  }
  void wait_while(phase in) {
    std::unique_lock held(guard_);
    changed_.wait(held, [&] { return now_ != in; });
  }
  void run(context_id context, int mode) {
    must(cu_.set_current(context) == code::success, "the context");
    wait_while(phase::ready);
    must(cu_.begin_capture(stream_, mode) == code::success, "a capture");
    (void)enter(phase::captures, phase::called);
    wait_while(phase::captures);
    graph_id graph = nullptr;
    is_whole_ = cu_.end_capture(stream_, &graph) == code::success && graph != nullptr;
    if (graph != nullptr) must(cu_.destroy_graph(graph) == code::success, "the graph");
    (void)enter(phase::ended, phase::to_end);
  }

  const driver& cu_;
  stream_id stream_ = nullptr;
  std::thread::id first_;
  std::mutex guard_;
  std::condition_variable changed_;
  phase now_ = phase::ready;
  std::atomic<bool> is_whole_ = false;
  std::thread thread_;
};

struct setting {
  const driver& cu;
  stream_id stream = nullptr;
  device_pointer blocks[2] = {};
};

struct step {
  const char* name;
  int mode;
  void (*run)(setting& s);
};

// Each makes calls of its own that reach the driver's events, waits and mappings.
constexpr std::array steps{
    step{"allocate", any_thread,
         [](setting& s) {
           const device_pointer at = make_ordered(s.cu, 3 * mebibyte, s.stream);
           must(s.cu.free_async(at, s.stream) == code::success, "a free");
         }},
    step{"short", any_thread,
         [](setting& s) {
           device_pointer at = 0;
           must(s.cu.allocate_async(&at, std::size_t{1} << 45, s.stream) != code::success, "none");
         }},
    step{"short of plain memory", any_thread,
         [](setting& s) {
           device_pointer at = 0;
           must(s.cu.allocate(&at, std::size_t{1} << 45) != code::success, "none");
         }},
    step{"free", any_thread,
         [](setting& s) { must(s.cu.free(s.blocks[0]) == code::success, "a free"); }},
    step{"give back", any_thread,
         [](setting& s) {
           const memory_properties like = device_memory();
           physical_id handle = 0;
           must(s.cu.create(&handle, std::size_t{1} << 45, &like, 0) != code::success, "none");
         }},
    step{"stream", any_thread,
         [](setting& s) { must(s.cu.destroy_stream(s.stream) == code::success, "a stream"); }},
    step{"copy", relaxed,
         [](setting& s) {
           const result_code copied = s.cu.copy(s.blocks[1], s.blocks[0], 4 * mebibyte);
           must(copied == code::success, "a copy");
         }},
};

// Freed memory waits for running work, by marks that were not queried.
setting prepare(const driver& cu) {
  setting s{cu};
  s.stream = make_stream(cu);
  for (device_pointer& each : s.blocks) each = make(cu, 4 * mebibyte);
  const device_pointer freed = make(cu, 5 * mebibyte);
  const device_pointer ordered = make_ordered(cu, 7 * mebibyte, s.stream);
  cu.manual(1);
  must(cu.fill(ordered, 1, 4 * mebibyte, s.stream) == code::success, "a fill");
  must(cu.free_async(ordered, s.stream) == code::success, "a free");
  must(cu.free_async(freed, s.stream) == code::success, "a free");
  return s;
}

}  // namespace

// Every call of every step, met once; an argument has the driver give no marks of all work.
void capture_races(const arguments& all) {
  const driver cu = load();
  const context_id context = start(cu);
  constexpr int invalid_value = 1;
  if (!all.empty()) cu.fail("cuCtxRecordEvent", invalid_value, 1, true);
  for (const step& each : steps) {
    int met = 0;
    for (const char* call : {"cuEventQuery", "cuEventRecord", "cuEventSynchronize",
                             "cuCtxSynchronize", "cuCtxRecordEvent", "cuStreamIsCapturing",
                             "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease"}) {
      setting s = prepare(cu);
      capturer other(cu, context, each.mode);
      cu.on_call(call, &capturer::met, &other);
      each.run(s);
      cu.on_call("", nullptr, nullptr);
      const bool is_whole = other.end();
      met += other.is_met ? 1 : 0;
      cu.finish();
      cu.manual(0);
      if (!is_whole) std::printf("%s spoils a capture by %s\n", each.name, call);
      (void)cu.synchronize();
    }
    if (met != 0) std::printf("%s\n", each.name);
  }
  expect(cu.misuses() == 0, "no access to memory that is not there, and no race");
}

}  // namespace caller
