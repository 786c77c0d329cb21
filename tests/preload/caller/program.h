// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Random programs of allocations, copies, streams and captures, on two devices, by two threads and
// with both forms of each call. The driver's results and the contents of memory go into a digest,
// which must be the same with the library and without. A program orders its work as CUDA requires:
// a block is used by one stream at a time, and others wait for an event.
#pragma once

#include <concepts>

#include "driver.h"
#include "words.h"
#include "workers.h"

namespace caller {

constexpr std::size_t device_count = 2;
constexpr std::size_t thread_count = 2;
constexpr std::size_t own_streams = 3;
constexpr std::size_t live_max = 12;

/// What a program runs on; both forms of the calls, and each device's primary context.
struct program_base {
  const driver* legacy = nullptr;
  const driver* per_thread = nullptr;
  std::array<context_id, device_count> contexts{};
  bool is_alone = true;  // else others run beside it, and it leaves alone what is theirs, too
  bool may_reset = true;
  const char* (*find_broken)() = nullptr;  // of the library's invariants, where it shows them
};

/// Where work is given: the default stream, one of the device's own, or that of a thread.
struct random_stream {
  enum class kind_of { legacy, own, of_thread } kind = kind_of::legacy;
  std::size_t index = 0;  // of the stream, or the thread
  [[nodiscard]] bool operator==(const random_stream&) const = default;
};

struct random_block {
  device_pointer at = 0;
  std::size_t size = 0;
  std::size_t device = 0;
  random_stream stream;  // the stream of its last work
  unsigned char value = 0;
  bool is_written = false;
};

/// Draws each of its choices; the same draws make the same program.
class random_program {
 public:
  using source = std::function<std::uint64_t()>;

  random_program(const program_base& base, source draw) : base_(base), draw_(std::move(draw)) {
    for (std::size_t i = 0; i < device_count; ++i) on_thread(0, i, [&] { open(i); });
    give_access();
  }

  /// The driver's results and the contents of memory, as one number.
  std::uint64_t run() {
    const std::size_t step_count = 5 + pick(60);
    for (std::size_t i = 0; i < step_count; ++i) {
      step();
      check_library();
    }
    while (!blocks_.empty()) {
      drop(pick(blocks_.size()));
      check_library();
    }
    for (std::size_t i = 0; i < device_count; ++i) on_thread(0, i, [&] { close(i); });
    return digest_;
  }

 private:
  struct device_state {
    std::array<stream_id, own_streams> streams{};
    event_id event = nullptr;
  };
  // A stream as one of the forms names it.
  struct named_stream {
    const driver& cu;
    stream_id stream = nullptr;
  };

  void check_library() const {
    const char* const broken = base_.find_broken == nullptr ? nullptr : base_.find_broken();
    if (broken != nullptr) expect(false, broken);
  }

  std::size_t pick(std::size_t count) { return draw_() % count; }

  template <std::integral Value>
  void note(Value value) {
    digest_ = (digest_ ^ static_cast<std::uint64_t>(value)) * 0x100'0000'01B3u;
  }

  template <class What>
  void on_thread(std::size_t thread, std::size_t device, What&& what) {
    workers_[thread].run([&] {
      must(base_.legacy->set_current(base_.contexts[device]) == code::success, "a context");
      what();
    });
  }
  // Work on a stream: by its own thread where it is a thread's, else by any.
  template <class What>
  void on_stream(std::size_t device, random_stream stream, What&& what) {
    const bool is_own = stream.kind == random_stream::kind_of::of_thread;
    on_thread(is_own ? stream.index : pick(thread_count), device, what);
  }

  const driver& any_form() { return pick(2) == 0 ? *base_.legacy : *base_.per_thread; }

  // Each stream has a name in both forms; the default ones have two.
  named_stream name_of(std::size_t device, random_stream stream) {
    using kind_of = random_stream::kind_of;
    if (stream.kind == kind_of::own) {
      return {any_form(), devices_[device].streams[stream.index]};
    }
    const bool is_legacy = stream.kind == kind_of::legacy;
    if (pick(2) == 0) return {is_legacy ? *base_.legacy : *base_.per_thread, nullptr};
    const std::uintptr_t number = is_legacy ? legacy_stream : per_thread_stream;
    return {any_form(), reinterpret_cast<stream_id>(number)};
  }

