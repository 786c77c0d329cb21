// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

module vmm.replay;

import vmm.std;
import vmm.trace;

namespace vmm::tools {
namespace {

/// The calls that every backend has: always listed, also with a count of 0.
constexpr std::array base_calls = {
    call::reserve, call::free_reservation, call::create, call::release, call::map,
    call::unmap,   call::set_access};

bool is_base(std::size_t kind) {
  return std::ranges::find(base_calls, static_cast<call>(kind)) != base_calls.end();
}

double per_event(double elapsed_ns, std::uint64_t events) {
  return events == 0 ? 0 : elapsed_ns / static_cast<double>(events);
}

void append_escaped(std::string& out, char c) {
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
  } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
    char text[8];
    std::snprintf(text, sizeof text, "\\u%04x",
                  static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += text;
  } else {
    out += c;
  }
}

/// Builds one flat JSON object.
class json_object {
 public:
  void put(const char* key, std::string value) {
    text_ += text_.empty() ? "{" : ", ";
    text_ += json_string(key) + ": " + std::move(value);
  }
  void put(const char* key, std::uint64_t value) { put(key, std::to_string(value)); }
  void put(const char* key, std::optional<double> value, int decimals) {
    put(key, value ? show_number(*value, decimals) : std::string("null"));
  }
  [[nodiscard]] std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string text_;
};

std::string calls_json(const call_counts& calls) {
  json_object out;
  for (std::size_t kind = 1; kind < calls.size(); ++kind)
    if (calls[kind] != 0 || is_base(kind)) out.put(name_of(static_cast<call>(kind)), calls[kind]);
  return out.text();
}

std::string times_json(const replay_report& report) {
  json_object out;
  for (std::size_t kind = 1; kind < report.driver_calls.size(); ++kind) {
    if (report.driver_calls[kind] != 0)
      out.put(name_of(static_cast<call>(kind)), report.driver_us_by_call[kind], 1);
  }
  return out.text();
}

/// The first failure as an object; null when there was none.
std::string failure_json(const failure_list& failures) {
  if (failures.count == 0) return "null";
  const error& why = failures.first.why;
  json_object out;
  out.put("event", failures.first.event);
  out.put("error", json_string(name_of(why.code)));
  out.put("call", json_string(name_of(why.where)));
  out.put("native", std::to_string(why.native));
  out.put("native_name", json_string(why.native_name));
  out.put("text", json_string(describe(why)));
  return out.text();
}

std::string notes_json(const std::vector<std::string>& notes) {
  std::string out = "[";
  for (const std::string& note : notes) out += (out.size() > 1 ? ", " : "") + json_string(note);
  return out + "]";
}

/// "  label ............ value"
std::string row(std::string label, const std::string& value) {
  constexpr std::size_t label_width = 28;
  label.resize(label_width, ' ');
  return "  " + label + value + "\n";
}

std::string calls_text(const call_counts& calls) {
  std::string out;
  for (std::size_t kind = 1; kind < calls.size(); ++kind) {
    if (calls[kind] == 0) continue;
    out += (out.empty() ? "" : ", ") + show_count(calls[kind]) + " " +
           name_of(static_cast<call>(kind));
  }
  return out.empty() ? "none" : out;
}

std::string time_text(const replay_report& report) {
  std::string out =
      row("wall time an event", show_number(report.ns_per_event(), 0) + " ns (first pass)");
  if (report.warm_passes_ns.empty()) return out;
  return out + row("wall time an event, warm",
                   show_number(*report.best_warm_ns_per_event(), 0) + " ns best, " +
                       show_number(*report.median_warm_ns_per_event(), 0) + " ns median of " +
                       std::to_string(report.warm_passes_ns.size()));
}

}  // namespace

double replay_report::ns_per_event() const noexcept {
  return per_event(first_pass_ns, event_count());
}

std::optional<double> replay_report::best_warm_ns_per_event() const {
  if (warm_passes_ns.empty()) return std::nullopt;
  return per_event(*std::ranges::min_element(warm_passes_ns), event_count());
}

std::optional<double> replay_report::median_warm_ns_per_event() const {
  if (warm_passes_ns.empty()) return std::nullopt;
  std::vector<double> sorted = warm_passes_ns;
  std::ranges::sort(sorted);
  const std::size_t middle = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return per_event(median, event_count());
}

double replay_report::ratio() const noexcept {
  if (peak_live_bytes == 0) return 0;
  return static_cast<double>(peak_reserved_bytes) / static_cast<double>(peak_live_bytes);
}

