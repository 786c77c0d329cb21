// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Random programs of allocations, copies, streams and captures. What the driver answers and what
// memory holds goes into a digest, which must be the same with the library and without. A program
// orders its work as CUDA asks it to: a block is used by one stream at a time, and others wait for
// an event.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "driver.h"
#include "words.h"

namespace caller {

constexpr std::size_t stream_count = 4;  // the first is the default one
constexpr std::size_t live_max = 12;

struct random_block {
  device_pointer at = 0;
  std::size_t size = 0;
  std::size_t stream = 0;  // where its last work was given
  unsigned char value = 0;
  bool is_written = false;
};

/// Draws each of its choices; the same draws make the same program.
class random_program {
 public:
  using source = std::function<std::uint64_t()>;

  random_program(const driver& cu, source draw) : cu_(cu), draw_(std::move(draw)) {
    for (std::size_t i = 1; i < stream_count; ++i) {
      must(cu_.create_stream(&streams_[i], non_blocking_stream) == code::success, "a stream");
    }
    must(cu_.create_event(&event_, event_without_timing) == code::success, "an event");
  }

  /// What the driver answered and what memory held, as one number.
  std::uint64_t run() {
    const std::size_t step_count = 5 + pick(60);
    for (std::size_t i = 0; i < step_count; ++i) step();
    while (!blocks_.empty()) drop(pick(blocks_.size()));
    for (std::size_t i = 1; i < stream_count; ++i) note(cu_.destroy_stream(streams_[i]));
    note(cu_.destroy_event(event_));
    note(cu_.synchronize());
    return digest_;
  }

 private:
  std::size_t pick(std::size_t count) { return draw_() % count; }

  template <std::integral Value>
  void note(Value value) {
    digest_ = (digest_ ^ static_cast<std::uint64_t>(value)) * 0x100'0000'01B3u;
  }

  void step() {
    switch (pick(9)) {
      case 0:
      case 1:
      case 2: allocate(); break;
      case 3: write(); break;
      case 4: copy(); break;
      case 5: read(); break;
      case 6: ask(); break;
      case 7: capture(); break;
      default:
        if (!blocks_.empty()) drop(pick(blocks_.size()));
    }
  }

  std::size_t size() {
    static constexpr std::array limits{600u, 70'000u, 3'000'000u, 9'000'000u};
    return 1 + pick(limits[pick(limits.size())]);
  }

  void allocate() {
    if (blocks_.size() == live_max) return drop(pick(blocks_.size()));
    random_block made;
    made.size = size();
    made.stream = pick(stream_count);
    result_code code = 0;
    switch (pick(4)) {
      case 0: code = cu_.allocate_async(&made.at, made.size, streams_[made.stream]); break;
      case 1: {
        std::size_t pitch = 0;
        const std::size_t width = 1 + pick(3000);
        const std::size_t height = 1 + pick(200);
        code = cu_.allocate_pitch(&made.at, &pitch, width, height, 4);
        made.size = pitch * height;
        note(pitch);
        break;
      }
      case 2: code = cu_.allocate(&made.at, made.size); break;
      default: {
        // Too much, or nothing: the driver's own answers.
        device_pointer none = 0;
        note(cu_.allocate(&none, pick(2) == 0 ? 0 : std::size_t{1} << 45));
        return;
      }
    }
    note(code);
    note(made.at % 256);
    if (code == code::success) blocks_.push_back(made);
  }

  // Orders `stream` behind the last work on the block.
  void take(random_block& it, std::size_t stream) {
    if (it.stream == stream) return;
    note(cu_.record_event(event_, streams_[it.stream]));
    note(cu_.wait_event(streams_[stream], event_, 0));
    it.stream = stream;
  }

  void write() {
    if (blocks_.empty()) return;
    random_block& it = blocks_[pick(blocks_.size())];
    take(it, pick(stream_count));
    it.value = static_cast<unsigned char>(draw_());
    it.is_written = true;
    note(cu_.fill(it.at, it.value, it.size, streams_[it.stream]));
  }

  void copy() {
    if (blocks_.size() < 2) return;
    const std::size_t from = pick(blocks_.size());
    const std::size_t to = (from + 1 + pick(blocks_.size() - 1)) % blocks_.size();
    random_block& source = blocks_[from];
    random_block& target = blocks_[to];
    if (!source.is_written || source.size < target.size) return;
    const std::size_t stream = pick(stream_count);
    take(source, stream);
    take(target, stream);
    note(pick(2) == 0 && stream == 0
             ? cu_.copy(target.at, source.at, target.size)
             : cu_.copy_async(target.at, source.at, target.size, streams_[stream]));
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
    note(cu_.copy_out(seen.data(), it.at + from, count, streams_[it.stream]));
    for (std::size_t i = 0; i < count; ++i) {
      note(seen[i]);
      expect(seen[i] == it.value, "what was written");
    }
  }

  void ask() {
    if (blocks_.empty()) return;
    const random_block& it = blocks_[pick(blocks_.size())];
    const device_pointer at = it.at + pick(it.size);
    device_pointer base = 0;
    std::size_t bytes = 0;
    note(cu_.range(&base, &bytes, at));
    note(it.at - base);
    note(bytes);
    std::uint64_t value = 0;
    note(cu_.attribute(&value, pointer_attribute::range_size, at));
    note(value);
    value = 0;
    note(cu_.attribute(&value, pointer_attribute::context, at));
    note(value == 0 ? 0 : 1);
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    note(cu_.info(&free_bytes, &total));
    expect(free_bytes <= total, "no more is free than there is");
    // An address inside a block is no block; nor is one of nobody.
    if (it.size > 1) note(cu_.free(it.at + 1));
    note(cu_.free(0x1000));
  }

  // Work on one stream is captured, while others allocate and free in their order.
  void capture() {
    if (blocks_.empty()) return;
    random_block& it = blocks_[pick(blocks_.size())];
    take(it, 1 + pick(stream_count - 1));
    note(cu_.synchronize());
    constexpr int relaxed = 2;
    const stream_id stream = streams_[it.stream];
    note(cu_.begin_capture(stream, relaxed));
    note(cu_.fill(it.at, 1, it.size, stream));
    const std::size_t other = 1 + it.stream % (stream_count - 1);
    if (other != it.stream) {
      device_pointer beside = 0;
      note(cu_.allocate_async(&beside, 5000, streams_[other]));
      note(cu_.free_async(beside, streams_[other]));
    }
    graph_id graph = nullptr;
    note(cu_.end_capture(stream, &graph));
    note(graph == nullptr ? 0 : 1);
    note(cu_.destroy_graph(graph));
  }

  void drop(std::size_t index) {
    const random_block gone = blocks_[index];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
    const result_code code =
        pick(2) == 0 ? cu_.free(gone.at) : cu_.free_async(gone.at, streams_[gone.stream]);
    note(code);
  }

  const driver& cu_;
  source draw_;
  std::array<stream_id, stream_count> streams_{};
  event_id event_ = nullptr;
  std::vector<random_block> blocks_;
  std::uint64_t digest_ = 0xCBF2'9CE4'8422'2325u;
};

}  // namespace caller
