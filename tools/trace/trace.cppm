// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.trace - reads allocation traces (traces/README.md describes the format). Above the library;
// imports nothing.
//
// A trace is read in one pass, plain or gzip, and becomes compact events with dense slots, so that
// a replay measures the allocator and not a hash map. Reading is strict: the first thing that the
// format does not allow stops it.
//
// - A slot holds at most one live allocation at a time; slots are below `slot_count`.
// - A free names a slot that is live, and carries the size that was allocated there.
// - Live bytes (requests rounded up to `live_unit_bytes`) never exceed `live_bytes_max`, by more
//   than 3 % after jitter_sizes().
//
// Traces are untrusted input: everything that grows with the file has a limit below, also for small
// compressed files of long texts.
//
// Thread safety: values only. Cost: linear in the file; memory is 16 bytes an event, 16 a mark and
// 80 a live allocation. At every limit at once that is 3 GiB.
export module vmm.trace;

export import :source;
import vmm.std;

namespace vmm::tools {

/// Frameworks round requests up to this; live bytes are counted in it so that allocators can be
/// compared.
export inline constexpr std::uint64_t live_unit_bytes = 512;
/// More live bytes than this (256 TiB) fit no address space: the trace is refused.
export inline constexpr std::uint64_t live_bytes_max = std::uint64_t{1} << 48;
/// More events, marks of iterations or allocations live at once than these are refused, so that a
/// small compressed file cannot take all of the host's memory.
export inline constexpr std::uint64_t event_count_max = std::uint64_t{1} << 26;
export inline constexpr std::uint64_t iteration_count_max = std::uint64_t{1} << 20;
export inline constexpr std::uint64_t live_count_max = std::uint64_t{1} << 24;

export enum class event_kind : std::uint8_t { allocate, free };

/// One call to an allocator.
export struct event {
  std::uint64_t size_bytes =
      0;  ///< the request as the framework made it; for a free, the request that it ends
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;
  event_kind kind = event_kind::allocate;
};

/// A mark in the trace: iteration `number` begins before event `first_event`.
export struct iteration {
  std::uint64_t number = 0;
  std::uint64_t first_event = 0;
};

/// A whole trace, and its figures without an allocator.
export struct trace {
  std::string name;  ///< the file's name without folders and suffixes
  std::vector<event> events;
  std::vector<iteration> iterations;
  std::uint64_t allocation_count = 0;
  std::uint64_t free_count = 0;
  std::uint64_t slot_count = 0;       ///< also the largest number of allocations live at once
  std::uint64_t peak_live_bytes = 0;  ///< rounded up to live_unit_bytes each
  std::uint64_t peak_live_event = 0;  ///< the first event after which the peak is reached
  std::uint64_t end_live_bytes = 0;   ///< what the trace never frees, rounded up likewise
};

/// Why a trace cannot be read.
export struct problem {
  std::string file;
  std::uint64_t line = 0;  ///< counted from 1; 0 when no line is to blame
  std::string what;
  std::string expected;  ///< empty if it has no detail
};

/// "FILE:LINE: what; expected this".
export [[nodiscard]] std::string describe(const problem& trouble);

/// A trace, or the problem that stopped the reading.
export struct read_outcome {
  std::optional<trace> value;
  problem trouble;

  [[nodiscard]] explicit operator bool() const noexcept { return value.has_value(); }
};

/// Reads the file at `path`.
/// Fails when it cannot be read, is not a whole gzip file, or is not a well-formed trace with an
/// allocation.
export [[nodiscard]] read_outcome read_trace(const std::string& path);
/// The same of a source that nothing was read from; `name` stands for the file in messages.
export [[nodiscard]] read_outcome read_trace(const std::string& name, byte_source& source);
/// The same for a file's bytes in memory; `name` stands for the file in messages.
export [[nodiscard]] read_outcome parse_trace(const std::string& name,
                                              std::span<const std::byte> bytes);

/// The text as UTF-8: each byte that belongs to no character of it becomes U+FFFD. Names in files
/// are bytes; the readers of what is written from them take nothing but UTF-8.
export [[nodiscard]] std::string to_utf8(std::string_view bytes);
/// The same on one line, without what a terminal would take for a command.
export [[nodiscard]] std::string one_line(std::string_view bytes);

/// Multiplies every size by a factor from 0.97 to 1.03 that the size and the seed fix: requests of
/// one size stay of one size. A policy's figure on one trace depends on chance; the mean over some
/// seeds does less. Live bytes are counted anew.
export void jitter_sizes(trace& input, std::uint64_t seed);

/// A request as it counts towards live bytes. `size_bytes` is at most live_bytes_max.
export [[nodiscard]] constexpr std::uint64_t live_bytes_of(std::uint64_t size_bytes) noexcept {
  return (size_bytes + live_unit_bytes - 1) / live_unit_bytes * live_unit_bytes;
}

}  // namespace vmm::tools
