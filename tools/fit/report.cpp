// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - an answer as text and as JSON.
module vmm.fit;

import vmm.recording;
import vmm.replay;
import vmm.std;
import vmm.trace;

namespace vmm::tools {

namespace {

[[nodiscard]] const char* name_of_form(recording_form form) noexcept {
  constexpr std::array names = {"PyTorch snapshot", "RMM log", "vmm trace", "vmm history"};
  return names[static_cast<std::size_t>(form)];
}

[[nodiscard]] std::string line_of(const recording& from, std::uint32_t frame) {
  const recorded_frame& at = from.frames[frame];
  return from.text(at.file) + ":" + std::to_string(at.line) + " " + from.text(at.function);
}

// The frames of a stack, the innermost first; those of Python alone where it has some.
[[nodiscard]] std::vector<std::string> lines_of(const recording& from, std::uint32_t stack) {
  std::vector<std::string> out;
  std::vector<std::string> others;
  const recorded_range& range = from.stacks[stack];
  for (std::uint64_t i = 0; i < range.count; ++i) {
    const std::uint32_t frame = from.stack_frames[range.first + i];
    const bool is_python = from.text(from.frames[frame].file).ends_with(".py");
    (is_python ? out : others).push_back(line_of(from, frame));
  }
  return out.empty() ? others : out;
}

class json_object {
 public:
  json_object& add(const char* name, const std::string& raw) {
    text_ += (text_.empty() ? "" : ", ") + json_string(name) + ": " + raw;
    return *this;
  }
  json_object& add(const char* name, std::uint64_t number) {
    return add(name, std::to_string(number));
  }
  [[nodiscard]] std::string end() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

[[nodiscard]] std::string list_of(const std::vector<std::string>& each) {
  std::string out;
  for (const std::string& one : each) out += (out.empty() ? "" : ", ") + one;
  return "[" + out + "]";
}

[[nodiscard]] std::string quoted_list(const std::vector<std::string>& each) {
  std::vector<std::string> out;
  for (const std::string& one : each) out.push_back(json_string(one));
  return list_of(out);
}

[[nodiscard]] std::string check_json(const fit_answer& found) {
  if (!found.check) return "null";
  const fit_check& of = *found.check;
  return json_object()
      .add("allocator", json_string(name_of(of.allocator)))
      .add("recorded_held_bytes", of.recorded_held_bytes)
      .add("predicted_held_bytes", of.predicted_held_bytes)
      .add("segment_events", of.recorded_count)
      .add("replayed_segment_events", of.replayed_count)
      .add("same_segment_events", of.same_count)
      .add("error", show_number(of.error, 4))
      .end();
}

[[nodiscard]] std::string allocators_json(const fit_answer& found) {
  json_object out;
  for (std::size_t i = 0; i < fit_allocator_count; ++i) {
    const auto which = static_cast<fit_allocator>(i);
    const fit_figure& of = found.figures[i];
    json_object one;
    if (which == fit_allocator::async) {
      one.add("held_bytes_low", of.held_low_bytes).add("held_bytes_high", of.held_bytes);
    } else {
      one.add("held_bytes", of.held_bytes)
          .add("error", show_number(of.error, 4))
          .add("error_source", json_string(name_of(of.source)));
    }
    out.add(name_of(which), one.end());
  }
  return out.end();
}

[[nodiscard]] std::string fits_json(const fit_answer& found) {
  json_object out;
  for (const fit_device_answer& each : found.devices) {
    json_object one;
    for (std::size_t i = 0; i < fit_allocator_count; ++i)
      one.add(name_of(static_cast<fit_allocator>(i)), json_string(name_of(each.fits[i])));
    out.add(each.device.name.c_str(), one.end());
  }
  return out.end();
}

// Of the devices on which an allocator fits only by retries, the counts by allocator.
[[nodiscard]] std::string retries_json(const fit_answer& found) {
  json_object out;
  for (const fit_device_answer& each : found.devices) {
    json_object one;
    bool is_any = false;
    for (std::size_t i = 0; i < fit_allocator_count; ++i) {
      if (each.retries[i] == 0) continue;
      is_any = true;
      one.add(name_of(static_cast<fit_allocator>(i)), each.retries[i]);
    }
    if (is_any) out.add(each.device.name.c_str(), one.end());
  }
  return out.end();
}

[[nodiscard]] std::string owners_json(const recording& from, const fit_answer& found) {
  std::vector<std::string> out;
  for (const fit_owner& each : found.owners) {
    const recorded_context& context = from.contexts[each.context];
    out.push_back(json_object()
                      .add("bytes", each.size_bytes)
                      .add("count", each.count)
                      .add("tag", json_string(from.text(context.tag)))
                      .add("stack", quoted_list(lines_of(from, context.stack)))
                      .end());
  }
  return list_of(out);
}

[[nodiscard]] std::string percent(double part) { return show_number(100 * part, 1) + " %"; }

[[nodiscard]] std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// What precedes a figure if an earlier peak is lost.
[[nodiscard]] const char* at_least(const fit_answer& found) {
  if (found.has_lost_frees) return "about ";
  return found.has_events && !found.is_peak_known ? "at least " : "";
}

// Of a column of names, with two spaces behind the longest.
template <class Answer>
[[nodiscard]] std::size_t name_width(const std::vector<Answer>& devices) {
  std::size_t width = 12;
  for (const Answer& each : devices) width = std::max(width, each.device.name.size() + 2);
  return width;
}

[[nodiscard]] std::string held_text(const fit_answer& found, std::size_t i) {
  const fit_figure& of = found.figures[i];
  const std::string least = at_least(found);
  if (static_cast<fit_allocator>(i) == fit_allocator::async)
    return least + show_bytes(of.held_low_bytes) + " to " + show_bytes(of.held_bytes) + " (a band)";
  constexpr std::array sources = {"check", "no check", "addresses", "allowance", "batch"};
  return least + show_bytes(of.held_bytes) + ", error " + percent(of.error) + " (" +
         sources[static_cast<std::size_t>(of.source)] + ")";
}

// The smallest device with the result "yes".
[[nodiscard]] std::string smallest_text(const fit_answer& found, std::size_t i) {
  if (!found.is_peak_known) return "not known";
  const fit_device_answer* least = nullptr;
  for (const fit_device_answer& each : found.devices) {
    const bool is_less = least == nullptr || each.device.size_bytes < least->device.size_bytes;
    if (each.fits[i] == fit_verdict::yes && is_less) least = &each;
  }
  return least == nullptr ? "none of these" : one_line(least->device.name);
}

// "native 24GiB 3, 40GiB 1; expandable 24GiB 12" with its meaning, or nothing.
[[nodiscard]] std::string retries_text(const fit_answer& found) {
  std::string out;
  for (std::size_t i = 0; i < fit_allocator_count; ++i) {
    std::string one;
    for (const fit_device_answer& each : found.devices) {
      if (each.retries[i] != 0)
        one += (one.empty() ? " " : ", ") + one_line(each.device.name) + " " +
               show_count(each.retries[i]);
    }
    if (!one.empty())
      out += (out.empty() ? "" : "; ") + std::string(name_of(static_cast<fit_allocator>(i))) + one;
  }
  if (out.empty()) return "";
  return "fits after releasing cached memory, and the retries for it: " + out + "\n";
}

// Which result the exit code is, if a device was named.
[[nodiscard]] std::string code_text(int code, const fit_allocator judged) {
  constexpr std::array meanings = {"fits", "does not fit", "is within the error, or not known"};
  return "exit code " + std::to_string(code) + ": " + name_of(judged) + " " +
         meanings[static_cast<std::size_t>(code)] + "\n";
}

[[nodiscard]] std::string owners_text(const recording& from, const fit_answer& found) {
  std::string out = found.has_events ? "live at the peak:\n" : "live:\n";
  for (const fit_owner& each : found.owners) {
    const recorded_context& context = from.contexts[each.context];
    const std::vector<std::string> lines = lines_of(from, context.stack);
    const std::string& tag = from.text(context.tag);
    out += "  " + padded(show_bytes(each.size_bytes), 12) + padded(show_count(each.count), 8) +
           (lines.empty() ? "no stack in the file" : one_line(lines.front())) +
           (tag.empty() ? "" : " [" + one_line(tag) + "]") + "\n";
  }
  return out;
}

}  // namespace

std::string to_json(const std::string& path, const recording& from, const fit_answer& found) {
  json_object beside;
  beside.add("bytes", found.beside_bytes);
  beside.add("available_at_oom_bytes",
             found.available_at_oom_bytes ? std::to_string(*found.available_at_oom_bytes) : "null");
  return json_object()
      .add("file", json_string(path))
      .add("form", json_string(name_of_form(from.form)))
      .add("device", found.device)
      .add("devices", found.device_count)
      .add("requests", found.request_count)
      .add("allocations", found.allocation_count)
      .add("peak_live_bytes", found.peak_live_bytes)
      .add("peak_request", found.peak_index)
      .add("is_peak_known", found.is_peak_known ? "true" : "false")
      .add("recorded_allocator",
           found.is_recorded_known ? json_string(name_of(found.recorded)) : "null")
      .add("judged_allocator", json_string(name_of(found.judged)))
      .add("exit_code", static_cast<std::uint64_t>(exit_code_of(found)))
      .add("self_check", check_json(found))
      .add("allocators", allocators_json(found))
      .add("beside", beside.end())
      .add("fits", fits_json(found))
      .add("retries", retries_json(found))
      .add("live_at_peak", owners_json(from, found))
      .add("notes", quoted_list(found.notes))
      .end();
}

std::string to_json(const batch_answer& found) {
  json_object devices;
  json_object fits;
  for (const batch_device_answer& each : found.devices) {
    json_object limits;
    json_object verdicts;
    for (std::size_t i = 0; i < fit_allocator_count; ++i) {
      const batch_limit& of = each.limits[i];
      const char* const name = name_of(static_cast<fit_allocator>(i));
      limits.add(name,
                 json_object().add("low", of.low).add("best", of.best).add("high", of.high).end());
      verdicts.add(name, json_string(name_of(each.fits[i])));
    }
    devices.add(each.device.name.c_str(), limits.end());
    fits.add(each.device.name.c_str(), verdicts.end());
  }
  return json_object()
      .add("largest_batch", devices.end())
      .add("fits", fits.end())
      .add("judged_allocator", json_string(name_of(found.judged)))
      .add("exit_code", static_cast<std::uint64_t>(exit_code_of(found)))
      .add("is_peak_known", found.is_peak_known ? "true" : "false")
      .add("requests_by_line", found.line_count)
      .add("requests_constant", found.constant_count)
      .add("requests_inexact", found.inexact_count)
      .add("requests_unmatched", found.unmatched_count)
      .add("requests_per_iteration", found.iteration_length)
      .add("guess_from", found.guess_from)
      .add("notes", quoted_list(found.notes))
      .end();
}

std::string to_text(const batch_answer& found) {
  std::string out = "largest batch (with 3 % less memory, with all, with 3 % more):\n";
  const auto cell = [&](const batch_limit& of, std::size_t i) {
    const std::string name = std::string(name_of(static_cast<fit_allocator>(i))) + " ";
    if (of.high == 0) return name + "none";
    return name + std::to_string(of.low) + ", " + std::to_string(of.best) + ", " +
           std::to_string(of.high) + (of.best >= found.guess_from ? " (a guess)" : "");
  };
  std::size_t width = 28;
  for (const batch_device_answer& each : found.devices) {
    for (std::size_t i = 0; i < fit_allocator_count; ++i)
      width = std::max(width, cell(each.limits[i], i).size());
  }
  for (const batch_device_answer& each : found.devices) {
    out += "  " + padded(one_line(each.device.name), name_width(found.devices));
    for (std::size_t i = 0; i < fit_allocator_count; ++i)
      out += padded(cell(each.limits[i], i), width + 2);
    while (out.ends_with(' ')) out.pop_back();
    out += "\n";
  }
  out += "requests: " + show_count(found.line_count) + " grow by a line, " +
         show_count(found.constant_count) + " stay, " + show_count(found.inexact_count) +
         " are not exact, " + show_count(found.unmatched_count) + " have no match\n" +
         (found.iteration_length == 0
              ? "iterations differ, or do not repeat: the whole recordings are used\n"
              : "an iteration has " + show_count(found.iteration_length) + " requests\n");
  for (const std::string& each : found.notes) out += "note: " + one_line(each) + "\n";
  return out + "batch 1: " + code_text(exit_code_of(found), found.judged);
}

namespace {

[[nodiscard]] std::string devices_text(const fit_answer& found) {
  std::string out = "devices:\n";
  for (const fit_device_answer& each : found.devices) {
    out += "  " + padded(one_line(each.device.name), name_width(found.devices));
    for (std::size_t i = 0; i < fit_allocator_count; ++i) {
      const bool is_known = found.is_peak_known || each.fits[i] == fit_verdict::no;
      out += padded(std::string(name_of(static_cast<fit_allocator>(i))) + " " +
                        (is_known ? name_of(each.fits[i]) : "not known"),
                    25);
    }
    while (out.ends_with(' ')) out.pop_back();
    out += "\n";
  }
  return out + retries_text(found);
}

}  // namespace

std::string to_text(const std::string& path, const recording& from, const fit_answer& found) {
  std::string out = one_line(path) + ": " + name_of_form(from.form) + ", device " +
                    std::to_string(found.device) + " of " + std::to_string(found.device_count) +
                    ", " + show_count(found.allocation_count) + " allocations\n";
  out += found.has_events ? "most live at once: " : "live when the file was written: ";
  out += at_least(found) + show_bytes(found.peak_live_bytes) + "\n";
  out += found.has_events ? "memory held at the most, and the smallest device that it fits:\n"
                          : "memory held for that, without the peak before:\n";
  for (std::size_t i = 0; i < fit_allocator_count; ++i)
    out += "  " + padded(name_of(static_cast<fit_allocator>(i)), 12) +
           padded(held_text(found, i), found.is_peak_known ? 44 : 52) + smallest_text(found, i) +
           "\n";
  out += devices_text(found);
  out += "beside the allocator: " + show_bytes(found.beside_bytes) + " of each device\n";
  if (found.available_at_oom_bytes)
    out += "when it ran out of memory, the allocator could have " +
           show_bytes(*found.available_at_oom_bytes) + "\n";
  if (found.check) {
    const fit_check& of = *found.check;
    out += std::string("check: ") + name_of(of.allocator) + " replayed holds " +
           show_bytes(of.predicted_held_bytes) + ", the file says " +
           show_bytes(of.recorded_held_bytes) + ": error " + percent(of.error) + "; " +
           show_count(of.same_count) + " of " + show_count(of.recorded_count) +
           " segment events are the same\n";
  }
  out += owners_text(from, found);
  for (const std::string& each : found.notes) out += "note: " + one_line(each) + "\n";
  if (found.has_named_devices) out += code_text(exit_code_of(found), found.judged);
  return out;
}

}  // namespace vmm::tools
