// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.history_tools - an allocator's history in the formats of common tools.
//
// A history is read backward from the layout at its end, as by PyTorch's viewer. Events that do not
// fit the layout are left out and counted: an allocator's own file has none.
//
// - Of the events that are kept, none ends a block or a mapping that is not there, and none
//   begins one that is, from either end of time.
//
// Thread safety: values only. Cost: O(n log n) of the events.
export module vmm.history_tools;

export import vmm.observe;
export import vmm.recording;
import vmm.backend;
import vmm.std;

namespace vmm::tools {

/// A block at the end of a history, or at its beginning.
export struct known_block {
  std::uint64_t size_bytes = 0;  ///< of a block that has lost its memory 0
  std::uint64_t asked_bytes = 0;
  std::uint64_t stream = 0;
  std::uint32_t frame = 0;
  std::uint16_t tag = 0;
  bool is_pending = false;  ///< freed, and still pinned
  bool is_last = false;     ///< live at the end
  /// A manager's, of which the first event that is left is a resize: its size is one page then,
  /// which it had at least.
  bool is_size_unknown = false;
};

/// Which events of a history fit together, and what was there before them.
export struct history_account {
  std::vector<bool> is_kept{};  ///< for each event
  std::uint64_t left_out_count = 0;
  std::map<std::uint64_t, known_block> live_before{};
  std::map<std::uint64_t, known_block> live_after{};
  std::map<std::uint64_t, std::uint64_t> mapped_before{};  ///< size by address, without stale ones
  std::map<std::uint64_t, std::uint64_t> mapped_after{};
  std::uint64_t footprint_before_bytes = 0;
  bool is_manager = false;  ///< each block is a mapping of its own
};
export [[nodiscard]] history_account account_for(const history& taken);

/// The snapshot that torch.cuda.memory._dump_snapshot writes: a pickle of protocol 4.
export [[nodiscard]] std::string to_memory_viz(const history& taken,
                                               const history_account& account);
/// Trace events as JSON, which ui.perfetto.dev and chrome://tracing open.
export [[nodiscard]] std::string to_trace_events(const history& taken,
                                                 const history_account& account);
/// A few lines for people.
export [[nodiscard]] std::string to_summary(const history& taken, const history_account& account);

/// A history and what to call it.
export struct named_history {
  std::string name{};
  history taken{};
};
/// One HTML file that shows one history, or two side by side, and needs nothing else.
export [[nodiscard]] std::string to_page(const std::vector<named_history>& shown);
/// One HTML file that shows an answer of vmm-fit, and needs nothing else. The document is JSON with
/// the keys at the head of the script in tools/view/fit.html.
export [[nodiscard]] std::string to_fit_page(std::string_view document);

export struct history_outcome {
  history taken{};
  std::string problem{};  ///< empty where it was read
};
/// A history from a file of any form that vmm.recording reads. Without `device`, of the device that
/// did the most.
export [[nodiscard]] history_outcome read_history_file(
    const std::string& path, const std::optional<std::uint64_t>& device = {},
    const reading_options& options = {});
/// A recording as a history. A recording that is one itself is returned as it is.
export [[nodiscard]] history_outcome to_history(recording_outcome&& read,
                                                const std::optional<std::uint64_t>& device);

/// The value of the fact of this name, or an empty text.
export [[nodiscard]] std::string fact_of(const history& taken, const std::string& name);

/// 0x and hexadecimal digits.
[[nodiscard]] std::string hexadecimal(std::uint64_t value);

}  // namespace vmm::tools
