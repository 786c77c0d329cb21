// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe:peak_record - the peak of an allocator's memory, from one run of a program to the
// next.
//
// VMM_REMEMBER names a folder. An allocator reads the peak of the previous run there when it is set
// up, and writes its own when it ends or the process exits. A file has 64 bytes and is for one key:
// a hash of program, arguments, device and policy. 1,024 names bound the folder; a key may replace
// another one.
//
// Only this user may write to the folder: else no file is read or written. A file is written by one
// call: of two processes that write, one peak remains. A file of another key, version, owner or
// length, or with a wrong checksum, is ignored.
//
// Thread safety: all of it. A forked child remembers nothing if its parent did. Cost: a getenv when
// an allocator is set up; with the variable, one read then and one write at the end.
export module vmm.observe:peak_record;

import vmm.base;
import vmm.std;

namespace vmm {

/// The most of one run.
export struct run_peak {
  std::uint64_t live_bytes = 0;
  std::uint64_t mapped_bytes = 0;
};

/// An allocator whose peak can be queried until its record ends.
export struct peak_source {
  const void* of = nullptr;
  run_peak (*peak)(const void* of) noexcept = nullptr;
};

/// The record of one allocator.
export class peak_record {
 public:
  peak_record() noexcept = default;
  peak_record(const peak_record&) = delete;
  peak_record& operator=(const peak_record&) = delete;
  ~peak_record() { end(); }

  /// Whether VMM_REMEMBER names a folder. Cost: a getenv.
  [[nodiscard]] static bool is_wanted() noexcept;
  /// Effects: reports a folder that cannot be used, as begin() does. Makes it, if it is not there.
  /// Cost: a getenv; with the variable, once in a process, the folder is opened.
  static void check_folder() noexcept;
  /// Requires: begin() was not called. Effects: returns the peak of the previous run of this
  /// program with this `about`, or zeros. At exit the source's peak is written, if it is not 0; of
  /// two runs with nearly the same live bytes the smaller mapped bytes remain, so that memory made
  /// ready does not add up. Allocators with one `about` are numbered. A failure is reported on
  /// stderr, once in a process.
  [[nodiscard]] run_peak begin(const peak_source& source, std::string_view about) noexcept;
  /// Effects: writes the peak; the source is not queried any more. A second call does nothing.
  void end() noexcept;

 private:
  friend struct peak_records;

  peak_source source_{};
  std::string folder_{};
  std::array<std::uint64_t, 2> about_{};  // without the number
  std::uint64_t number_ = 0;              // among those of one `about`, from 1; 0: not begun
  peak_record* next_ = nullptr;
};

}  // namespace vmm
