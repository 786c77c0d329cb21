// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The fake driver with a record of every call that the library makes: kind, sizes, places and
// result. The text of a call names nothing that a refactoring may change: addresses are offsets in
// numbered reservations; handles, streams and events are numbered as they are first seen; errors
// are codes without their explanation. It imports what it uses, so it is the last include of a
// file, except others with imports.
#pragma once

#include "runs.hpp"
//
#include "../support/byte_source.hpp"

import vmm.backend;
import vmm.fake;

namespace golden {

class call_recorder {
 public:
  [[nodiscard]] vmm::status before(const vmm::call_record&) noexcept { return {}; }

  void after(const vmm::call_record& record) {
    const bool is_done = record.failure == nullptr;
    // The contract bounds no number of queries of whether a stream is captured.
    if (record.kind == vmm::call::query_capture && is_done && record.results.value == 0u) return;
    if (record.kind == vmm::call::reserve && is_done) {
      const auto base = record.results.at.value;
      reservations_[base] = {record.results.size_bytes, ++reservation_count_};
    }
    std::string text = vmm::name_of(record.kind) + show(record.arguments) + " ->";
    if (is_done) {
      text += " ok" + show(record.results);
    } else {
      text += std::string(" ") + vmm::name_of(record.failure->code);
    }
    if (is_done) forget(record);
    text += "\n";
    hash_.add(text);
    text_ += text;
    ++count_;
  }

  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::string hash() const { return hash_.text(); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  struct reservation {
    std::uint64_t size_bytes = 0;
    std::uint64_t number = 0;
  };
  struct numbering {
    std::map<std::uint64_t, std::uint64_t> known{};
    std::uint64_t last = 0;

    [[nodiscard]] std::uint64_t of(std::uint64_t value) {
      const auto [at, is_new] = known.try_emplace(value, last + 1);
      if (is_new) ++last;
      return at->second;
    }
  };

  [[nodiscard]] std::string show(const vmm::call_facts& facts) {
    std::string out;
    const auto add = [&out](const char* name, const std::string& value) {
      out += std::string(" ") + name + "=" + value;
    };
    if (facts.at) add("at", place(facts.at.value));
    if (facts.source) add("source", place(facts.source.value));
    if (facts.size_bytes != 0) add("size", std::to_string(facts.size_bytes));
    if (facts.limit_bytes != 0) add("limit", std::to_string(facts.limit_bytes));
    if (facts.offset_bytes != 0) add("offset", std::to_string(facts.offset_bytes));
    if (facts.object != 0) add("handle", std::to_string(handles_.of(facts.object)));
    if (facts.stream != 0) add("stream", std::to_string(streams_.of(facts.stream)));
    if (facts.event != 0) add("event", std::to_string(events_.of(facts.event)));
    if (facts.where) {
      add("where", std::to_string(static_cast<int>(facts.where->kind)) + ":" +
                       std::to_string(static_cast<int>(facts.where->ordinal)));
    }
    if (facts.rights) add("rights", std::to_string(static_cast<int>(*facts.rights)));
    if (facts.value) add("value", std::to_string(*facts.value));
    return out;
  }

  /// "2+4194304": 4 MiB behind the base of the second reservation, at most its end.
  [[nodiscard]] std::string place(std::uint64_t at) const {
    auto within = reservations_.upper_bound(at);
    if (within == reservations_.begin()) return "outside";
    --within;
    const std::uint64_t offset_bytes = at - within->first;
    if (offset_bytes > within->second.size_bytes) return "outside";
    return std::to_string(within->second.number) + "+" + std::to_string(offset_bytes);
  }

  // A driver may use the value again for another one.
  void forget(const vmm::call_record& done) {
    const vmm::call_facts& gone = done.arguments;
    if (done.kind == vmm::call::free_reservation) reservations_.erase(gone.at.value);
    if (done.kind == vmm::call::release) handles_.known.erase(gone.object);
    if (done.kind == vmm::call::destroy_stream) streams_.known.erase(gone.stream);
    if (done.kind == vmm::call::destroy_event) events_.known.erase(gone.event);
  }

  std::map<std::uint64_t, reservation> reservations_;
  std::uint64_t reservation_count_ = 0;
  numbering handles_;
  numbering streams_;
  numbering events_;
  text_hash hash_;
  std::string text_;
  std::uint64_t count_ = 0;
};

/// Movable while nothing refers to it.
class recording_driver : public vmm::observed_backend<vmm::fake_driver, call_recorder> {
 public:
  recording_driver(const vmm::fake::profile& plays, std::shared_ptr<call_recorder> recorder)
      : observed_backend(vmm::fake_driver{plays}, std::move(recorder)) {}

