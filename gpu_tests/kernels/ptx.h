// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of vmm.kernels as PTX. Threads stride over 64-bit words, or
// over pairs of them.
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

.visible .entry vmm_copy(.param .u64 target, .param .u64 source, .param .u64 count)
{
  .reg .pred %done, %more;
  .reg .b32 %width, %block, %thread, %blocks;
  .reg .b64 %to, %from, %n, %index, %wide, %stride, %offset, %x, %y, %at;

  ld.param.u64 %to, [target];
  ld.param.u64 %from, [source];
  ld.param.u64 %n, [count];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;
  mov.u32 %width, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %index, %block, %width;
  cvt.u64.u32 %wide, %thread;
  add.u64 %index, %index, %wide;
  mul.wide.u32 %stride, %blocks, %width;
  shr.u64 %n, %n, 1;
  setp.ge.u64 %done, %index, %n;
  @%done bra END;
NEXT:
  shl.b64 %offset, %index, 4;
  add.u64 %at, %from, %offset;
  ld.global.v2.u64 {%x, %y}, [%at];
  add.u64 %at, %to, %offset;
  st.global.v2.u64 [%at], {%x, %y};
  add.u64 %index, %index, %stride;
  setp.lt.u64 %more, %index, %n;
  @%more bra NEXT;
END:
  ret;
}

.visible .entry vmm_triad(.param .u64 target, .param .u64 first, .param .u64 second,
                          .param .u64 count)
{
  .reg .pred %done, %more;
  .reg .b32 %width, %block, %thread, %blocks;
  .reg .b64 %to, %a, %b, %n, %index, %wide, %stride, %offset, %at;
  .reg .b64 %ax, %ay, %bx, %by;

  ld.param.u64 %to, [target];
  ld.param.u64 %a, [first];
  ld.param.u64 %b, [second];
  ld.param.u64 %n, [count];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %a, %a;
  cvta.to.global.u64 %b, %b;
  mov.u32 %width, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %index, %block, %width;
  cvt.u64.u32 %wide, %thread;
  add.u64 %index, %index, %wide;
  mul.wide.u32 %stride, %blocks, %width;
  shr.u64 %n, %n, 1;
  setp.ge.u64 %done, %index, %n;
  @%done bra END;
NEXT:
  shl.b64 %offset, %index, 4;
  add.u64 %at, %a, %offset;
  ld.global.v2.u64 {%ax, %ay}, [%at];
  add.u64 %at, %b, %offset;
  ld.global.v2.u64 {%bx, %by}, [%at];
  mul.lo.u64 %bx, %bx, 3;
  mul.lo.u64 %by, %by, 3;
  shl.b64 %ax, %ax, 1;
  shl.b64 %ay, %ay, 1;
  sub.u64 %bx, %bx, %ax;
  sub.u64 %by, %by, %ay;
  add.u64 %at, %to, %offset;
  st.global.v2.u64 [%at], {%bx, %by};
  add.u64 %index, %index, %stride;
  setp.lt.u64 %more, %index, %n;
  @%more bra NEXT;
END:
  ret;
}

.visible .entry vmm_gather(.param .u64 target, .param .u64 source, .param .u64 count)
{
  .reg .pred %done, %more;
  .reg .b32 %width, %block, %thread, %blocks;
  .reg .b64 %to, %from, %n, %mask, %index, %wide, %stride, %offset, %place, %high, %word;

  ld.param.u64 %to, [target];
  ld.param.u64 %from, [source];
  ld.param.u64 %n, [count];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;
  mov.u32 %width, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %index, %block, %width;
  cvt.u64.u32 %wide, %thread;
  add.u64 %index, %index, %wide;
  mul.wide.u32 %stride, %blocks, %width;
  sub.u64 %mask, %n, 1;
  setp.ge.u64 %done, %index, %n;
  @%done bra END;
NEXT:
  mul.lo.u64 %place, %index, 0x9E3779B97F4A7C15;
  and.b64 %place, %place, %mask;
  shr.u64 %high, %place, 15;
  xor.b64 %place, %place, %high;
  mul.lo.u64 %place, %place, 0xD1B54A32D192ED03;
  and.b64 %place, %place, %mask;
  shl.b64 %offset, %place, 3;
  add.u64 %offset, %offset, %from;
  ld.global.u64 %word, [%offset];
  shl.b64 %offset, %index, 3;
  add.u64 %offset, %offset, %to;
  st.global.u64 [%offset], %word;
  add.u64 %index, %index, %stride;
  setp.lt.u64 %more, %index, %n;
  @%more bra NEXT;
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
