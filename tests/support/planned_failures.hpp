// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What drivers that stand in for a real one share: the failures that a test plans for their calls,
// and their state under its mutex.
#pragma once

#include "../../tools/program/standard.hpp"

/// Thread safety: under the driver's mutex.
template <class Code>
class planned_failures {
 public:
  /// The nth call of the symbol from now on fails, and with `forever` each later one.
  void add(const char* symbol, int code, unsigned nth, bool forever) {
    plans_.push_back({symbol, static_cast<Code>(code), nth, forever});
  }
  void clear() noexcept { plans_.clear(); }
  /// The code of a failure that strikes this call, if any.
  [[nodiscard]] std::optional<Code> strike(std::string_view symbol) {
    for (auto at = plans_.begin(); at != plans_.end(); ++at) {
      if (at->symbol != symbol) continue;
      if (at->countdown > 1) {
        --at->countdown;
        continue;
      }
      const Code code = at->code;
      if (!at->forever) plans_.erase(at);
      return code;
    }
    return std::nullopt;
  }

 private:
  struct plan {
    std::string symbol;
    Code code{};
    unsigned countdown = 1;
    bool forever = false;
  };
  std::vector<plan> plans_;
};

/// A driver's state, with its mutex held.
template <class State>
class locked {
 public:
  explicit locked(State& state) : state_(state), hold_(state.mutex) {}
  [[nodiscard]] State* operator->() const noexcept { return &state_; }

 private:
  State& state_;
  std::lock_guard<std::mutex> hold_;
};