  // A thread's stream is one of the first device here.
  random_stream any_stream(std::size_t device) {
    using kind_of = random_stream::kind_of;
    const std::size_t which = pick(device == 0 ? own_streams + 2 : own_streams + 1);
    if (which < own_streams) return {kind_of::own, which};
    return which == own_streams ? random_stream{} : random_stream{kind_of::of_thread, pick(2)};
  }

  void open(std::size_t device) {
    device_state& state = devices_[device];
    for (stream_id& each : state.streams) {
      const result_code made = any_form().create_stream(&each, non_blocking_stream);
      must(made == code::success, "a stream");
    }
    must(any_form().create_event(&state.event, event_without_timing) == code::success, "an event");
  }

  // The first device may use the other's memory: in the stub driver all work is the first one's.
  void give_access() {
    on_thread(0, 0, [&] { note(any_form().enable_peer(base_.contexts[1], 0)); });
  }

  void close(std::size_t device) {
    for (const stream_id each : devices_[device].streams) note(any_form().destroy_stream(each));
    note(any_form().destroy_event(devices_[device].event));
    note(any_form().synchronize());
  }

  void step() {
    const std::size_t what = pick(18);
    if (what < 6) return allocate();
    if (what < 8) return write();
    if (what < 10) return copy();
    if (what < 12) return read();
    if (what < 14) return ask();
    if (what == 14) return base_.is_alone ? capture() : write();
    if (what == 15) return base_.is_alone ? rarely() : ask();
    if (!blocks_.empty()) drop(pick(blocks_.size()));
  }

  void rarely() {
    const std::size_t what = pick(16);
    if (what == 0 && base_.may_reset) return reset(pick(device_count));
    return what == 1 || what == 2 ? share() : ask();
  }

