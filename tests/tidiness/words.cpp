// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "words.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "tokens.hpp"

namespace tidy {
namespace {

bool is_library_code(std::string_view path) {
  const bool inside = path.starts_with("modules/") || path.starts_with("backends/");
  return inside && (path.ends_with(".cpp") || path.ends_with(".cppm") || path.ends_with(".hpp") ||
                    path.ends_with(".h"));
}

bool is_in(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && path.substr(folder.size()).starts_with('/');
}

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

bool refuses(const banned_word& rule, std::string_view name) {
  return says(name, rule.word) && std::ranges::find(rule.allowed, name) == rule.allowed.end();
}

std::string_view stem_of(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return path.substr(0, path.find('.'));
}

// The identifiers of a file, each with the first line that has it. The file's name is on line 1.
using identifiers = std::map<std::string_view, int>;

identifiers identifiers_of(const file& subject, const source& text) {
  identifiers found{{stem_of(subject.path), 1}};
  for (const token& each : text.tokens) {
    if (is_word(each.text)) found.try_emplace(each.text, each.line);
  }
  return found;
}

// The one that says the word, the first by name; the end when none does.
identifiers::const_iterator find_word(const identifiers& in, const banned_word& rule) {
  return std::ranges::find_if(in, [&](const auto& each) { return refuses(rule, each.first); });
}

bool is_exempt(const word_rules& rules, std::string_view word, std::string_view path) {
  return std::ranges::any_of(rules.exemptions, [&](const exemption& each) {
    return each.word == word && is_in(path, each.folder);
  });
}

}  // namespace

std::vector<finding> check_words(const file& subject, const word_rules& rules) {
  std::vector<finding> found;
  if (!is_library_code(subject.path)) return found;
  const source text = read_source(subject.text);
  const identifiers all = identifiers_of(subject, text);
  for (const banned_word& rule : rules.words) {
    if (is_exempt(rules, rule.word, subject.path)) continue;
    const auto said = find_word(all, rule);
    if (said == all.end()) continue;
    found.push_back({subject.path, said->second, "word",
                     std::string{said->first} + " says " + std::string{rule.word} + ": say " +
                         std::string{rule.instead}});
  }
  return found;
}

std::vector<finding> check_exemptions(const std::vector<file>& files, const word_rules& rules) {
  std::vector<bool> needed(rules.exemptions.size(), false);
  for (const file& subject : files) {
    if (!is_library_code(subject.path)) continue;
    const source text = read_source(subject.text);
    const identifiers all = identifiers_of(subject, text);
    for (std::size_t i = 0; i < needed.size(); ++i) {
      const exemption& each = rules.exemptions[i];
      if (needed[i] || !is_in(subject.path, each.folder)) continue;
      const auto rule = std::ranges::find(rules.words, each.word, &banned_word::word);
      needed[i] = rule != rules.words.end() && find_word(all, *rule) != all.end();
    }
  }
  std::vector<finding> found;
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (needed[i]) continue;
    found.push_back({"tests/tidiness/word_table.cpp", 1, "word",
                     "take the exemption of " + std::string{rules.exemptions[i].folder} + " from " +
                         std::string{rules.exemptions[i].word} + " out: nothing there says it"});
  }
  return found;
}

}  // namespace tidy
