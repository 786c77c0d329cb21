// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "words.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>

#include "tokens.hpp"

namespace tidy {
namespace {

constexpr std::array<std::string_view, area_count> area_names{"core", "adapters", "rest"};
constexpr std::string_view columns = "word,instead,scope,allowed,core,adapters,rest";
constexpr std::size_t places_shown_max = 8;

struct place {
  std::string_view path;
  int line = 0;
  std::string_view text;
};

std::size_t area_of(std::string_view path) {
  const auto is_in = [&](std::string_view folder) { return path.starts_with(folder); };
  if (is_in("modules/") || is_in("backends/")) return 0;
  return is_in("adapters/c/") || is_in("adapters/preload/") || is_in("adapters/python/src/") ? 1
                                                                                             : 2;
}

bool ends_with_one(std::string_view path, std::span<const std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return path.ends_with(end); });
}

bool is_cpp(std::string_view path) {
  static constexpr std::array<std::string_view, 6> ends{".cpp", ".cppm", ".hpp", ".h", ".c", ".cu"};
  return ends_with_one(path, ends);
}

bool is_script(std::string_view path) {
  static constexpr std::array<std::string_view, 4> ends{".py", ".sh", ".cmake", "CMakeLists.txt"};
  return path == "run" || ends_with_one(path, ends);
}

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string lowered(std::string_view text) {
  std::string low{text};
  std::ranges::transform(low, low.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return low;
}

// ---- the list -----------------------------------------------------------------------------------

// The cells of a line; one in quotes may have commas.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (const char c : line) {
    if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

std::vector<std::string> words_in(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool read_count(const std::string& cell, std::size_t& into) {
  const char* const end = cell.data() + cell.size();
  return !cell.empty() && std::from_chars(cell.data(), end, into).ptr == end;
}

// Whether the cells are a word's; what they say goes to `into`.
bool read_word(const std::vector<std::string>& cells, banned_word& into) {
  if (cells.size() != 4 + area_count || cells[0].empty() || cells[1].empty()) return false;
  if (cells[2] != "name" && cells[2] != "prose") return false;
  into.word = cells[0];
  into.instead = cells[1];
  into.is_prose = cells[2] == "prose";
  into.allowed = words_in(cells[3]);
  for (std::size_t area = 0; area < area_count; ++area) {
    if (!read_count(cells[4 + area], into.limits[area])) return false;
  }
  return lowered(into.word) == into.word;
}

// ---- where words stand --------------------------------------------------------------------------

// Whether `word` stands in `name` between underscores or at an end, with or without an s behind.
bool says(std::string_view name, std::string_view word) {
  for (std::size_t at = name.find(word); at != std::string_view::npos;
       at = name.find(word, at + 1)) {
    std::size_t end = at + word.size();
    if (end < name.size() && name[end] == 's') ++end;
    const bool begins = at == 0 || name[at - 1] == '_';
    if (begins && (end == name.size() || name[end] == '_')) return true;
  }
  return false;
}

std::string_view stem_of(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return path.substr(0, path.find('.'));
}

// The identifiers of an area in lower case, each with the first place that has it.
struct identifiers {
  std::map<std::string, place, std::less<>> first;
  std::unordered_set<std::string_view> seen;  // as they are written
};

void add_identifiers(const file& subject, identifiers& into) {
  if (!is_cpp(subject.path)) return;
  const auto add = [&](std::string_view name, int line) {
    if (!into.seen.insert(name).second) return;
    into.first.try_emplace(lowered(name), place{subject.path, line, name});
  };
  add(stem_of(subject.path), 1);
  const source text = read_source(subject.text);
  for (const token& each : text.tokens) {
    if (is_word(each.text)) add(each.text, each.line);
  }
}

std::vector<place> find_names(const identifiers& in, const banned_word& rule) {
  std::vector<place> found;
  for (const auto& [name, first] : in.first) {
    const bool is_allowed = std::ranges::find(rule.allowed, name) != rule.allowed.end();
    if (!is_allowed && says(name, rule.word)) found.push_back(first);
  }
  return found;
}

// A file's prose in lower case, one space between words, and where each line of the file begins.
struct prose {
  std::string_view path;
  std::string text;
  std::vector<std::size_t> begins;  // in `text`
};

prose read_prose(const file& subject) {
  prose read{subject.path, {}, {0}};
  for (const char c : prose_of(subject)) {
    if (c == '\n') read.begins.push_back(read.text.size());
    if (c != '\n' && c != ' ') {
      read.text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!read.text.empty() && read.text.back() != ' ') {
      read.text += ' ';
    }
  }
  return read;
}

void find_phrase(const prose& in, const banned_word& rule, std::vector<place>& into) {
  const std::string_view text = in.text;
  for (std::size_t at = text.find(rule.word); at != std::string_view::npos;
       at = text.find(rule.word, at + 1)) {
    const std::size_t end = at + rule.word.size();
    if (at > 0 && (in_word(text[at - 1]) || text[at - 1] == '-')) continue;
    if (end < text.size() && in_word(text[end])) continue;
    const auto line = std::ranges::upper_bound(in.begins, at) - in.begins.begin();
    into.push_back({in.path, static_cast<int>(line), rule.word});
  }
}

// ---- prose --------------------------------------------------------------------------------------

// Puts spaces over everything but prose, so that places stay.
void blank(std::string& text, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < std::min(end, text.size()); ++at) {
    if (text[at] != '\n') text[at] = ' ';
  }
}

// Code in backticks, and what stands between brackets behind a link's text.
void blank_code(std::string& text) {
  for (std::size_t at = text.find('`'); at != std::string::npos; at = text.find('`', at)) {
    const std::size_t end = text.find('`', at + 1);
    if (end == std::string::npos || end - at > 400) {
      ++at;
      continue;
    }
    blank(text, at, end + 1);
    at = end + 1;
  }
  for (std::size_t at = text.find("]("); at != std::string::npos; at = text.find("](", at + 1))
    blank(text, at, std::min(text.find(')', at), at + 200) + 1);
}

std::string prose_of_page(std::string text) {
  bool is_code = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const bool is_fence = text.compare(at, 3, "```") == 0 || text.compare(at, 3, "~~~") == 0;
    if (is_code || is_fence || text.compare(at, 4, "    ") == 0) blank(text, at, end);
    is_code = is_code != is_fence;
    at = end + 1;
  }
  blank_code(text);
  return text;
}

