// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - devices by name, and PyTorch's options from a text and from a recording.
module vmm.fit;

import vmm.backend;
import vmm.recording;
import vmm.std;

namespace vmm::tools {

namespace {

// Memory as nvidia-smi shows it, and further names of the device as model_of() makes them.
struct named_device {
  std::string_view name;
  std::uint64_t size_mib;
  std::string_view others;
};
constexpr std::array named_devices = {named_device{"T4-16", 15360, "t4"},
                                      named_device{"V100-16", 16384, "v100pcie16"},
                                      named_device{"RTX3090-24", 24576, "3090"},
                                      named_device{"RTX4090-24", 24564, "4090"},
                                      named_device{"A10-24", 23028, "a10 a10g"},
                                      named_device{"L4-24", 23034, "l4"},
                                      named_device{"V100-32", 32768, "v100pcie32"},
                                      named_device{"RTX5090-32", 32607, "5090"},
                                      named_device{"A100-40", 40960, "a100pcie40"},
                                      named_device{"A40-48", 46068, "a40"},
                                      named_device{"L40-48", 46068, "l40"},
                                      named_device{"L40S-48", 46068, "l40s"},
                                      named_device{"A6000-48", 49140, "a6000"},
                                      named_device{"RTX6000Ada-48", 49140, "6000ada"},
                                      named_device{"A100-80", 81920, "a10080pcie"},
                                      named_device{"H100-80", 81559, "h100pcie"},
                                      named_device{"H100-94", 95830, "h100nvl"},
                                      named_device{"GH200-96", 97871, "gh200 gh200480"},
                                      named_device{"H200-141", 143771, "h200 h200nvl"},
                                      named_device{"B200-180", 183359, "b200"}};

constexpr std::array setting_names = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};
constexpr std::array<std::uint64_t, 7> usual_gib = {16, 24, 40, 48, 80, 94, 141};

[[nodiscard]] bool is_space(char each) noexcept { return each == ' ' || each == '\t'; }
[[nodiscard]] char to_lower(char each) noexcept {
  return each >= 'A' && each <= 'Z' ? static_cast<char>(each - 'A' + 'a') : each;
}
[[nodiscard]] bool is_letter_or_digit(char each) noexcept {
  return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'z');
}

/// "NVIDIA A100-SXM4-80GB" is a10080, as A100-80 is: letters and digits of what names the model.
[[nodiscard]] std::string model_of(std::string_view name) {
  constexpr std::array<std::string_view, 11> ignored = {"nvidia", "geforce",    "tesla", "quadro",
                                                        "gpu",    "rtx",        "hbm2",  "hbm2e",
                                                        "hbm3",   "generation", "hbm3e"};
  std::string out;
  std::string word;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    const char each = i < name.size() ? to_lower(name[i]) : ' ';
    if (is_letter_or_digit(each)) {
      word += each;
      continue;
    }
    if (word.ends_with("gb") && word.size() > 2) word.resize(word.size() - 2);
    const bool is_kept = !word.starts_with("sxm") &&
                         std::find(ignored.begin(), ignored.end(), word) == ignored.end();
    if (is_kept) out += word;
    word.clear();
  }
  return out.starts_with("rtx") ? out.substr(3) : out;
}

[[nodiscard]] bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::size_t end = words.find(' ');
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 1);
  }
  return false;
}

[[nodiscard]] std::optional<double> read_real(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc{} || stop != end || text.empty() || !(value >= 0)) return std::nullopt;
  return value;
}

[[nodiscard]] bool is_power_or_off(double number) noexcept {
  return number >= 0 && number <= 1e6 && number == std::floor(number) &&
         (number == 0 || std::has_single_bit(static_cast<std::uint64_t>(number)));
}

