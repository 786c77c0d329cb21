// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.trace_generator - allocation traces of programs without a recording, from the arithmetic of
// their computation. Above the library; imports nothing.
//
// The recorded traces are four samples. These have other habits: the shapes are those of real
// models, and a seed draws what a user would bring (picture sizes, lengths of texts, graphs). They
// stand for kinds of behaviour, not for measurements of a program.
//
// Thread safety: values only. Cost: linear in the events; a trace is up to some 10 MiB of text. The
// same kind and seed give the same bytes on every machine.
export module vmm.trace_generator;

import vmm.std;

namespace vmm::tools {

/// One kind of program.
export struct trace_kind {
  const char* name;
  const char* what;  ///< its use of memory, in a line
};

export [[nodiscard]] std::span<const trace_kind> trace_kinds() noexcept;

/// The trace as text (traces/README.md has the format); empty when no kind has this name.
export [[nodiscard]] std::string generate_trace(const std::string& kind, std::uint64_t seed);

}  // namespace vmm::tools
