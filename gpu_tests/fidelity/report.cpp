// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0

#include "program.hpp"

namespace fidelity {
namespace {

std::string today() {
  const auto day = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date{day};
  char text[32];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  return text;
}

std::string line_of(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& cell : cells) text += ' ' + cell + " |";
  return text + '\n';
}

std::string table_text(const table& rows) {
  if (rows.empty()) return {};
  std::string text =
      line_of(rows.front()) + line_of(std::vector<std::string>(rows.front().size(), "---"));
  for (const auto& row : std::span(rows).subspan(1)) text += line_of(row);
  return text;
}

std::string head_line(const report_head& head) {
  return today() + ", " + head.device + ", driver " + head.driver;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) stop("cannot write " + path);
}

}  // namespace

void publish(const settings& how, const page& made) {
  if (how.markdown.empty()) return;
  write_file(how.markdown, "# " + made.title + "\n\n" + head_line(made.head) + ".\n\n" +
                               made.words + "\n\n" + table_text(made.rows));
}

answers read_answers(const std::string& path) {
  answers found;
  std::ifstream file(path);
  if (!file) stop("cannot read " + path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t tab = line.find('\t');
    if (line.starts_with('#') || tab == std::string::npos) continue;
    found[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return found;
}

void write_answers(const std::string& path, const report_head& head,
                   const std::vector<std::pair<std::string, std::string>>& lines) {
  std::string text = "# A device's result of each probe of vmm-fidelity: id, tab, result.\n# " +
                     head_line(head) + "\n# Written by: vmm-fidelity probes --record FILE\n";
  for (const auto& [id, answer] : lines) text += id + '\t' + answer + '\n';
  write_file(path, text);
}

}  // namespace fidelity
