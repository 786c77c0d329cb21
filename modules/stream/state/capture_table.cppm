// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:capture_table - the captured graphs that keep memory of a pool. Not exported.
//
// I1  A capture's number is in the table once.
// I2  A graph has an owner, which is a record that no stream takes from, and one record for each
//     stream that allocated or freed in its capture. The owner is the first of its records.
// I3  A record belongs to at most one graph.
//
// The segments have the free memory of those records; the blocks of a graph are locked
// (:locked_blocks).
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(graphs).
export module vmm.stream:capture_table;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import :geometry;
import :stream_table;

namespace vmm {

struct captured_graph {
  std::uint64_t id = 0;
  std::uint32_t owner = stream_table::no_stream;
  std::vector<std::uint32_t> records{};  // the owner, and one for each stream
};

class capture_table {
 public:
  /// Null when the number is not known.
  [[nodiscard]] const captured_graph* find(std::uint64_t id) const noexcept {
    const auto at = std::find_if(graphs_.begin(), graphs_.end(),
                                 [id](const captured_graph& each) { return each.id == id; });
    return at == graphs_.end() ? nullptr : &*at;
  }
  [[nodiscard]] captured_graph* find(std::uint64_t id) noexcept {
    return const_cast<captured_graph*>(std::as_const(*this).find(id));
  }
  /// Room for one more graph, and for four records of it. Errors: out_of_host_memory.
  [[nodiscard]] result<captured_graph> provide(std::uint64_t id) noexcept {
    check(find(id) == nullptr, "a capture is entered twice");
    if (status room = reserve_more(graphs_, 1); !room) return no_record_memory;
    captured_graph made{id};
    if (status room = reserve_more(made.records, 4); !room) return no_record_memory;
    return result<captured_graph>{std::move(made)};
  }
  /// After provide(), whose graph it is.
  captured_graph& add(captured_graph&& made, std::uint32_t owner) noexcept {
    check(made.records.empty() && graphs_.size() < graphs_.capacity(),
          "a graph is added without reserved room");
    check(owner != stream_table::no_stream, "a graph is added without an owner");
    made.owner = owner;
    made.records.push_back(owner);
    graphs_.push_back(std::move(made));
    check(find(graphs_.back().id) == &graphs_.back(), "I1: a capture is in the table twice");
    return graphs_.back();
  }
  void remove(const captured_graph& gone) noexcept {
    const std::ptrdiff_t at = &gone - graphs_.data();
    check(!gone.records.empty() && gone.records.front() == gone.owner,
          "I2: a graph does not begin with its owner");
    check(at >= 0 && at < std::ssize(graphs_), "a missing graph is removed");
    const std::uint64_t id = gone.id;
    graphs_.erase(graphs_.begin() + at);
    check(find(id) == nullptr, "a removed graph is still in the table");
  }
  void clear() noexcept { graphs_.clear(); }

  /// Null if I1 to I3 hold, else the broken part. O(graphs).
  [[nodiscard]] const char* broken_invariant(const stream_table& streams) const noexcept {
    for (const captured_graph& graph : graphs_) {
      if (find(graph.id) != &graph) return "I1: a capture is in the table twice";
      if (graph.records.empty() || graph.records.front() != graph.owner)
        return "I2: a graph does not begin with its owner";
      for (const std::uint32_t record : graph.records) {
        if (!streams.is_capture(record) || streams.owner_of(record) != graph.owner)
          return "I3: a graph's record is not its own";
      }
    }
    return nullptr;
  }

 private:
  std::vector<captured_graph> graphs_;
};

[[nodiscard]] inline status check_stream(driver_interface& driver, stream_handle stream) noexcept {
  return driver.feature_set().is_per_thread(stream) ? status{per_thread_stream} : status{};
}

inline constexpr error being_captured =
    refuse(errc::in_use, "a stream that uses the memory is being captured into a graph");
inline constexpr error stream_captured = refuse(
    errc::not_permitted, "a stream whose work must be waited for is being captured into a graph");
// Left alone as one that is captured.
inline constexpr error stream_lost =
    refuse(errc::invalid_argument,
           "the driver refuses a stream whose work must be waited for, and has no event for all "
           "work: forget streams before they are destroyed");

/// Whether a stream can neither be named nor covered: its memory is left alone.
[[nodiscard]] inline bool is_lost(const error& failure) noexcept {
  return failure.code == stream_lost.code && std::string_view{failure.detail} == stream_lost.detail;
}

/// Whether an event of all work is deferred without another error: a stream is being captured, or
/// no record is left for frees meanwhile.
[[nodiscard]] inline bool is_deferred(const error& failure) noexcept {
  const bool is_of_all = failure.where == call::none || failure.where == call::record_all ||
                         failure.where == call::synchronize_all;
  const bool by_capture = failure.code == errc::not_permitted && is_of_all;
  const bool by_records = failure.code == errc::in_use && failure.where == call::none;
  return by_capture || by_records || is_lost(failure);
}

/// Whether the pool itself refused, since a stream is being captured, or is lost.
[[nodiscard]] inline bool is_capture_refusal(const error& failure) noexcept {
  return (failure.code == errc::not_permitted && failure.where == call::none) || is_lost(failure);
}

}  // namespace vmm
