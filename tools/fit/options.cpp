// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - devices by name, and PyTorch's options from a text and from a recording.
module vmm.fit;

import vmm.recording;
import vmm.std;

namespace vmm::tools {

namespace {

struct named_device {
  std::string_view name;
  std::uint64_t size_mib;
};
// Memory as nvidia-smi shows it.
constexpr std::array named_devices = {
    named_device{"T4-16", 15360},      named_device{"V100-32", 32768},
    named_device{"RTX4090-24", 24564}, named_device{"L4-24", 23034},
    named_device{"A100-40", 40960},    named_device{"L40S-48", 46068},
    named_device{"A100-80", 81920},    named_device{"H100-80", 81559},
    named_device{"H100-94", 95830},    named_device{"H200-141", 143771}};

constexpr std::array<std::uint64_t, 7> usual_gib = {16, 24, 40, 48, 80, 94, 141};

struct unit {
  std::string_view suffix;
  std::uint64_t size_bytes;
};
constexpr std::array units = {
    unit{"GiB", std::uint64_t{1} << 30}, unit{"MiB", std::uint64_t{1} << 20},
    unit{"TiB", std::uint64_t{1} << 40}, unit{"GB", 1'000'000'000}, unit{"MB", 1'000'000}};

[[nodiscard]] std::optional<double> read_real(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc{} || stop != end || text.empty() || !(value >= 0)) return std::nullopt;
  return value;
}

[[nodiscard]] std::optional<bool> read_truth(std::string_view text) {
  if (text == "True" || text == "true" || text == "1") return true;
  if (text == "False" || text == "false" || text == "0") return false;
  return std::nullopt;
}

// "256:1,512:2,>:4" without its brackets, or one number for all.
[[nodiscard]] bool read_divisions(std::string_view text, caching_options& into) {
  if (const auto one = read_real(text); one && *one <= 1e6) {
    into.roundup_divisions.fill(static_cast<std::uint32_t>(*one));
    return true;
  }
  std::size_t first = 0;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) return false;
    const auto divisions = read_real(entry.substr(colon + 1));
    const auto size_mib = read_real(entry.substr(0, colon));
    const bool is_rest = entry.substr(0, colon) == ">";
    if (!divisions || (!size_mib && !is_rest) || *divisions > 1e6) return false;
    std::size_t last = into.roundup_divisions.size() - 1;
    if (!is_rest) {
      const double least = std::max(*size_mib, 1.0);
      last = std::min<std::size_t>(static_cast<std::size_t>(std::log2(least)), last);
    }
    // The first key also stands for what is smaller, and each for what follows up to the next.
    for (std::size_t i = is_rest ? first : std::min(first, last); i <= last; ++i)
      into.roundup_divisions[i] = static_cast<std::uint32_t>(*divisions);
    first = last + 1;
  }
  return true;
}

[[nodiscard]] std::string wrong_value(std::string_view name, std::string_view value) {
  return std::string(name) + " does not take '" + std::string(value) + "'";
}

[[nodiscard]] std::string read_entry(std::string_view name, std::string_view value,
                                     caching_options& into) {
  const auto number = read_real(value);
  const auto truth = read_truth(value);
  const auto bytes = [&] { return static_cast<std::uint64_t>(*number * 1048576); };
  if (name == "expandable_segments" && truth) {
    into.expandable_segments = *truth;
  } else if (name == "max_split_size_mb" && number && *number <= 1e9) {
    into.max_split_bytes = bytes();
  } else if (name == "max_non_split_rounding_mb" && number && *number <= 1e9) {
    into.max_non_split_rounding_bytes = bytes();
  } else if (name == "large_segment_size_mb" && number && *number >= 2 && *number <= 1e6) {
    into.large_segment_bytes = bytes() / (2 << 20) * (2 << 20);
  } else if (name == "garbage_collection_threshold" && number && *number <= 1) {
    into.garbage_collection_threshold = *number;
  } else if (name == "per_process_memory_fraction" && number && *number <= 1 && *number > 0) {
    into.memory_fraction = *number;
  } else if (name == "throw_on_cudamalloc_oom" && truth) {
    into.throw_on_refusal = *truth;
  } else if (name == "roundup_power2_divisions") {
    if (value.starts_with('[') && value.ends_with(']')) value = value.substr(1, value.size() - 2);
    return read_divisions(value, into) ? "" : wrong_value(name, value);
  } else if (name == "backend") {
    return value == "native" ? "" : "only backend:native has a model";
  } else {
    constexpr std::array known = {"expandable_segments",        "max_split_size_mb",
                                  "max_non_split_rounding_mb",  "large_segment_size_mb",
                                  "throw_on_cudamalloc_oom",    "garbage_collection_threshold",
                                  "per_process_memory_fraction"};
    for (const char* const each : known) {
      if (name == each) return wrong_value(name, value);
    }
    return "";  // an option that does not change the memory held
  }
  return "";
}

}  // namespace

