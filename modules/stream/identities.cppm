// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:identities - streams whose requests a pool has served, by identity: a driver gives the
// handle of a destroyed stream to a new one while the old one's work runs. Not exported.
//
// An identity stands here only when no memory that an earlier stream of the same handle was freed
// for is listed under the handle. A free lists under the handle and reads nothing here: what a new
// stream frees is the old one's until the new one's first request.
//
// Thread safety: all of it. Cost: one call of the driver for streams that have an identity, else a
// branch.
export module vmm.stream:identities;

import vmm.backend;
import vmm.base;
import vmm.std;
import :options;

namespace vmm {

class stream_identities {
 public:
  /// The first number of a stream with an identity; that of none where handles are kept
  /// until they are forgotten, or the driver has no identities or no event behind all work.
  [[nodiscard]] static std::uint64_t first_of(const features& can,
                                              const pool_options& options) noexcept {
    if (!can.stream_identity || !can.record_all || options.streams_forgotten)
      return ~std::uint64_t{0};
    return can.first_created_stream();
  }
  [[nodiscard]] inline bool has(stream_handle stream, std::uint64_t identity) const noexcept {
    return place_of(stream).load(std::memory_order_acquire) == identity;
  }
  void add(stream_handle stream, std::uint64_t identity) noexcept {
    place_of(stream).store(identity, std::memory_order_release);
  }

 private:
  static constexpr std::size_t places = 128;

  [[nodiscard]] inline sync::atomic<std::uint64_t>& place_of(stream_handle stream) const noexcept {
    const std::uint64_t mixed = static_cast<std::uint64_t>(stream) * 0x9E3779B97F4A7C15u;
    return known_[(mixed >> 32) % places];
  }

  mutable std::array<sync::atomic<std::uint64_t>, places> known_{};
};

}  // namespace vmm
