// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory of one device, as an owner needs it: without a context, by descriptors.
#pragma once

#include "../program/standard.hpp"

namespace vmm::tools {

/// A handle of the driver, and the descriptor that imports it.
struct device_memory {
  std::uint64_t handle = 0;
  int descriptor = -1;
};

struct owner_device {
  virtual ~owner_device() = default;
  /// Nothing: the driver has no memory.
  [[nodiscard]] virtual std::optional<device_memory> create(std::uint64_t size_bytes) = 0;
  /// Closes the descriptor, too. The handle 0: only a descriptor was received.
  virtual void release(const device_memory& memory) = 0;
  [[nodiscard]] virtual std::uint64_t total_bytes() const = 0;
};

/// The device of this name: "host" or "fake" (the drivers of these names), or the 32 digits of a
/// CUDA device's UUID, whose driver is called without a context. Null, and why.
[[nodiscard]] std::unique_ptr<owner_device> open_device(const std::string& name, std::string& why);

}  // namespace vmm::tools
