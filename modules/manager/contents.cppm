// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:contents - the end of a block's use: a point behind its work, and the fills of
// memory_options::contents when a block is created, grows, shrinks and ends. Not exported.
//
// Bytes of a live block are filled only by a call that then succeeds: what comes behind a fill
// cannot fail. Memory that a fill may still write waits for its point, late or not.
//
// Thread safety: all of it, for a block that the caller has claimed. Cost: a point; a fill where
// the rule fills.
export module vmm.manager:contents;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import vmm.timeline;
import vmm.tracker;
import :base;

namespace vmm {

class block_contents {
 public:
  explicit block_contents(manager_base& base) noexcept : base_(base) {}
  block_contents(const block_contents&) = delete;
  block_contents& operator=(const block_contents&) = delete;

  /// Whether bytes that the block loses are filled.
  [[nodiscard]] bool fills_released(const block& of) const noexcept {
    return base_.contents.fills_on_release() && of.sizes.user_bytes != 0 && of.has_memory &&
           !of.is_suspended;
  }
  /// A point behind the work of the block's stream. Errors: driver errors, out_of_host_memory.
  [[nodiscard]] result<ticket_ref> record_use(const block& of, bool is_named) {
    check(base_.blocks != nullptr, "a point is recorded before the manager is set up");
    timeline& time = base_.blocks->time();
    return is_named ? time.record(of.stream) : time.record_unnamed(of.stream, of.stream_identity);
  }
  /// Fills the bytes from `from_bytes` on, which the block loses, and returns a point behind the
  /// fill and the work of the block's stream. Without `is_named` no caller names the stream.
  /// Errors: as record_use(), those of fill.
  [[nodiscard]] result<ticket_ref> end_use(block& used, std::uint64_t from_bytes,
                                           bool is_named = false);
  /// The same behind the work of a stream that the caller names.
  [[nodiscard]] result<ticket_ref> record_released(block& of, std::uint64_t from_bytes,
                                                   stream_handle stream);
  /// The same for a whole block behind `all`, a point behind all work of the device.
  [[nodiscard]] result<ticket_ref> end_use_after(block& used, const ticket_ref& all);
  /// Fills the bytes from `from_bytes` on of a block that is handed out; its last use is the fill
  /// from then on. Errors: out_of_host_memory, those of fill.
  [[nodiscard]] status fill_acquired(block& of, std::uint64_t from_bytes, stream_handle stream);
  /// Orders the next use of the block's bytes, by its stream or the calling thread, behind its last
  /// fill. Errors: as timeline::order_unnamed().
  [[nodiscard]] status order_behind_fill(const block& of, bool is_named);
  /// Fills the bytes that a block has grown by. Errors: as record_use(), those of fill; the block
  /// has the size that it had before.
  [[nodiscard]] status fill_grown(block& of, const range_sizes& before, bool is_named);

 private:
  [[nodiscard]] result<stream_handle> choose_filler(stream_handle stream, bool is_named);
  [[nodiscard]] status fill_released(block& of, std::uint64_t from_bytes, stream_handle stream);

  manager_base& base_;
};

}  // namespace vmm
