// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:own_memory - the free memory of a record: requests that it serves, and regions that
// become free for it. Not exported.
//
// Owns nothing: it is made for a call, over the pool's state.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: that of region_map for
// each segment.
export module vmm.stream:own_memory;

import vmm.backend;
import vmm.std;
import vmm.timeline;
import vmm.va;
import :geometry;
import :pool_state;
import :segment;

namespace vmm {

class own_memory {
 public:
  explicit own_memory(pool_state& state) noexcept : state_(state) {}

  /// From free memory of the request's record, any request and record; no address if no region
  /// fits. Errors: out_of_host_memory.
  [[nodiscard]] result<address> allocate(const stream_request& request) noexcept;
  /// As pool_state::try_allocate(), for a request that is aligned.
  [[nodiscard]] address try_allocate_aligned(const stream_request& request, bool& starved) noexcept;
  /// An unlisted live region that is in no table becomes free for the stream.
  void free_region(segment& in, region_id block, std::uint32_t stream) noexcept;
  /// The same of one that was freed then.
  void free_region_since(segment& in, region_id block, const stream_point& freed) noexcept;

 private:
  [[nodiscard]] result<address> allocate_free(const stream_request& request) noexcept;
  [[nodiscard]] result<address> allocate_kept(const stream_request& request) noexcept;

  pool_state& state_;
};

}  // namespace vmm