  /// What a program does with it is not recorded.
  [[nodiscard]] operator vmm::fake_driver&() { return driver(); }

  void set_manual(bool manual) { driver().set_manual(manual); }
  void fail(const vmm::fake::fault& planned) { driver().fail(planned); }
  void clear_faults() { driver().clear_faults(); }
  [[nodiscard]] std::uint64_t faults_struck() const { return fake().faults_struck(); }
  [[nodiscard]] std::span<const vmm::fake::native_error> possible_errors(vmm::call where) const {
    return fake().possible_errors(where);
  }
  [[nodiscard]] vmm::status launch(vmm::stream_handle stream, const vmm::fake::kernel& what) {
    return driver().launch(stream, what);
  }
  [[nodiscard]] vmm::status begin_capture(vmm::stream_handle stream, vmm::capture_mode mode) {
    return driver().begin_capture(stream, mode);
  }
  [[nodiscard]] vmm::result<vmm::fake::graph_handle> end_capture(vmm::stream_handle stream) {
    return driver().end_capture(stream);
  }
  [[nodiscard]] vmm::status launch_graph(vmm::fake::graph_handle graph, vmm::stream_handle stream) {
    return driver().launch_graph(graph, stream);
  }
  [[nodiscard]] vmm::status destroy_graph(vmm::fake::graph_handle graph) {
    return driver().destroy_graph(graph);
  }
  [[nodiscard]] std::size_t ready_count() const { return fake().ready_count(); }
  [[nodiscard]] vmm::status finish_ready(std::size_t index) { return driver().finish_ready(index); }
  [[nodiscard]] vmm::status finish_all() { return driver().finish_all(); }
  [[nodiscard]] vmm::fake::resource_counts resource_counts() const {
    return fake().resource_counts();
  }
  [[nodiscard]] bool check_empty() { return driver().check_empty(); }
  [[nodiscard]] std::vector<vmm::fake::misuse> misuses() const { return fake().misuses(); }
  [[nodiscard]] std::uint64_t misuse_count() const { return fake().misuse_count(); }

 private:
  [[nodiscard]] const vmm::fake_driver& fake() const {
    return const_cast<recording_driver*>(this)->driver();
  }
};

/// How a program ended: its statistics as text, and the figures of them that its line has.
struct seen_end {
  std::string text;
  std::vector<std::pair<const char*, std::uint64_t>> figures;
};

/// The program of a seed. `play` returns what went wrong, or nullptr; `look` sees its statistics.
template <class Program, class Play, class Look>
[[nodiscard]] seeded_run run_seed(std::uint64_t seed, Play&& play, Look&& look) {
  const auto recorder = std::make_shared<call_recorder>();
  const std::vector<std::uint8_t> bytes = random_program(seed);
  Program program{byte_source{bytes}, recorder};
  seeded_run out;
  const char* const wrong = play(program);
  if (wrong != nullptr) out.problem = std::string(wrong) + ": " + program.detail();
  seen_end end = look(program.last_statistics());
  out.statistics = std::move(end.text);
  out.calls = recorder->text();
  text_hash statistics;
  statistics.add(out.statistics);
  row& line = out.line;
  line.name = std::to_string(seed);
  line.add("operations", program.operations());
  line.add("refused", program.failures());
  line.add("faults", program.faults());
  line.add("driver_calls", recorder->count());
  for (const auto& [name, value] : end.figures) line.add(name, value);
  line.figures.push_back({"statistics", statistics.text()});
  line.figures.push_back({"calls", recorder->hash()});
  return out;
}

static_assert(vmm::stream_backend<recording_driver>);
static_assert(vmm::capture_backend<recording_driver>);

}  // namespace golden
