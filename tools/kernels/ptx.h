// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of vmm.kernels as PTX. Threads stride over 64-bit words.
#pragma once

namespace vmm::tools {

inline constexpr const char* kernel_text = R"ptx(
.version 7.0
.target sm_70
.address_size 64

.visible .entry vmm_pattern_fill(.param .u64 base, .param .u64 count, .param .u64 seed)
{
  .reg .pred %done, %more;
  .reg .b32 %width, %block, %thread, %blocks;
  .reg .b64 %at, %n, %s, %index, %wide, %stride, %word, %offset;

  ld.param.u64 %at, [base];
  ld.param.u64 %n, [count];
  ld.param.u64 %s, [seed];
  cvta.to.global.u64 %at, %at;
  mov.u32 %width, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %index, %block, %width;
  cvt.u64.u32 %wide, %thread;
  add.u64 %index, %index, %wide;
  mul.wide.u32 %stride, %blocks, %width;
  setp.ge.u64 %done, %index, %n;
  @%done bra END;
NEXT:
  mul.lo.u64 %word, %index, 0x9E3779B97F4A7C15;
  add.u64 %word, %word, %s;
  shl.b64 %offset, %index, 3;
  add.u64 %offset, %offset, %at;
  st.global.u64 [%offset], %word;
  add.u64 %index, %index, %stride;
  setp.lt.u64 %more, %index, %n;
  @%more bra NEXT;
END:
  ret;
}

.visible .entry vmm_pattern_check(.param .u64 base, .param .u64 count, .param .u64 seed,
                                  .param .u64 wrong)
{
  .reg .pred %done, %more, %differs, %clean;
  .reg .b32 %width, %block, %thread, %blocks;
  .reg .b64 %at, %n, %s, %to, %index, %wide, %stride, %word, %offset, %found, %mine, %one;

  ld.param.u64 %at, [base];
  ld.param.u64 %n, [count];
  ld.param.u64 %s, [seed];
  ld.param.u64 %to, [wrong];
  cvta.to.global.u64 %at, %at;
  cvta.to.global.u64 %to, %to;
  mov.u64 %mine, 0;
  mov.u32 %width, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %index, %block, %width;
  cvt.u64.u32 %wide, %thread;
  add.u64 %index, %index, %wide;
  mul.wide.u32 %stride, %blocks, %width;
  setp.ge.u64 %done, %index, %n;
  @%done bra TELL;
NEXT:
  mul.lo.u64 %word, %index, 0x9E3779B97F4A7C15;
  add.u64 %word, %word, %s;
  shl.b64 %offset, %index, 3;
  add.u64 %offset, %offset, %at;
  ld.global.u64 %found, [%offset];
  setp.ne.u64 %differs, %found, %word;
  selp.u64 %one, 1, 0, %differs;
  add.u64 %mine, %mine, %one;
  add.u64 %index, %index, %stride;
  setp.lt.u64 %more, %index, %n;
  @%more bra NEXT;
TELL:
  setp.eq.u64 %clean, %mine, 0;
  @%clean bra END;
  atom.global.add.u64 %found, [%to], %mine;
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
