// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A program of operations on the blocks and vectors of one manager beside a model of every byte,
// on a driver whose work finishes when the program says so, in any order that streams and events
// allow. Bytes choose: the fuzzer's or a random generator's.
//
// The model is written from docs/contract.md and the comments on the public calls. What it holds
// each object to:
// - A byte has the value that was last put there, in the order of the calls: by the host, by device
//   work of the program, by a copy, or by resize. A fresh block's bytes are not known; those that a
//   vector's resize makes are.
// - The program orders its own work as the documents require: its kernels run behind the object's
//   stream, which goes on behind them; where the host touches bytes it has waited for its own
//   kernels on them, and for nothing else.
// - Everything else that may still use the memory is the library's affair: earlier users of it,
//   and its own fills.
// A device read copies to memory of the test's own and is compared when it has finished.
//
// The driver is the fake one, queued_host, or derived from one of them, which is then the honest
// one: what the program itself waits for it waits for there. Each is made a manual_driver, over
// which the program is compiled once (program.cpp).
#pragma once

#include "queued_host.hpp"

import vmm.fake;

namespace contents {

inline constexpr std::uint64_t granule_bytes = 16384;
inline constexpr std::uint64_t device_bytes = 256 * granule_bytes;

/// A driver of any type whose work finishes when the program says so.
class manual_driver {
 public:
  virtual ~manual_driver() = default;
  manual_driver(const manual_driver&) = delete;
  manual_driver& operator=(const manual_driver&) = delete;

  /// The driver as the manager takes it, and as the program calls it.
  [[nodiscard]] virtual vmm::driver_ref reference() = 0;
  [[nodiscard]] virtual vmm::driver_interface& given() = 0;
  /// What the program itself waits on.
  [[nodiscard]] virtual vmm::driver_interface& honest() = 0;
  /// The fake driver that it is, for its faults; null on real memory.
  [[nodiscard]] virtual vmm::fake_driver* fake() = 0;

  [[nodiscard]] virtual std::size_t ready_count() = 0;
  [[nodiscard]] virtual vmm::status finish_ready(std::size_t index) = 0;
  [[nodiscard]] virtual vmm::status finish_all() = 0;
  /// What the first misuse was; null when there was none.
  [[nodiscard]] virtual const char* misuse() = 0;
  [[nodiscard]] virtual bool is_empty() = 0;

 protected:
  manual_driver() = default;
};

template <class Driver, class Honest>
class manual_driver_of final : public manual_driver {
 public:
  explicit manual_driver_of(vmm::alias_level alias) : driver_(open(alias)) {
    if constexpr (is_fake) driver_.set_manual(true);
  }

  vmm::driver_ref reference() override { return given_; }
  vmm::driver_interface& given() override { return *given_; }
  vmm::driver_interface& honest() override { return *honest_; }
  vmm::fake_driver* fake() override {
    if constexpr (is_fake) {
      return &driver_;
    } else {
      return nullptr;
    }
  }
  std::size_t ready_count() override { return driver_.ready_count(); }
  vmm::status finish_ready(std::size_t index) override { return driver_.finish_ready(index); }
  vmm::status finish_all() override { return driver_.finish_all(); }
  const char* misuse() override {
    if (driver_.misuse_count() == 0) return nullptr;
    if constexpr (is_fake) {
      return driver_.misuses().front().detail;
    } else {
      return "device work on memory that is not there";
    }
  }
  bool is_empty() override {
    if constexpr (is_fake) {
      return driver_.check_empty();
    } else {
      return driver_.is_empty();
    }
  }

 private:
  static constexpr bool is_fake = std::is_base_of_v<vmm::fake_driver, Driver>;

  [[nodiscard]] static Driver open(vmm::alias_level alias) {
    if constexpr (is_fake) {
      vmm::fake::profile emulated = vmm::fake::profile::cuda();
      emulated.can.alias = alias;
      emulated.device_granularity = {granule_bytes, granule_bytes};
      emulated.address_alignment_bytes = granule_bytes;
      emulated.device_memory_bytes = device_bytes;
      emulated.traps.stream_numbers_again = true;
      return Driver(emulated);
    } else {
      return Driver({.recommended_bytes = granule_bytes, .capacity_bytes = device_bytes}, alias);
    }
  }

  Driver driver_;
  vmm::driver_ref given_{driver_};
  vmm::driver_ref honest_{static_cast<Honest&>(driver_)};
};

template <class Driver, class Honest = Driver>
[[nodiscard]] std::unique_ptr<manual_driver> make_driver(vmm::alias_level alias) {
  return std::make_unique<manual_driver_of<Driver, Honest>>(alias);
}

struct program_options {
  std::unique_ptr<manual_driver> (*make)(vmm::alias_level) = nullptr;
  /// The program calls no manager::forget.
  bool skips_forget = false;
};

/// Runs one program. Returns the error found, or an empty text.
[[nodiscard]] std::string run_program(const program_options& options,
                                      std::span<const std::uint8_t> bytes);

}  // namespace contents