  std::size_t size() {
    static constexpr std::array limits{600u, 70'000u, 3'000'000u, 9'000'000u};
    return 1 + pick(limits[pick(limits.size())]);
  }

  void allocate() {
    if (blocks_.size() == live_max) return drop(pick(blocks_.size()));
    random_block made;
    made.size = size();
    made.device = pick(device_count);
    made.stream = any_stream(made.device);
    const std::size_t how = pick(5);
    on_stream(made.device, made.stream, [&] {
      if (how < 2) return allocate_in_order(made, how == 1);
      allocate_plain(made, how);
    });
  }

  void keep(const random_block& made, result_code answer) {
    note(answer);
    note(made.at % 256);
    if (answer == code::success) blocks_.push_back(made);
  }

  void allocate_in_order(random_block& made, bool by_pool) {
    const named_stream on = name_of(made.device, made.stream);
    if (!by_pool) return keep(made, on.cu.allocate_async(&made.at, made.size, on.stream));
    pool_id pool = nullptr;
    note(on.cu.default_pool(&pool, static_cast<device_id>(made.device)));
    keep(made, on.cu.allocate_from_pool(&made.at, made.size, pool, on.stream));
  }

  void allocate_plain(random_block& made, std::size_t how) {
    const driver& cu = any_form();
    if (how == 2) return keep(made, cu.allocate(&made.at, made.size));
    if (how == 3) {
      std::size_t pitch = 0;
      const std::size_t width = 1 + pick(3000);
      const std::size_t height = 1 + pick(200);
      const result_code answer = cu.allocate_pitch(&made.at, &pitch, width, height, 4);
      made.size = pitch * height;
      note(pitch);
      return keep(made, answer);
    }
    // Too much, or nothing: the driver's own results.
    device_pointer none = 0;
    note(cu.allocate(&none, pick(2) == 0 ? 0 : std::size_t{1} << 45));
  }

  // Orders `stream` behind the last work on the block.
  void take(random_block& it, random_stream stream) {
    if (it.stream == stream) return;
    const event_id event = devices_[it.device].event;
    on_stream(it.device, it.stream, [&] {
      const named_stream last = name_of(it.device, it.stream);
      note(last.cu.record_event(event, last.stream));
    });
    on_stream(it.device, stream, [&] {
      const named_stream next = name_of(it.device, stream);
      note(next.cu.wait_event(next.stream, event, 0));
    });
    it.stream = stream;
  }

  void write() {
    if (blocks_.empty()) return;
    random_block& it = blocks_[pick(blocks_.size())];
    take(it, any_stream(it.device));
    it.value = static_cast<unsigned char>(draw_());
    it.is_written = true;
    on_stream(it.device, it.stream, [&] {
      const named_stream on = name_of(it.device, it.stream);
      note(on.cu.fill(it.at, it.value, it.size, on.stream));
    });
  }

  void copy() {
    if (blocks_.size() < 2) return;
    const std::size_t from = pick(blocks_.size());
    const std::size_t to = (from + 1 + pick(blocks_.size() - 1)) % blocks_.size();
    random_block& source = blocks_[from];
    random_block& target = blocks_[to];
    if (!source.is_written || source.size < target.size) return;
    if (source.device != target.device) return;
    const random_stream stream = any_stream(source.device);
    take(source, stream);
    take(target, stream);
    const bool waits = stream.kind != random_stream::kind_of::own && pick(2) == 0;
    on_stream(source.device, stream, [&] {
      if (waits) {
        const bool is_legacy = stream.kind == random_stream::kind_of::legacy;
        const driver& cu = is_legacy ? *base_.legacy : *base_.per_thread;
        return note(cu.copy(target.at, source.at, target.size));
      }
      const named_stream on = name_of(source.device, stream);
      note(on.cu.copy_async(target.at, source.at, target.size, on.stream));
    });
    target.value = source.value;
    target.is_written = true;
  }

  void read() {
    if (blocks_.empty()) return;
    random_block& it = blocks_[pick(blocks_.size())];
    if (!it.is_written) return;
    std::array<unsigned char, 64> seen{};
    const std::size_t count = std::min(seen.size(), it.size);
    const std::size_t from = pick(it.size - count + 1);
    on_stream(it.device, it.stream, [&] {
      const named_stream on = name_of(it.device, it.stream);
      note(on.cu.copy_out(seen.data(), it.at + from, count, on.stream));
    });
    for (std::size_t i = 0; i < count; ++i) {
      note(seen[i]);
      expect(seen[i] == it.value, "what was written");
    }
  }

  void ask() {
    if (blocks_.empty()) return;
    const random_block& it = blocks_[pick(blocks_.size())];
    const device_pointer at = it.at + pick(it.size);
    on_thread(pick(thread_count), pick(device_count), [&] { ask_about(it, at); });
  }

  void ask_about(const random_block& it, device_pointer at) {
    const driver& cu = any_form();
    device_pointer base = 0;
    std::size_t bytes = 0;
    note(cu.range(&base, &bytes, at));
    note(it.at - base);
    note(bytes);
    ask_attributes(cu, it, at);
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    note(cu.info(&free_bytes, &total));
    expect(free_bytes <= total, "no more is free than there is");
    // An address inside a block is not a block; nor is an unknown one.
    if (it.size > 1) note(cu.free(it.at + 1));
    note(cu.free(0x1000));
  }

  // What is an address or a handle is looked at as far as it is the same each time.
  void ask_attributes(const driver& cu, const random_block& it, device_pointer at) {
    constexpr int memory_type = 2;
    constexpr int device_address = 3;
    constexpr int is_managed = 8;
    static constexpr std::array plain{memory_type, is_managed, pointer_attribute::range_size,
                                      pointer_attribute::legacy_ipc_capable,
                                      pointer_attribute::allowed_handle_types};
    for (const int which : plain) {
      std::uint64_t value = 0;
      note(cu.attribute(&value, which, at));
      note(value);
    }
    static constexpr std::array addresses{pointer_attribute::range_start, device_address};
    for (const int which : addresses) {
      std::uint64_t value = 0;
      note(cu.attribute(&value, which, at));
      note(value - it.at);
    }
    std::array<int, 3> wanted{pointer_attribute::context, pointer_attribute::memory_pool,
                              pointer_attribute::buffer_id};
    std::array<std::uint64_t, 3> values{};
    std::array<void*, 3> into{&values[0], &values[1], &values[2]};
    note(cu.attributes(3, wanted.data(), into.data(), at));
    note(values[0] == reinterpret_cast<std::uintptr_t>(base_.contexts[it.device]) ? 1 : 0);
    pool_id pool = nullptr;
    note(cu.default_pool(&pool, static_cast<device_id>(it.device)));
    note(values[1] == reinterpret_cast<std::uintptr_t>(pool) ? 1 : 0);
    note(values[1] == 0 ? 1 : 0);
    note(values[2] == 0 ? 1 : 0);
  }

  // Two handles of one block are the same.
  void share() {
    if (blocks_.empty()) return;
    const random_block& it = blocks_[pick(blocks_.size())];
    for (std::size_t i = 0; i < device_count; ++i) {
      on_thread(0, i, [&] { note(any_form().synchronize()); });
    }
    on_thread(pick(thread_count), it.device, [&] {
      ipc_handle one{};
      ipc_handle other{};
      note(any_form().ipc(&one, it.at));
      note(any_form().ipc(&other, it.at + pick(it.size)));
      note(std::string_view(one.bytes, 64) == std::string_view(other.bytes, 64) ? 1 : 0);
    });
  }

  // All of a device's blocks, streams and events are gone; the program makes new ones.
  void reset(std::size_t device) {
    on_thread(pick(thread_count), device, [&] {
      note(any_form().reset(static_cast<device_id>(device)));
      for (const random_block& each : blocks_)
        if (each.device == device) note(any_form().free(each.at));
      open(device);
    });
    give_access();
    std::erase_if(blocks_, [&](const random_block& each) { return each.device == device; });
  }

  // Work on one stream is captured, while others allocate and free in their order.
  void capture() {
    if (blocks_.empty()) return;
    random_block& it = blocks_[pick(blocks_.size())];
    take(it, {random_stream::kind_of::own, pick(own_streams)});
    const std::size_t thread = pick(thread_count);
    for (std::size_t i = 0; i < device_count; ++i) {
      on_thread(thread, i, [&] { note(any_form().synchronize()); });
    }
    on_thread(thread, it.device, [&] { capture_on(it); });
  }

  void capture_on(random_block& it) {
    const stream_id stream = devices_[it.device].streams[it.stream.index];
    note(any_form().begin_capture(stream, relaxed));
    note(any_form().fill(it.at, 1, it.size, stream));
    const std::size_t other = pick(own_streams);
    if (other != it.stream.index) {
      const stream_id beside_it = devices_[it.device].streams[other];
      device_pointer beside = 0;
      note(any_form().allocate_async(&beside, 5000, beside_it));
      note(any_form().free_async(beside, beside_it));
    }
    graph_id graph = nullptr;
    note(any_form().end_capture(stream, &graph));
    note(graph == nullptr ? 0 : 1);
    note(any_form().destroy_graph(graph));
  }

  void drop(std::size_t index) {
    const random_block gone = blocks_[index];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
    if (pick(2) == 0) {
      // By any thread, and where another device may be current.
      on_thread(pick(thread_count), pick(device_count), [&] { note(any_form().free(gone.at)); });
      return;
    }
    on_stream(gone.device, gone.stream, [&] {
      const named_stream on = name_of(gone.device, gone.stream);
      note(on.cu.free_async(gone.at, on.stream));
    });
  }

  program_base base_;
  source draw_;
  std::array<device_state, device_count> devices_;
  std::vector<random_block> blocks_;
  std::uint64_t digest_ = 0xCBF2'9CE4'8422'2325u;
  std::array<worker, thread_count> workers_;
};

}  // namespace caller