// "256:1,512:2,>:4" without its brackets, or one number for all. Empty, or PyTorch's refusal.
[[nodiscard]] std::string read_divisions(std::string_view text, caching_options& into) {
  constexpr const char* form = "it is a power of two, or intervals as [256:1,512:2,>:4]";
  constexpr const char* power = "For roundups, the divisions has to be power of 2";
  if (const auto one = read_real(text)) {
    if (*one == 0 || !is_power_or_off(*one)) return power;
    into.roundup_divisions.fill(static_cast<std::uint32_t>(*one));
    return "";
  }
  if (!text.starts_with('[') || !text.ends_with(']')) return form;
  text = text.substr(1, text.size() - 2);
  std::size_t first = 0;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t colon = std::min(entry.find(':'), entry.size());
    const auto divisions = read_real(entry.substr(std::min(colon + 1, entry.size())));
    const auto size_mib = read_real(entry.substr(0, colon));
    const bool is_rest = entry.substr(0, colon) == ">";
    if (!divisions || (!size_mib && !is_rest)) return form;
    if (!is_power_or_off(*divisions)) return power;
    std::size_t last = into.roundup_divisions.size() - 1;
    if (!is_rest) {
      if (*size_mib == 0 || !is_power_or_off(*size_mib))
        return "For roundups, the intervals have to be power of 2";
      last = std::min<std::size_t>(static_cast<std::size_t>(std::log2(*size_mib)), last);
    }
    // The first key also stands for what is smaller, and each for what follows up to the next.
    for (std::size_t i = is_rest ? first : std::min(first, last); i <= last; ++i)
      into.roundup_divisions[i] = static_cast<std::uint32_t>(*divisions);
    first = last + 1;
  }
  return "";
}

// Options of True or False; null where memory held does not depend on one.
struct truth_option {
  std::string_view name;
  bool caching_options::* into;
};
constexpr std::array truth_options = {
    truth_option{"expandable_segments", &caching_options::expandable_segments},
    truth_option{"throw_on_cudamalloc_oom", &caching_options::throw_on_refusal},
    truth_option{"release_lock_on_cudamalloc", nullptr},
    truth_option{"pinned_use_cuda_host_register", nullptr},
    truth_option{"pinned_use_background_threads", nullptr},
    truth_option{"graph_capture_record_stream_reuse", nullptr},
};
// Other options that memory held does not depend on.
constexpr std::array<std::string_view, 5> ignored_options = {
    "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "roundup_bypass_threshold_mb",
    "expandable_segments_reserve", "expandable_segments_reserve_by_class"};

// Options that are numbers, with PyTorch's own refusals of numbers outside.
struct number_option {
  std::string_view name;
  double least;
  double most;
  bool is_open;  // least and most are not taken
  const char* refusal;
  const char* accepted;
};
constexpr std::array number_options = {
    number_option{"max_split_size_mb", 20, 1e9, false,
                  "CachingAllocator option max_split_size_mb too small, must be >= 20",
                  "a number of MiB from 20 to 10^9"},
    number_option{"max_non_split_rounding_mb", 20, 1e9, false,
                  "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
                  "a number of MiB from 20 to 10^9"},
    number_option{"large_segment_size_mb", 10, 1e6, true,
                  "CachingAllocator option large_segment_size_mb must be > 10 MB",
                  "a number of MiB above 10 and below 10^6"},
    number_option{"garbage_collection_threshold", 0, 1, true,
                  "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
                  "a number above 0 and below 1"},
    number_option{"per_process_memory_fraction", 0, 1, false,
                  "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
                  "a number from 0 to 1"}};

void set_number(std::string_view name, double number, caching_options& into) {
  const auto bytes = static_cast<std::uint64_t>(number) << 20;
  if (name == "max_split_size_mb") {
    into.max_split_bytes = bytes;
  } else if (name == "max_non_split_rounding_mb") {
    into.max_non_split_rounding_bytes = bytes;
  } else if (name == "large_segment_size_mb") {
    into.large_segment_bytes = bytes / (2 << 20) * (2 << 20);
  } else if (name == "garbage_collection_threshold") {
    into.garbage_collection_threshold = number;
  } else {
    into.memory_fraction = number;
  }
}

// Empty, or the values that the option takes.
[[nodiscard]] std::string read_value(std::string_view name, std::string_view value,
                                     caching_options& into) {
  for (const truth_option& each : truth_options) {
    if (name != each.name) continue;
    if (value != "True" && value != "False") return "Expected 'True' or 'False'";
    if (each.into != nullptr) into.*each.into = value == "True";
    return "";
  }
  for (const number_option& each : number_options) {
    if (name != each.name) continue;
    const auto number = read_real(value);
    const std::string accepted = std::string("it is ") + each.accepted;
    if (!number) return accepted;
    const bool is_inside = each.is_open ? *number > each.least && *number < each.most
                                        : *number >= each.least && *number <= each.most;
    if (!is_inside) return each.refusal + ("; " + accepted);
    set_number(name, *number, into);
    return "";
  }
  if (name == "roundup_power2_divisions") return read_divisions(value, into);
  return value == "native"            ? ""
         : value == "cudaMallocAsync" ? "it has no model; its band is in each result"
                                      : "options are native and cudaMallocAsync";
}

