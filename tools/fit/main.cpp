// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-fit: whether a recorded program fits a device, under four allocators. docs/fit.md
//
// Exit codes: 0 an answer, and with --device: it fits; 1 it does not; 2 the answer lies within the
// error, or the peak is not known; 3 a file cannot be read, or the command line is wrong; 4 vmm-fit
// itself ran out of memory.

#include "../program/options.hpp"
#include "../program/output.hpp"

import vmm.fit;
import vmm.history_tools;
import vmm.recording;
import vmm.trace;

namespace {

namespace tools = vmm::tools;

constexpr const char* usage =
    "usage: vmm-fit FILE... [--device NAME|SIZE] [--allocator NAME] [--conf OPTIONS]\n"
    "       [--beside SIZE] [--of N] [--batch A,B] [--json] [--page F]\n"
    "\n"
    "What the program behind a recording holds under PyTorch's native allocator, expandable\n"
    "segments, cudaMallocAsync and vmm, and which devices it fits. FILE is a memory snapshot of\n"
    "PyTorch, the list of memory_snapshot(), a log of RMM, or a trace or a history of vmm, plain\n"
    "or gzip; - is standard input. Several files are one for each rank: each has a device of its\n"
    "own.\n"
    "  --device D     answer for one device: 24GiB, or a name as H100-80 or as nvidia-smi prints\n"
    "                 it. May be repeated\n"
    "  --allocator A  whose result is the exit code: native, expandable, async or vmm (default:\n"
    "                 that of --conf, else the one that the file was recorded under)\n"
    "  --conf O       as PYTORCH_CUDA_ALLOC_CONF, over the file's own settings\n"
    "  --beside S     memory of each device that is not the allocator's (default: 528MiB)\n"
    "  --of N         device N of each recording (default: the busiest)\n"
    "  --batch A,B    the largest batch, from two files that were recorded at the batch sizes A\n"
    "                 and B; needs --device\n"
    "  --json         print one JSON object\n"
    "  --page F       also write a page for a browser: memory over time under each allocator, and\n"
    "                 live memory at the peak; of each rank, or at the largest batch\n"
    "  --help, --version\n"
    "Exit code: 0 it fits (with --batch: batch 1), or no device was named; 1 it does not fit; 2\n"
    "within the error, or the peak is not known; 3 a file cannot be read, or the command line is\n"
    "wrong; 4 vmm-fit ran out of memory.\n";

constexpr int exit_unreadable = 3;

struct command_line {
  std::vector<std::string> paths;
  tools::fit_options options;
  std::array<std::uint64_t, 2> batches{};  // 0: none
  std::string page;
  bool is_json = false;
};

int fail(const std::string& why) {
  std::fprintf(stderr, "vmm-fit: %s\n", tools::one_line(why).c_str());
  return exit_unreadable;
}

/// Empty, or what is wrong with the command line.
std::string read_words(int count, char** words, command_line& into) {
  tools::fit_options& options = into.options;
  options.beside_bytes = tools::context_bytes;
  const auto device = [&](const char* value) {
    const auto found = tools::find_device(value);
    if (!found)
      return option_list::refusal(
          "--device", "a size from 1MiB to 64PiB, as 24GiB, or " + tools::device_names(value),
          value);
    const auto is_same = [&](const tools::fit_device& each) { return each.name == found->name; };
    if (std::ranges::none_of(options.devices, is_same)) options.devices.push_back(*found);
    return std::string();
  };
  const auto beside = [&](std::string_view value) {
    const auto found = value == "0" ? tools::fit_device{} : tools::find_size(value);
    if (found) options.beside_bytes = found->size_bytes;
    return found.has_value();
  };
  const auto allocator = [&](std::string_view value) {
    for (std::size_t i = 0; i < tools::fit_allocator_count; ++i) {
      const auto each = static_cast<tools::fit_allocator>(i);
      if (value == tools::name_of(each)) options.judged = each;
    }
    return options.judged.has_value();
  };
  const auto batch = [&](std::string_view value) {
    const std::size_t comma = std::min(value.find(','), value.size());
    const auto first = tools::read_count(value.substr(0, comma), 1);
    const auto second = tools::read_count(value.substr(std::min(comma + 1, value.size())), 1);
    if (first && second) into.batches = {*first, *second};
    return first && second && *first != *second;
  };
  const auto conf = [&](const char* value) {
    options.conf = value;
    tools::caching_options tried;
    const std::string problem = tools::read_conf(value, tried);
    return problem.empty() ? problem : "--conf: " + problem;
  };
  const std::string why =
      option_list(usage)
          .value("--device", device)
          .checked("--allocator", "native, expandable, async or vmm", allocator)
          .value("--conf", conf)
          .checked("--beside", "a size up to 64PiB, as 528MiB", beside)
          .number("--of", options.device, "the number of a device, from 0 on")
          .checked("--batch", "two different batch sizes, from 1 on, as 8,16", batch)
          .flag("--json", into.is_json)
          .text("--page", into.page)
          .files(into.paths)
          .parse(count, words);
  if (!why.empty()) return why;
  if (into.paths.empty()) return "no recording is named";
  if (into.batches.front() != 0 && (into.paths.size() != 2 || options.devices.empty()))
    return "--batch takes two files, one for each batch size, and a --device";
  return "";
}

/// One line on stderr, a second after the start and then once a second.
class progress_line {
 public:
  void show_reading(const std::string& path, std::uint64_t done_bytes, std::uint64_t all_bytes) {
    const double part = static_cast<double>(done_bytes) / static_cast<double>(all_bytes);
    if (all_bytes != 0)
      show("reading " + path + ": " + std::to_string(static_cast<int>(100 * part)) + " %");
  }
  void show(const std::string& what) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    std::fprintf(stderr, "vmm-fit: %s\n", tools::one_line(what).c_str());
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

tools::recording_outcome read(const std::string& path) {
  progress_line line;
  return tools::read_recording(path, {.progress = [&](std::uint64_t done, std::uint64_t all) {
                                 line.show_reading(path, done, all);
                               }});
}

struct answered {
  std::string text;
  std::string document;  ///< of a page, if one is written
  int code = 0;
};

/// Empty, or the reason for a missing page.
std::string write_page(const std::string& document, const command_line& wanted) {
  for (const std::string& path : wanted.paths) {
    if (tools::is_same_file(path, wanted.page))
      return wanted.page + " is the recording: --page takes another file";
  }
  tools::output_file file;
  const std::string why = file.open(wanted.page);
  if (!why.empty()) return why;
  std::fprintf(stderr, "vmm-fit: writing %s\n", tools::one_line(wanted.page).c_str());
  return file.write(tools::to_fit_page(document));
}

/// Nullopt if a file cannot be read; the reason is on stderr.
std::optional<answered> answer_file(const std::string& path, const command_line& wanted) {
  const tools::recording_outcome from = read(path);
  if (!from.problem.empty()) return fail(from.problem), std::nullopt;
  const tools::fit_answer found = tools::answer(from.value, wanted.options);
  if (!found.problem.empty()) return fail(path + ": " + found.problem), std::nullopt;
  answered out;
  out.text = wanted.is_json ? tools::to_json(path, from.value, found)
                            : tools::to_text(path, from.value, found);
  out.code = tools::exit_code_of(found);
  if (!wanted.page.empty()) {
    const tools::request_stream asked = tools::requests_of(from.value, found.device);
    out.document = tools::to_page_json(path, from.value, asked, found, wanted.options);
  }
  return out;
}

/// Of several files each stands for a rank, and the worst result counts.
int run(const command_line& wanted) {
  for (std::size_t i = 0; i < wanted.paths.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (tools::is_same_file(wanted.paths[i], wanted.paths[j]))
        return fail(wanted.paths[i] + " is named twice: each file is the recording of a rank");
    }
  }
  std::vector<std::string> texts;
  std::string documents;
  std::string worst;
  int code = 0;
  for (const std::string& path : wanted.paths) {
    const auto found = answer_file(path, wanted);
    if (!found) return exit_unreadable;
    texts.push_back(found->text);
    documents += (documents.empty() ? "" : ", ") + found->document;
    const bool is_worse = found->code == 1 || (found->code == 2 && code != 1);
    if (is_worse) code = found->code, worst = path;
  }
  std::string out;
  for (const std::string& each : texts)
    out += (out.empty() ? "" : wanted.is_json ? ", " : "\n") + each;
  if (wanted.is_json && texts.size() > 1)
    out = "{\"ranks\": [" + out + "], \"exit_code\": " + std::to_string(code) + "}";
  if (wanted.is_json) out += "\n";
  if (!wanted.is_json && texts.size() > 1 && !wanted.options.devices.empty()) {
    const std::string cause = worst.empty() ? "" : ", by " + tools::one_line(worst);
    out += "\nall ranks: exit code " + std::to_string(code) + cause + "\n";
  }
  std::string why;
  if (!wanted.page.empty())
    why = write_page(texts.size() > 1 ? "{\"ranks\": [" + documents + "]}" : documents, wanted);
  if (why.empty()) why = tools::print(out);
  return why.empty() ? code : fail(why);
}

/// A page of the program at its largest batch on the first device.
std::string write_batch_page(const tools::batch_recordings& of, const std::string& path,
                             const tools::batch_answer& found, const command_line& wanted) {
  const tools::batch_device_answer& device = found.devices.front();
  const std::uint64_t best = device.limits[static_cast<std::size_t>(found.judged)].best;
  const std::uint64_t batch = best == 0 ? of.smaller_batch : best;
  const auto asked = tools::requests_at(of, batch);
  tools::fit_options options = wanted.options;
  options.is_estimate = true;
  const tools::fit_answer at = tools::answer_requests(*of.larger, *asked, options);
  if (!at.problem.empty()) return path + ": " + at.problem;
  const std::string title = "batch " + std::to_string(batch) +
                            (best == 0 ? "; batch 1 does not fit " : ", the largest on ") +
                            device.device.name + " under " + tools::name_of(found.judged);
  return write_page(
      tools::with_batches(tools::to_page_json(path, *of.larger, *asked, at, options), title, found),
      wanted);
}

int run_batch(const command_line& wanted) {
  if (tools::is_same_file(wanted.paths[0], wanted.paths[1]))
    return fail(wanted.paths[0] + " is named twice: --batch takes recordings of two batch sizes");
  std::array<std::size_t, 2> order = {0, 1};
  if (wanted.batches[0] > wanted.batches[1]) std::swap(order[0], order[1]);
  std::array<tools::recording_outcome, 2> from;
  for (std::size_t i = 0; i < 2; ++i) {
    from[i] = read(wanted.paths[order[i]]);
    if (!from[i].problem.empty()) return fail(from[i].problem);
  }
  const tools::batch_recordings of{&from[0].value, &from[1].value, wanted.batches[order[0]],
                                   wanted.batches[order[1]], wanted.options.device};
  const tools::batch_answer found = tools::largest_batch(of, wanted.options);
  if (!found.problem.empty())
    return fail(wanted.paths[order[0]] + " and " + wanted.paths[order[1]] + ": " + found.problem);
  std::string why;
  if (!wanted.page.empty()) why = write_batch_page(of, wanted.paths[order[1]], found, wanted);
  if (why.empty())
    why = tools::print(wanted.is_json ? tools::to_json(found) + "\n" : tools::to_text(found));
  return why.empty() ? tools::exit_code_of(found) : fail(why);
}

}  // namespace

int main(int count, char** words) {
  tools::answer_help(count, words, usage, exit_unreadable);
  command_line wanted;
  if (const std::string problem = read_words(count, words, wanted); !problem.empty()) {
    tools::refuse_line("vmm-fit", problem);
    return exit_unreadable;
  }
  progress_line replays;
  wanted.options.progress = [&](const std::string& of) { replays.show("replaying " + of); };
  return wanted.batches.front() != 0 ? run_batch(wanted) : run(wanted);
}
