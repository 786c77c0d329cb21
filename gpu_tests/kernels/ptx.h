// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of vmm.kernels as PTX. Threads stride over 64-bit words, or over pairs of them; a row
// of the table has a kernel's parameters and what it does at one index.
#pragma once

namespace vmm::tools {

/// A kernel whose threads stride from %index on over %n elements.
struct strided_kernel {
  const char* name;
  const char* parameters;  ///< words, each a register's name; addresses begin with *
  const char* registers;   ///< more of them
  const char* before;      ///< each thread's loop
  const char* at_index;
  const char* behind;
};

inline constexpr strided_kernel strided_kernels[] = {
    {"vmm_pattern_fill", "*at n s", ".reg .b64 %word, %offset;", "", R"(
  mul.lo.u64 %word, %index, 0x9E3779B97F4A7C15;
  add.u64 %word, %word, %s;
  shl.b64 %offset, %index, 3;
  add.u64 %offset, %offset, %at;
  st.global.u64 [%offset], %word;)",
     ""},
    {"vmm_pattern_check", "*at n s *to",
     ".reg .pred %differs, %clean;\n  .reg .b64 %word, %offset, %found, %mine, %one;",
     "mov.u64 %mine, 0;", R"(
  mul.lo.u64 %word, %index, 0x9E3779B97F4A7C15;
  add.u64 %word, %word, %s;
  shl.b64 %offset, %index, 3;
  add.u64 %offset, %offset, %at;
  ld.global.u64 %found, [%offset];
  setp.ne.u64 %differs, %found, %word;
  selp.u64 %one, 1, 0, %differs;
  add.u64 %mine, %mine, %one;)",
     R"(setp.eq.u64 %clean, %mine, 0;
  @%clean bra RIGHT;
  atom.global.add.u64 %found, [%to], %mine;
RIGHT:)"},
    {"vmm_copy", "*to *from n", ".reg .b64 %offset, %x, %y, %at;", "shr.u64 %n, %n, 1;", R"(
  shl.b64 %offset, %index, 4;
  add.u64 %at, %from, %offset;
  ld.global.v2.u64 {%x, %y}, [%at];
  add.u64 %at, %to, %offset;
  st.global.v2.u64 [%at], {%x, %y};)",
     ""},
};

/// Each thread writes a word through one view and reads it through the other. PTX 7.5, sm_75.
inline constexpr strided_kernel alias_kernel{
    "vmm_alias_words",
    "*to *from n s *bad",
    ".reg .pred %right;\n  .reg .b64 %word, %seen, %offset, %at;",
    "",
    R"(
  mul.lo.u64 %word, %index, 0x9E3779B97F4A7C15;
  add.u64 %word, %word, %s;
  shl.b64 %offset, %index, 3;
  add.u64 %at, %offset, %to;
  st.global.u64 [%at], %word;
  fence.proxy.alias;
  add.u64 %at, %offset, %from;
  ld.global.u64 %seen, [%at];
  setp.eq.u64 %right, %seen, %word;
  @%right bra AFTER;
  red.global.add.u64 [%bad], 1;
AFTER:)",
    ""};

/// The kernels of one thread, and of one block.
inline constexpr const char* single_kernels = R"ptx(
.visible .entry vmm_poke(.param .u64 target, .param .u64 value)
{
  .reg .pred %other;
  .reg .b32 %thread, %block, %byte;
  .reg .b64 %at, %x;

  ld.param.u64 %at, [target];
  ld.param.u64 %x, [value];
  cvta.to.global.u64 %at, %at;
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  or.b32 %thread, %thread, %block;
  setp.ne.u32 %other, %thread, 0;
  @%other bra END;
  cvt.u32.u64 %byte, %x;
  st.global.u8 [%at], %byte;
END:
  ret;
}

.visible .entry vmm_spin(.param .u64 duration_ns)
{
  .reg .pred %more;
  .reg .b64 %length, %begin, %now, %gone;

  ld.param.u64 %length, [duration_ns];
  mov.u64 %begin, %globaltimer;
NEXT:
  mov.u64 %now, %globaltimer;
  sub.u64 %gone, %now, %begin;
  setp.lt.u64 %more, %gone, %length;
  @%more bra NEXT;
  ret;
}
)ptx";

}  // namespace vmm::tools