[[nodiscard]] bool is_known(std::string_view name) {
  const auto is_name = [&](const auto& each) { return each.name == name; };
  return name == "roundup_power2_divisions" || name == "backend" ||
         std::any_of(truth_options.begin(), truth_options.end(), is_name) ||
         std::any_of(number_options.begin(), number_options.end(), is_name);
}

[[nodiscard]] std::string known_names() {
  std::string all = "backend, roundup_power2_divisions";
  const auto add = [&](std::string_view name) { all.append(", ").append(name); };
  for (const truth_option& each : truth_options) add(each.name);
  for (const number_option& each : number_options) add(each.name);
  for (const std::string_view each : ignored_options) add(each);
  return all;
}

[[nodiscard]] std::string read_entry(std::string_view entry, caching_options& into) {
  const std::size_t colon = entry.find(':');
  const std::string name(entry.substr(0, colon));
  if (std::find(ignored_options.begin(), ignored_options.end(), name) != ignored_options.end())
    return "";
  if (colon == std::string_view::npos)
    return "'" + name + "' is not a NAME:VALUE of PYTORCH_CUDA_ALLOC_CONF";
  if (!is_known(name))
    return "Unrecognized key '" + name + "' in CUDA allocator config; keys are " + known_names();
  const std::string value(entry.substr(colon + 1));
  const std::string taken = read_value(name, value, into);
  return taken.empty() ? "" : name + " does not take '" + value + "': " + taken;
}

}  // namespace

std::vector<fit_device> usual_devices() {
  std::vector<fit_device> out;
  for (const std::uint64_t each : usual_gib)
    out.push_back({std::to_string(each) + "GiB", each << 30});
  return out;
}

std::optional<fit_device> find_size(std::string_view name) {
  constexpr std::uint64_t least = std::uint64_t{1} << 20;  // "24" is not 24 bytes
  const auto found = parse_bytes(name);
  if (!found || *found < least || *found > option_bytes_max) return std::nullopt;
  return fit_device{std::string(name), *found};
}

std::optional<fit_device> find_device(std::string_view name) {
  if (auto size = find_size(name)) return size;
  const std::string model = model_of(name);
  for (const named_device& each : named_devices) {
    if (model == model_of(each.name) || has_word(each.others, model))
      return fit_device{std::string(name), each.size_mib << 20};
  }
  return std::nullopt;
}

std::string device_names(std::string_view refused) {
  std::string near;
  std::string all;
  // "-5" is a size, and not the beginning of a name.
  const std::string model = refused.starts_with('-') ? "" : model_of(refused);
  for (const named_device& each : named_devices) {
    const std::string name(each.name);
    all += (all.empty() ? "" : ", ") + name;
    if (!model.empty() && model_of(name).starts_with(model))
      near += (near.empty() ? "" : " or ") + name + " (" + std::to_string(each.size_mib) + "MiB)";
  }
  return near.empty() ? "one of " + all : near;
}

std::string read_conf(std::string_view text, caching_options& into) {
  std::string plain;
  for (const char each : text)
    if (!is_space(each)) plain += each;
  std::string problem;
  for (std::string_view left = plain; !left.empty();) {
    // Commas stand between entries, and between those of a list in brackets.
    const std::size_t bracket = left.find('[');
    std::size_t comma = left.find(',');
    if (bracket != std::string_view::npos && bracket < comma)
      comma = left.find(',', std::min(left.find(']', bracket), left.size() - 1));
    const std::string wrong = read_entry(left.substr(0, comma), into);
    if (problem.empty()) problem = wrong;
    left.remove_prefix(comma == std::string_view::npos ? left.size() : comma + 1);
  }
  return problem;
}

std::string problem_of_settings(const recording& from) {
  caching_options tried;
  std::string out;
  for (const char* const name : setting_names) {
    const recorded_setting* const text = from.find_setting(name);
    if (text != nullptr && out.empty()) out = read_conf(text->text, tried);
  }
  return out;
}

caching_options options_of(const recording& from) {
  caching_options out;
  // The text has what the other fields do not: large_segment_size_mb and what came later.
  for (const char* const name : setting_names) {
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
