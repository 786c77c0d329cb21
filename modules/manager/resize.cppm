// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:resize - blocks that grow, in place or by moving, and shrink. Not exported.
//
// Thread safety: all of it. Cost: driver calls by pieces.
export module vmm.manager:resize;

import vmm.backend;
import vmm.optimizer;
import vmm.std;
import vmm.tracker;
import :base;
import :contents;
import :history;
import :shortage;
import :types;

namespace vmm {

class block_resizer {
 public:
  block_resizer(manager_base& base, manager_history& history, block_contents& contents,
                manager_shortage& shortage) noexcept
      : base_(base), history_(history), contents_(contents), shortage_(shortage) {}
  block_resizer(const block_resizer&) = delete;
  block_resizer& operator=(const block_resizer&) = delete;

  /// manager::resize().
  [[nodiscard]] result<address> resize(const resize_request& request);

 private:
  [[nodiscard]] result<address> resize_claimed(block& resized, const resize_request& request);
  [[nodiscard]] status grow(block& grown, const resize_request& request, resize_plan plan);
  [[nodiscard]] status shrink(block& shrunk, resize_plan plan);
  void note_failed(const resize_request& request, stream_handle stream, const error& why) noexcept;

  manager_base& base_;
  manager_history& history_;
  block_contents& contents_;
  manager_shortage& shortage_;
};

}  // namespace vmm