std::vector<fit_device> usual_devices() {
  std::vector<fit_device> out;
  for (const std::uint64_t each : usual_gib)
    out.push_back({std::to_string(each) + "GiB", each << 30});
  return out;
}

std::optional<fit_device> find_device(std::string_view name) {
  for (const named_device& each : named_devices) {
    if (each.name == name) return fit_device{std::string(name), each.size_mib << 20};
  }
  for (const unit& each : units) {
    if (!name.ends_with(each.suffix)) continue;
    std::string_view number = name.substr(0, name.size() - each.suffix.size());
    const auto value = read_real(number);
    if (!value || *value <= 0 || *value > 1e6) return std::nullopt;
    const double bytes = *value * static_cast<double>(each.size_bytes);
    if (bytes > 1e18) return std::nullopt;
    return fit_device{std::string(name), static_cast<std::uint64_t>(bytes)};
  }
  return std::nullopt;
}

std::string device_names() {
  std::string out;
  for (const named_device& each : named_devices)
    out += (out.empty() ? "" : ", ") + std::string(each.name);
  return out;
}

std::string read_conf(std::string_view text, caching_options& into) {
  while (!text.empty()) {
    // Commas stand between entries, and between those of a list in brackets.
    const std::size_t bracket = text.find('[');
    std::size_t comma = text.find(',');
    if (bracket != std::string_view::npos && bracket < comma)
      comma = text.find(',', std::min(text.find(']', bracket), text.size() - 1));
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos)
      return "'" + std::string(entry) + "' is not a NAME:VALUE of PYTORCH_CUDA_ALLOC_CONF";
    std::string problem = read_entry(entry.substr(0, colon), entry.substr(colon + 1), into);
    if (!problem.empty()) return problem;
  }
  return "";
}

caching_options options_of(const recording& from) {
  caching_options out;
  // The text has what the other fields do not: large_segment_size_mb and what came later.
  for (const char* const name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const recorded_setting* const text = from.find_setting(name); text != nullptr)
      (void)read_conf(text->text, out);
  }
  if (const auto* const split = from.find_setting("max_split_size"); split != nullptr)
    out.max_split_bytes = split->number > 0 ? static_cast<std::uint64_t>(split->number) : no_size;
  if (const auto* const threshold = from.find_setting("garbage_collection_threshold");
      threshold != nullptr)
    out.garbage_collection_threshold = std::clamp(threshold->number, 0.0, 1.0);
  if (const auto* const expandable = from.find_setting("expandable_segments");
      expandable != nullptr)
    out.expandable_segments = expandable->number != 0;
  for (std::size_t i = 0; i < out.roundup_divisions.size(); ++i) {
    const auto* const each =
        from.find_setting("roundup_power2_divisions:" + std::to_string(std::uint64_t{1} << i));
    if (each != nullptr && each->number >= 0 && each->number < 1e6)
      out.roundup_divisions[i] = static_cast<std::uint32_t>(each->number);
  }
  // Up to 2.4 files have no annotations; private pools had native segments then.
  if (from.form == recording_form::torch_snapshot && !from.settings.empty() &&
      !from.has_annotation_list)
    out.minor_version = 4;
  return out;
}

}  // namespace vmm::tools
