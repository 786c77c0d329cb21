# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: what docs/c.md shows is what the tests compile and run.
# Method: each sample, without its two SPDX lines, stands in the page as it is.
#   PAGE  docs/c.md    SAMPLES  the folder of samples
file(READ "${PAGE}" page)
foreach(sample IN ITEMS first.c first.cpp first.py first.cu)
  file(READ "${SAMPLES}/${sample}" text)
  string(REGEX REPLACE "^[^\n]*SPDX[^\n]*\n[^\n]*SPDX[^\n]*\n" "" text "${text}")
  string(FIND "${page}" "\n${text}```" position)
  if(position EQUAL -1)
    message(SEND_ERROR "${PAGE} does not show ${sample} as it is:\n${text}")
  endif()
endforeach()
