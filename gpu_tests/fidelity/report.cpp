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

std::string line_of(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) {
  std::string text = "|";
  for (std::size_t i = 0; i < cells.size(); ++i)
    text += ' ' + cells[i] + std::string(widths[i] - cells[i].size(), ' ') + " |";
  return text + '\n';
}

std::string table_text(const table& rows) {
  if (rows.empty()) return {};
  std::vector<std::size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  std::string text = line_of(rows.front(), widths) + line_of(rule, widths);
  for (std::size_t i = 1; i < rows.size(); ++i) text += line_of(rows[i], widths);
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

std::string fixed(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string text_of(const page& from) {
  return "# " + from.title + "\n\n" + head_line(from.head) + ".\n\n" + from.words + "\n\n" +
         table_text(from.rows);
}

void publish(const settings& how, const page& made) {
  if (!how.markdown.empty()) write_file(how.markdown, text_of(made));
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
