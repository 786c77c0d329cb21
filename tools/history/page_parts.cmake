# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DPAGE=... -DNAME=... -DOUT=... -P page_parts.cmake: writes a source file with the text of
# the page, in which shared.css and shared.js beside it stand in place of their marks.
# The page is plain ASCII: a character is a byte.
get_filename_component(folder "${PAGE}" DIRECTORY)
file(READ "${PAGE}" text)
file(READ "${folder}/shared.css" style)
file(READ "${folder}/shared.js" shared)
string(REPLACE "/*STYLE*/\n" "${style}" text "${text}")
string(REPLACE "/*SHARED*/\n" "${shared}" text "${text}")
string(HEX "${text}" text)
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
file(WRITE "${OUT}" "// Generated from tools/view.
#include <cstddef>

namespace vmm::tools {

extern const char* const ${NAME}_parts[];
extern const std::size_t ${NAME}_part_count;
const char* const ${NAME}_parts[] = {
${parts}};
const std::size_t ${NAME}_part_count = ${count};

}  // namespace vmm::tools
")
