// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:block_rights - the devices that may use a pool's memory, and the single blocks that
// have rights of their own. Not exported.
//
// I1  A block with rights of its own is held (:locked_blocks): after its free it serves no request
//     before its work has finished and it has the rights of all again.
// I2  Each mapping has the rights of all, or those of the block that it is part of.
//
// Thread safety: all of it. Cost: a set-access for each mapping.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:block_rights;

import vmm.backend;
import vmm.optimizer;
import vmm.std;
import vmm.timeline;
import :call_path;
import :capture_watch;
import :growth_entry;
import :locks;
import :notifier;
import :options;
import :pool_base;
import :state_lock;
import :stream_clock;

namespace vmm {

class block_rights {
 public:
  block_rights(const pool_base& base, stream_clock& clock) noexcept
      : driver_(base.driver),
        options_(base.options),
        gate_(base.path.gate()),
        state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        notices_(base.notices),
        remaps_(base.core.remaps),
        clock_(clock) {}
  block_rights(const block_rights&) = delete;
  block_rights& operator=(const block_rights&) = delete;

  /// stream_pool::set_peers().
  [[nodiscard]] status set_peers(std::span<const access_grant> grants)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// stream_pool::set_access().
  [[nodiscard]] status set_access(address at, std::span<const access_grant> grants)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// Whether any block has rights of its own.
  [[nodiscard]] bool has_own() const noexcept VMM_REQUIRES(rank::growth) {
    return !blocks_.empty();
  }
  /// Those of the block around an address; null if it has none of its own.
  [[nodiscard]] const grant_list* of(address at) const noexcept VMM_REQUIRES(rank::growth);
  /// Ends the rights of freed blocks whose work has finished. A later call retries those that are
  /// still in use, or that the driver refuses.
  void end_freed() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// Ends those of all freed blocks, when the pool ends: waits for their work.
  void end_all() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);

 private:
  // A block with rights of its own, which is held until they have ended.
  struct own_rights {
    address_range range{};
    grant_list rights;
    stream_point last_use{};  // set when its free is detected
    bool is_freed = false;
    bool was_pinned = false;  // its memory is then free later
  };

  [[nodiscard]] rights_scope scope() const noexcept {
    return {driver_, remaps_, options_.placement.value_or(driver_.home())};
  }
  [[nodiscard]] status list_mapped(std::vector<address_range>& out) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status refresh(std::span<const address_range> ranges) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<std::size_t> keep(address at) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status change(own_rights& of, std::span<const access_grant> grants)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  [[nodiscard]] bool end_one(own_rights& of) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);

  driver_interface& driver_;
  const pool_options& options_;
  const pool_gate& gate_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  notifier& notices_;
  remapper& remaps_;
  stream_clock& clock_;
  std::vector<std::unique_ptr<own_rights>> blocks_ VMM_GUARDED_BY(rank::growth);
};

}  // namespace vmm
