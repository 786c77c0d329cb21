// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a backend keeps docs/contract.md.
// Method: one test for each statement of the contract, on a fresh driver object; the feature flags
// decide which optional behaviour must be there and which must be refused. Whatever a test made is
// given back at its end. Random sequences of legal calls are held against a naive model.
//
// A backend joins with one file: a factory type and VMM_CONFORMANCE (see conformance_fake.cpp). The
// tests are compiled once, in suite.cpp, over a driver of any type: one call is one virtual call.
#pragma once

#include "../support/test.h"

import vmm.backend;

namespace conformance {

/// A driver, or the reason for its absence.
template <class Driver>
struct opened {
  std::optional<Driver> driver{};
  std::string why_not{};
};

/// Mistakes of the caller that a backend does not see. It may do anything then, so they are not
/// made on it.
struct unseen {
  bool overlap = false;               ///< map over a mapping
  bool cut_unmap = false;             ///< unmap of a part of a mapping, without partial_unmap
  bool cut_access = false;            ///< set_access on a part, without partial_access
  bool access_over_hole = false;      ///< set_access over addresses with nothing behind them
  bool past_the_end = false;          ///< map beyond the end of the memory
  bool past_reservation = false;      ///< map beyond the end of the reservation
  bool free_while_mapped = false;     ///< free_reservation with live mappings
  bool release_while_mapped = false;  ///< release of mapped memory, without release_while_mapped
  bool stale_handle = false;          ///< a token after its release, or never made
  bool empty_grants = false;          ///< set_access without a grant
  bool bad_bytes = false;             ///< bytes used where nothing is mapped or without the right
  bool rights_of_neighbours = false;  ///< set_access reaches beyond its range
};

/// The calls beyond the thirteen that a driver's type has. Features of what it lacks are off
/// whatever it says.
struct refinements {
  bool streams = false;
  bool all_work = false;
  bool all_wait = false;
  bool capture = false;
  bool bytes = false;
  bool retain = false;
  bool properties = false;
  bool sharing = false;
  bool context = false;  // of its own: one that forwards says what the driver below has
  bool peers = false;
  bool range_export = false;
};

/// One driver object, of any type.
class made_driver {
 public:
  virtual ~made_driver() = default;
  made_driver(const made_driver&) = delete;
  made_driver& operator=(const made_driver&) = delete;

  virtual vmm::driver_interface& driver() = 0;
  virtual bool nothing_left() = 0;
  virtual void close(const vmm::shared_handle& shared) = 0;

 protected:
  made_driver() = default;
};

/// The suite's parameters of a backend.
struct tested_backend {
  const char* name;
  refinements has;
  bool memory_is_ours_alone;
  conformance::unseen (*unseen)();
  opened<std::unique_ptr<made_driver>> (*make)();
};

/// Has the program's tests run for one more backend.
bool join(const tested_backend& backend);

template <class Factory>
class driver_of final : public made_driver {
 public:
  using driver_type = typename Factory::driver;

  explicit driver_of(driver_type made) : driver_(std::move(made)), any_(driver_) {}

  // A driver that is a driver_interface itself forwards its calls: those are what is tested.
  vmm::driver_interface& driver() override {
    if constexpr (std::is_base_of_v<vmm::driver_interface, driver_type>) {
      return driver_;
    } else {
      return *any_;
    }
  }
  bool nothing_left() override { return Factory::nothing_left(driver_); }
  void close(const vmm::shared_handle& shared) override { Factory::close(driver_, shared); }

 private:
  driver_type driver_;
  vmm::driver_ref any_;
};

template <class Factory>
tested_backend describe_backend(const char* name) {
  using driver = typename Factory::driver;
  return {.name = name,
          .has = {.streams = vmm::stream_backend<driver>,
                  .all_work = vmm::all_work_backend<driver>,
                  .all_wait = vmm::all_wait_backend<driver>,
                  .capture = vmm::capture_backend<driver>,
                  .bytes = vmm::copy_backend<driver>,
                  .retain = vmm::retain_backend<driver>,
                  .properties = vmm::property_backend<driver>,
                  .sharing = vmm::sharing_backend<driver>,
                  .context = vmm::context_backend<driver> &&
                             !std::is_base_of_v<vmm::driver_interface, driver>,
                  .peers = vmm::peer_backend<driver>,
                  .range_export = vmm::range_export_backend<driver>},
          .memory_is_ours_alone = Factory::memory_is_ours_alone,
          .unseen = [] { return Factory::unseen(); },
          .make = []() -> opened<std::unique_ptr<made_driver>> {
            auto made = Factory::make();
            if (!made.driver) return {std::nullopt, made.why_not};
            return {std::make_unique<driver_of<Factory>>(std::move(*made.driver)), {}};
          }};
}

}  // namespace conformance

/// Holds the backend that `Factory` makes to the contract. Factory has: the type `driver`;
/// make() -> opened<driver>; unseen() -> unseen; nothing_left(driver&) -> bool;
/// close(driver&, const shared_handle&) for descriptors; memory_is_ours_alone.
#define VMM_CONFORMANCE(Factory)                     \
  [[maybe_unused]] const bool Factory##_has_joined = \
      ::conformance::join(::conformance::describe_backend<Factory>(#Factory))
