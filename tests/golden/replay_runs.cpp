// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The program vmm-replay over the shipped traces, on the fake driver, without the library's
// environment variables: the default pool over all of them, the other policies over ten. Its
// JSON is read by name: what it says besides changes nothing here.
#include "runs.hpp"

#include <filesystem>
#include <map>
#include <regex>

namespace golden {

#ifdef VMM_REPLAY_PROGRAM
namespace {

// All but wall times, and what is the same in all lines.
constexpr std::string_view figures[] = {
    "events", "allocations", "frees",    "iterations", "peak_live_bytes", "peak_reserved_bytes",
    "ratio",  "driver_us",   "failures", "notes"};

std::string output_of(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 4096> part{};
  for (std::size_t count = 1; count != 0;) {
    count = std::fread(part.data(), 1, part.size(), pipe);
    out.append(part.data(), count);
  }
  return pclose(pipe) == -1 ? std::string{} : out;
}

// Those of the one line that a replay prints, as written; of an inner object by "outer.inner".
std::map<std::string, std::string> members_of(const std::string& text) {
  static const std::regex member(R"re("(\w+)": (\{|"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^,{}\]]+)|\})re");
  std::map<std::string, std::string> out;
  std::string outer;
  for (std::sregex_iterator each(text.begin(), text.end(), member), end; each != end; ++each) {
    const std::string name = outer + each->str(1);
    const std::string value = each->str(2);
    if (value == "{" || value.empty()) {
      outer = value.empty() ? "" : name + ".";
    } else {
      out.emplace(name, value);
    }
  }
  return out;
}

// Recorded to judge the default pool, which was chosen without them; a replay of each under every
// policy would cost more processor time than it could find.
constexpr std::string_view of_the_pool_alone[] = {"agents",    "drafts",    "folding", "molecules",
                                                  "pictures",  "points",    "rays",    "search",
                                                  "recommend", "sentences", "video",   "volumes"};

bool is_replayed(std::string_view trace, std::string_view policy) {
  return policy == "pool" ||
         std::ranges::find(of_the_pool_alone, trace) == std::ranges::end(of_the_pool_alone);
}

std::vector<std::string> trace_names() {
  std::vector<std::string> out;
  constexpr std::string_view ending = ".trace.gz";
  for (const auto& each : std::filesystem::directory_iterator(VMM_TRACES_FOLDER)) {
    const std::string file = each.path().filename().string();
    if (file.ends_with(ending)) out.push_back(file.substr(0, file.size() - ending.size()));
  }
  std::ranges::sort(out);
  return out;
}

row replay(const std::string& trace, std::string_view policy) {
  row out;
  out.name = std::string(policy) + " " + trace;
  const std::string text =
      output_of("env -i '" VMM_REPLAY_PROGRAM "' '" VMM_TRACES_FOLDER "/" + trace +
                ".trace.gz' --backend fake --json --policy " + std::string(policy));
  const std::map<std::string, std::string> said = members_of(text);
  for (const std::string_view name : figures) {
    const auto found = said.find(std::string(name));
    if (found == said.end()) continue;
    std::string value = found->second;
    std::ranges::replace(value, ' ', '_');  // of the notes
    out.figures.push_back({std::string(name), std::move(value)});
  }
  for (const auto& [name, value] : said) {
    if (name.starts_with(call_prefix) && value != "0") out.figures.push_back({name, value});
  }
  return out;
}

}  // namespace

std::string why_no_replays() { return {}; }

table run_replays(std::string_view policy) {
  table out;
  for (const std::string& trace : trace_names())
    if (is_replayed(trace, policy)) out.push_back(replay(trace, policy));
  return out;
}

#else
std::string why_no_replays() {
  return "replays take minutes where nothing is optimised: the release preset runs them";
}

table run_replays(std::string_view) { return {}; }
#endif

}  // namespace golden