std::uint64_t replay_report::memory_call_count() const noexcept {
  std::uint64_t sum = 0;
  for (const call each : base_calls) sum += driver_calls[static_cast<std::size_t>(each)];
  return sum;
}

std::string to_json(const replay_report& report) {
  json_object out;
  out.put("trace", json_string(report.trace));
  out.put("backend", json_string(report.backend));
  out.put("policy", json_string(report.policy));
  out.put("events", report.event_count());
  out.put("allocations", report.allocation_count);
  out.put("frees", report.free_count);
  out.put("iterations", report.iteration_count);
  out.put("ns_per_event", report.ns_per_event(), 2);
  out.put("warm_passes", report.warm_passes_ns.size());
  out.put("warm_ns_per_event_best", report.best_warm_ns_per_event(), 2);
  out.put("warm_ns_per_event_median", report.median_warm_ns_per_event(), 2);
  out.put("peak_live_bytes", report.peak_live_bytes);
  out.put("peak_reserved_bytes", report.peak_reserved_bytes);
  out.put("first_pass_peak_reserved_bytes", report.first_pass_peak_reserved_bytes);
  out.put("ratio", report.ratio(), 6);
  out.put("device_peak_bytes", report.device_peak_bytes ? std::to_string(*report.device_peak_bytes)
                                                        : std::string("null"));
  out.put("driver_calls", calls_json(report.driver_calls));
  out.put("warm_driver_calls", calls_json(report.warm_driver_calls));
  out.put("driver_us", report.driver_us, 3);
  out.put("driver_us_by_call", report.driver_us_is_virtual ? "null" : times_json(report));
  out.put("driver_clock", report.driver_us_is_virtual ? "\"virtual\"" : "\"wall\"");
  out.put("failures", report.failures.count);
  out.put("first_failure", failure_json(report.failures));
  out.put("notes", notes_json(report.notes));
  return out.text();
}

std::string to_text(const failure_list& failures) {
  if (failures.count == 0) return "none";
  return show_count(failures.count) + "; the first at event " + show_count(failures.first.event) +
         ": " + describe(failures.first.why);
}

std::string to_text(const replay_report& report) {
  std::string out = "Replay of " + report.trace + " on the " + report.backend + " driver, policy " +
                    report.policy + "\n";
  out +=
      row("events", show_count(report.event_count()) + " (" + show_count(report.allocation_count) +
                        " allocations, " + show_count(report.free_count) + " frees)");
  out += time_text(report);
  out +=
      row("peak live", show_bytes(report.peak_live_bytes) + " (requests rounded up to 512 bytes)");
  out += row("peak reserved", show_bytes(report.peak_reserved_bytes) + " of physical memory" +
                                  (report.warm_passes_ns.empty()
                                       ? ""
                                       : ", " + show_bytes(report.first_pass_peak_reserved_bytes) +
                                             " in the first pass"));
  out += row("reserved over live", show_number(report.ratio(), 3));
  if (report.device_peak_bytes) {
    out += row("the device's own peak",
               show_bytes(*report.device_peak_bytes) + " less memory free on it");
  }
  out += row("driver calls", calls_text(report.driver_calls));
  if (!report.warm_passes_ns.empty())
    out += row("driver calls, warm passes", calls_text(report.warm_driver_calls));
  if (report.driver_us) {
    out += row("time in the driver",
               show_number(*report.driver_us / 1000, 2) + " ms" +
                   (report.driver_us_is_virtual ? " (virtual: what a real GPU's driver would take)"
                                                : " (measured)"));
  }
  out += row("failures", to_text(report.failures));
  for (const std::string& note : report.notes) out += "  note: " + note + "\n";
  return out;
}

std::string show_bytes(std::uint64_t size_bytes) {
  constexpr std::array units = {"KiB", "MiB", "GiB", "TiB"};
  if (size_bytes < 1024) return std::to_string(size_bytes) + " B";
  double value = static_cast<double>(size_bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.995 &&
         unit + 1 < units.size()) {  // what would print as 1024.00 is 1.00 of the next
    value /= 1024;
    ++unit;
  }
  return show_number(value, 2) + " " + units[unit];
}

std::string show_count(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t end = text.size(); end > 3; end -= 3) text.insert(end - 3, ",");
  return text;
}

std::string show_number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : to_utf8(text)) append_escaped(out, c);
  return out + "\"";
}

}  // namespace vmm::tools
