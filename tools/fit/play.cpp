// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - requests played to a model, and to the real pool.
module vmm.fit;

import vmm.backend;
import vmm.fake;
import vmm.recording;
import vmm.std;
import vmm.stream;

namespace vmm::tools {

namespace {

// Memory of one call of a library: freed before the next request. Where it is refused, a
// convolution of PyTorch takes another algorithm.
[[nodiscard]] bool is_workspace(const request_stream& asked, const request& of) {
  const auto index = static_cast<std::size_t>(&of - asked.requests.data());
  if (index + 1 >= asked.requests.size()) return false;
  const request& next = asked.requests[index + 1];
  return next.kind == request_kind::free && next.slot == of.slot;
}

}  // namespace

std::optional<std::uint64_t> play(const request_stream& asked, caching_model& model,
                                  const play_options& options) {
  std::vector<block_number> blocks(asked.slot_count);
  for (const start_layout& each : options.start) model.adopt(each, blocks);
  std::vector<std::uint64_t> pending(asked.is_any_pending ? asked.slot_count : 0);
  auto before = static_cast<std::int64_t>(asked.live_before_count);
  std::uint64_t index = 0;
  for (const request& each : asked.requests) {
    switch (each.kind) {
      case request_kind::allocate:
        if (before-- > 0 && blocks[each.slot] != block_number::none) break;  // adopted
        blocks[each.slot] = model.allocate({each.size_bytes, each.stream, each.pool});
        if (blocks[each.slot] != block_number::none) break;
        if (!options.has_spare_workspaces || !is_workspace(asked, each)) return std::nullopt;
        break;
      case request_kind::free:
        if (blocks[each.slot] != block_number::none) model.free(blocks[each.slot]);
        break;
      case request_kind::free_pending:
        pending[each.slot] = model.free_pending(blocks[each.slot]);
        break;
      case request_kind::free_completed: model.complete(pending[each.slot]); break;
      case request_kind::empty_cache: model.empty_cache(); break;
      case request_kind::shortage:
        if (options.has_shortages) model.refuse_next();
        break;
      case request_kind::iteration: break;
    }
    memory_curve* const curve = options.curve;
    if (curve != nullptr && curve->is_due(index++, asked.requests.size()))
      curve->see(model.held_bytes(), model.peak_held_bytes());
  }
  return model.peak_held_bytes();
}

namespace {

/// Counts the requests that were served although the driver refused memory.
class refusal_counter {
 public:
  refusal_counter(const fake_driver& driver, const stream_pool& pool)
      : driver_(driver), pool_(pool) {}
  void see_request() {
    const std::uint64_t call_count = driver_.calls(call::create);
    if (call_count == call_count_) return;
    const std::uint64_t created_count = pool_.statistics().created_count;
    if (call_count - call_count_ > created_count - created_count_) ++count_;
    call_count_ = call_count;
    created_count_ = created_count;
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

 private:
  const fake_driver& driver_;
  const stream_pool& pool_;
  std::uint64_t call_count_ = 0;
  std::uint64_t created_count_ = 0;
  std::uint64_t count_ = 0;
};

struct pool_player {
  stream_pool& pool;
  std::span<const stream_handle> streams;
  refusal_counter refusals;
  bool has_spare_workspaces = false;
};

[[nodiscard]] bool play_into(const request_stream& asked, pool_player& to, memory_curve* curve) {
  stream_pool& pool = to.pool;
  std::vector<address> blocks(asked.slot_count);
  std::uint64_t index = 0;
  for (const request& each : asked.requests) {
    const stream_handle stream = to.streams[each.stream];
    if (each.kind == request_kind::allocate) {
      const std::uint64_t size_bytes = std::max<std::uint64_t>(each.size_bytes, 1);
      const result<address> got = pool.allocate(size_bytes, stream);
      if (!got && !(to.has_spare_workspaces && is_workspace(asked, each))) return false;
      to.refusals.see_request();
      blocks[each.slot] = got ? *got : address{};
    } else if (each.kind == request_kind::free || each.kind == request_kind::free_completed) {
      const bool is_there = blocks[each.slot].value != 0;
      if (is_there && !pool.free(blocks[each.slot], stream)) return false;
    }
    if (curve != nullptr && curve->is_due(index++, asked.requests.size())) {
      const pool_statistics now = pool.statistics();
      curve->see(now.mapped_bytes, now.peak_mapped_bytes);
    }
  }
  return true;
}

}  // namespace

std::uint64_t roomy_bytes(const request_stream& asked) noexcept {
  constexpr std::uint64_t least_bytes = std::uint64_t{143771} << 20;
  return std::max(least_bytes, 2 * asked.peak_live_bytes);
}

std::optional<pool_figures> play_pool(const request_stream& asked, const pool_device& device,
                                      memory_curve* curve) {
  fake::profile emulated = fake::profile::cuda();
  constexpr std::uint64_t granule_bytes = std::uint64_t{2} << 20;
  emulated.device_memory_bytes = device.size_bytes / granule_bytes * granule_bytes;
  fake_driver driver(emulated);
  std::uint16_t last = 0;
  for (const request& each : asked.requests) last = std::max(last, each.stream);
  std::vector<stream_handle> streams{stream_handle::default_stream};
  while (streams.size() <= last) {
    const result<stream_handle> made = driver.create_stream();
    if (!made) return std::nullopt;
    streams.push_back(*made);
  }
  pool_options options;
  options.leak_hook.hook = nullptr;  // a recording may end with live blocks
  // As vmm_allocator_create has it for frameworks (adapters/c/src/allocator.cpp): the pool behind
  // PyTorch. test_allocator.py of the Python package compares the two.
  if (device.form != recording_form::rmm_log && device.form != recording_form::history) {
    options.policy.handle_bytes_max = std::uint64_t{40} << 20;
    options.policy.headroom = 1.01;
    options.policy.tuning.move_budget_ns = 500;
  }
  stream_pool pool(driver, options);
  pool_player to{pool, streams, {driver, pool}, device.has_spare_workspaces};
  if (!pool.set_up() || !play_into(asked, to, curve)) return std::nullopt;
  return pool_figures{pool.statistics().peak_mapped_bytes, to.refusals.count()};
}

}  // namespace vmm::tools