std::size_t end_of_raw(std::string_view text, std::size_t at) {
  const std::size_t open = std::min(text.find('(', at), text.size());
  const std::string mark = ")" + std::string{text.substr(at + 2, open - at - 2)} + "\"";
  return std::min(text.find(mark, open), text.size() - mark.size()) + mark.size();
}

// Where a comment or a literal of C++ that begins at `at` ends; `at`: none begins there.
std::size_t end_of_piece(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at);
  const bool is_inside = at > 0 && in_word(text[at - 1]);  // of a word or a number: 1'000
  if (rest.starts_with("//")) return std::min(text.find('\n', at), text.size());
  if (rest.starts_with("/*")) return std::min(text.find("*/", at), text.size());
  if (rest.starts_with("R\"") && !is_inside) return end_of_raw(text, at);
  if (rest.front() != '"' && (rest.front() != '\'' || is_inside)) return at;
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != rest.front() && text[end] != '\n')
    end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

// The marks of a comment, at its start and at the start of each of its lines.
void blank_marks(std::string& text, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end; at = std::min(text.find('\n', at), text.size()) + 1)
    blank(text, at, std::min(text.find_first_not_of("/*!< ", at), end));
}

std::string prose_of_cpp(const std::string& source) {
  std::string text = source;
  for (std::size_t at = 0; at < source.size();) {
    const std::size_t begin = std::min(source.find_first_of("/\"'R", at), source.size());
    blank(text, at, begin);
    if (begin == source.size()) break;
    at = begin;
    const std::size_t end = std::max(end_of_piece(source, at), at + 1);
    if (end == at + 1) blank(text, at, end);
    if (source[at] == '/') blank_marks(text, at, end);
    at = end;
  }
  blank_code(text);
  return text;
}

std::string prose_of_script(std::string text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::size_t mark = std::min(text.find('#', at), end);
    blank(text, at, mark + 1);
    at = end + 1;
  }
  blank_code(text);
  return text;
}

}  // namespace

std::string prose_of(const file& subject) {
  if (subject.path.ends_with(".md")) return prose_of_page(subject.text);
  if (is_cpp(subject.path)) return prose_of_cpp(subject.text);
  return is_script(subject.path) ? prose_of_script(subject.text) : std::string{};
}

word_list read_words(const file& list) {
  word_list read{list.path, {}, {}};
  int line = 0;
  for (std::size_t at = 0; at < list.text.size();) {
    const std::size_t end = std::min(list.text.find('\n', at), list.text.size());
    const std::string_view text = std::string_view{list.text}.substr(at, end - at);
    at = end + 1;
    ++line;
    if (text.starts_with('#') || text == columns) continue;
    banned_word word;
    word.line = line;
    if (read_word(cells_of(text), word)) {
      read.words.push_back(std::move(word));
    } else {
      read.mistakes.push_back({list.path, line, "word", "a line is " + std::string{columns}});
    }
  }
  return read;
}

namespace {

// All places of one word, by area.
using word_places = std::array<std::vector<place>, area_count>;

void compare(const word_list& list, const banned_word& rule, const word_places& places,
             word_report& into) {
  for (std::size_t area = 0; area < area_count; ++area) {
    const std::size_t count = places[area].size();
    const std::size_t limit = rule.limits[area];
    const std::string where = " (" + std::string{rule.is_prose ? "prose" : "name"} + ", " +
                              std::string{area_names[area]} + ")";
    if (count < limit) {
      into.fewer.push_back(rule.word + where + ": " + std::to_string(count) + " of " +
                           std::to_string(limit));
    }
    if (count <= limit) continue;
    std::string what = rule.word + where + ": " + std::to_string(count) + " where " +
                       std::to_string(limit) + " may be; say " + rule.instead + ". It stands in";
    for (std::size_t i = 0; i < std::min(count, places_shown_max); ++i) {
      const place& each = places[area][i];
      what += " " + std::string{each.path} + ":" + std::to_string(each.line);
      if (!rule.is_prose) what += " (" + std::string{each.text} + ")";
    }
    into.found.push_back({list.path, rule.line, "word", what});
  }
}

}  // namespace

word_report check_words(const std::vector<file>& files, const word_list& list) {
  std::array<identifiers, area_count> names;
  std::array<std::vector<prose>, area_count> texts;
  for (const file& each : files) {
    add_identifiers(each, names[area_of(each.path)]);
    texts[area_of(each.path)].push_back(read_prose(each));
  }
  word_report report{list.mistakes, {}};
  for (const banned_word& rule : list.words) {
    word_places places;
    for (std::size_t area = 0; area < area_count; ++area) {
      if (!rule.is_prose) places[area] = find_names(names[area], rule);
      for (const prose& each : texts[area]) {
        if (rule.is_prose) find_phrase(each, rule, places[area]);
      }
    }
    compare(list, rule, places, report);
  }
  return report;
}

}  // namespace tidy
