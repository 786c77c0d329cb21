# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DPAGE=... -DOUT=... -P page_parts.cmake: writes a file of the program's with the page's
# text.
# The page is plain ASCII, so that a character is a byte.
file(READ "${PAGE}" text HEX)
string(LENGTH "${text}" length)
set(parts "")
set(count 0)
set(begin 0)
while(begin LESS length)
  string(SUBSTRING "${text}" ${begin} 24000 part)
  string(REGEX REPLACE "(................................)" "\\1\n" part "${part}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" part "${part}")
  string(REGEX REPLACE "([^\n]+)" "    \"\\1\"" part "${part}")
  string(APPEND parts "${part},\n")
  math(EXPR begin "${begin} + 24000")
  math(EXPR count "${count} + 1")
endwhile()
file(WRITE "${OUT}" "// Generated from tools/view/page.html.
#include <cstddef>

namespace vmm::tools {

extern const char* const page_parts[];
extern const std::size_t page_part_count;
const char* const page_parts[] = {
${parts}};
const std::size_t page_part_count = ${count};

}  // namespace vmm::tools
")
