// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:contents - bytes that are filled when memory is handed out and when it is freed,
// by memory_options::contents.
//
// Thread safety: all of it. Cost: one fill where the rule fills, else none.
export module vmm.optimizer:contents;

import vmm.backend;
import vmm.base;
import vmm.std;
import :memory_options;

namespace vmm {

/// Fills memory by one contents_rule. Requires of both calls: the range is mapped, and the driver's
/// home may write it, until the fill has finished.
export class content_filler {
 public:
  content_filler(driver_interface& driver, contents_rule rule) noexcept
      : driver_(driver), rule_(rule) {}

  [[nodiscard]] bool fills_on_acquire() const noexcept {
    return rule_ == contents_rule::zero_on_acquire || rule_ == contents_rule::poison;
  }
  [[nodiscard]] bool fills_on_release() const noexcept {
    return rule_ == contents_rule::zero_on_release || rule_ == contents_rule::poison;
  }
  /// Fills bytes that are handed out, or that are freed, in the order of `stream`; does nothing if
  /// the rule fills none. Errors: those of fill.
  [[nodiscard]] status on_acquire(address_range bytes, stream_handle stream) const {
    return fills_on_acquire() ? fill(bytes, stream) : status{};
  }
  [[nodiscard]] status on_release(address_range bytes, stream_handle stream) const {
    return fills_on_release() ? fill(bytes, stream) : status{};
  }

 private:
  [[nodiscard]] status fill(address_range bytes, stream_handle stream) const {
    check(!bytes.empty(), "memory of no bytes is filled");
    const std::uint8_t value = rule_ == contents_rule::poison ? poison_byte : 0;
    return driver_.fill({bytes, value, stream});
  }

  driver_interface& driver_;
  const contents_rule rule_;
};

}  // namespace vmm
