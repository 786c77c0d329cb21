// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - what a recorded program holds under four allocators, and which devices it fits.
//
// Native caching and expandable segments are models (:caching); vmm's figure is of the real pool
// over the fake driver. cudaMallocAsync has no published policy: its figure is a band, from live
// bytes in units of 32 MiB to the most that was measured of it.
//
// Each figure has an error. Where the file has segment events, its own allocator is replayed and
// compared with them; that error stands for all. The result for a device is a replay under its
// limit, with the allocator's own releases and retries, a little below and a little above by the
// error.
//
// Thread safety: values only. Cost: a replay for each allocator, and two for each device whose
// memory lies between the live peak and the held peak.
export module vmm.fit:answer;

import vmm.recording;
import vmm.std;
import :caching;

namespace vmm::tools {

export struct fit_device {
  std::string name{};
  std::uint64_t size_bytes = 0;
};
/// 16, 24, 40, 48, 80, 94 and 141 GiB.
export [[nodiscard]] std::vector<fit_device> usual_devices();
/// A size such as 24GiB, in any case; nullopt for other texts.
export [[nodiscard]] std::optional<fit_device> find_size(std::string_view name);
/// A name such as H100-80 or as nvidia-smi prints it, or a size; else none.
export [[nodiscard]] std::optional<fit_device> find_device(std::string_view name);
/// What find_device() takes in place of a name that it refuses, for people: the devices whose names
/// begin with it, with their sizes, else all names.
export [[nodiscard]] std::string device_names(std::string_view refused);

/// PYTORCH_CUDA_ALLOC_CONF's text into options. Empty, or the first entry that PyTorch refuses, in
/// its words; all others are read.
export [[nodiscard]] std::string read_conf(std::string_view text, caching_options& into);
/// The options that a recording names: allocator_settings, and PyTorch's version where a field
/// shows it.
export [[nodiscard]] caching_options options_of(const recording& from);
/// Of the recording's own text. Empty where all of it was read.
[[nodiscard]] std::string problem_of_settings(const recording& from);

export enum class fit_allocator : std::uint8_t { native, expandable, async, vmm };
export inline constexpr std::size_t fit_allocator_count = 4;
export [[nodiscard]] const char* name_of(fit_allocator which) noexcept;

export enum class fit_verdict : std::uint8_t { yes, no, within_error };
export [[nodiscard]] const char* name_of(fit_verdict verdict) noexcept;

/// Where the error of a figure comes from.
export enum class error_source : std::uint8_t {
  check,      ///< fit_check: the replay beside the file's segment events
  no_check,   ///< set: the file has no segment events
  addresses,  ///< two replays, with segments in two orders of addresses
  allowance,  ///< set, above what was measured
  batch,      ///< set: sizes between and beyond two recordings
};
export [[nodiscard]] const char* name_of(error_source source) noexcept;

export struct fit_figure {
  std::uint64_t held_bytes = 0;      ///< the most; of async the most that is likely
  std::uint64_t held_low_bytes = 0;  ///< of bounds the least; else held_bytes
  double error = 0;                  ///< of held_bytes, as a part of it
  error_source source = error_source::allowance;
};

/// The file's own allocator, replayed beside the file's segment events.
export struct fit_check {
  fit_allocator allocator = fit_allocator::native;
  std::uint64_t recorded_held_bytes = 0;
  std::uint64_t predicted_held_bytes = 0;
  std::uint64_t recorded_count = 0;  ///< segment events
  std::uint64_t replayed_count = 0;  ///< those of the replay
  std::uint64_t same_count = 0;      ///< recorded ones that the replay has at the same place
  double error = 0;
};

/// What lives at the peak from one place of the program.
export struct fit_owner {
  std::uint64_t size_bytes = 0;
  std::uint64_t count = 0;
  std::uint32_t context = 0;
};

export struct fit_device_answer {
  fit_device device{};
  std::array<fit_verdict, fit_allocator_count> fits{};
  /// Where the program fits: requests that were served only after the device had refused memory and
  /// the allocator had released or moved memory.
  std::array<std::uint64_t, fit_allocator_count> retries{};
};

export struct fit_options {
  std::optional<std::uint64_t> device{};  ///< of the recording; without it the busiest
  std::vector<fit_device> devices{};      ///< none: the usual ones
  std::optional<fit_allocator> judged{};  ///< whose result the exit code is
  std::string conf{};                     ///< over the file's settings
  std::uint64_t beside_bytes = 0;         ///< of a device, not the allocator's
  bool is_estimate = false;               ///< the requests are of a batch size, not the file's
  std::function<void(const std::string&)> progress{};  ///< called before each replay, with its name
};

export struct fit_answer {
  std::string problem{};  ///< empty where there is an answer
  std::uint64_t device = 0;
  std::uint64_t device_count = 1;
  std::uint64_t request_count = 0;
  std::uint64_t allocation_count = 0;
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_index = 0;
  /// Under which the file was made; native where it names none.
  fit_allocator recorded = fit_allocator::native;
  bool is_recorded_known = true;
  /// Whose result the exit code is: the one named, else that of --conf, else the recorded one.
  fit_allocator judged = fit_allocator::native;
  bool has_named_devices = false;
  bool has_events = true;
  /// False without events, where the recording has lost its beginning or other events, and where a
  /// request was refused.
  bool is_peak_known = true;
  bool has_lost_frees = false;  ///< blocks count as live after their end: figures are estimates
  std::array<fit_figure, fit_allocator_count> figures{};
  std::optional<fit_check> check{};
  std::uint64_t beside_bytes = 0;
  /// Memory that the allocator held or could have had when it ran out, from the file.
  std::optional<std::uint64_t> available_at_oom_bytes{};
  std::vector<fit_device_answer> devices{};
  std::vector<fit_owner> owners{};   ///< the largest first
  std::vector<std::string> notes{};  ///< what is not known
};

export [[nodiscard]] fit_answer answer(const recording& from, const fit_options& options);
/// 0 the judged allocator fits all devices that were named, or none was; 1 not one of them; 2 the
/// result for one is within the error.
export [[nodiscard]] int exit_code_of(const fit_answer& found);
/// The same of requests: `from` names stacks, streams and settings.
export [[nodiscard]] fit_answer answer_requests(const recording& from, const request_stream& asked,
                                                const fit_options& options);

/// Two recordings of one program, at two batch sizes.
export struct batch_recordings {
  const recording* smaller = nullptr;
  const recording* larger = nullptr;
  std::uint64_t smaller_batch = 0;
  std::uint64_t larger_batch = 0;
  std::optional<std::uint64_t> device{};  ///< of both; without it the busiest of each
};
/// The largest batch with a little less memory than the device has, with all of it, and with a
/// little more.
export struct batch_limit {
  std::uint64_t low = 0;
  std::uint64_t best = 0;
  std::uint64_t high = 0;
};
export struct batch_device_answer {
  fit_device device{};
  std::array<batch_limit, fit_allocator_count> limits{};
  std::array<fit_verdict, fit_allocator_count> fits{};  ///< of batch 1
};
export struct batch_answer {
  std::string problem{};
  std::vector<batch_device_answer> devices{};
  fit_allocator judged = fit_allocator::native;  ///< as in fit_answer; recorded: the larger file
  bool is_peak_known = true;                     ///< of both files
  std::vector<std::string> notes{};              ///< what is not known of each file
  std::uint64_t line_count = 0;        ///< requests whose size is a line in the batch size
  std::uint64_t constant_count = 0;    ///< requests of one size
  std::uint64_t inexact_count = 0;     ///< requests whose size is not a whole number of bytes per
                                       ///< item
  std::uint64_t unmatched_count = 0;   ///< requests of the larger batch alone: in proportion to it
  std::uint64_t iteration_length = 0;  ///< allocations of one iteration; 0 where none repeats
  std::uint64_t guess_from = 0;        ///< a batch from here on is a guess
};
export inline constexpr std::uint64_t batch_max = std::uint64_t{1} << 20;
export inline constexpr double batch_error = 0.03;
/// Requires: options.devices is not empty, and larger_batch > smaller_batch.
export [[nodiscard]] batch_answer largest_batch(const batch_recordings& of,
                                                const fit_options& options);
/// As of a fit_answer: whether batch 1 fits.
export [[nodiscard]] int exit_code_of(const batch_answer& found);
/// The requests at a batch size, as largest_batch() replays them. Nothing where it has a problem.
export [[nodiscard]] std::optional<request_stream> requests_at(const batch_recordings& of,
                                                               std::uint64_t batch);
export [[nodiscard]] std::string to_json(const batch_answer& found);
export [[nodiscard]] std::string to_text(const batch_answer& found);

/// The size of one request at any batch size.
struct size_line {
  double constant = 0;
  double by_item = 0;
};
/// The requests of the larger recording, each as a line. `found` has a problem, or counts and notes
/// and no devices.
struct batch_program {
  batch_answer found{};
  request_stream requests{};
  std::vector<size_line> lines{};
};
[[nodiscard]] batch_program program_of(const batch_recordings& of);
[[nodiscard]] std::uint64_t device_of(const batch_recordings& of, const recording& from);

/// The least that cudaMallocAsync holds.
[[nodiscard]] std::uint64_t async_least_bytes(std::uint64_t live_bytes) noexcept;
/// Whether an allocator serves all requests on the device, with `factor` times what is its own of
/// the memory. Of async the most that is likely counts.
[[nodiscard]] bool is_served(fit_allocator which, const request_stream& asked,
                             const recording& from, const fit_options& options,
                             const fit_device& device, double factor);

/// What a device's context takes, measured on an H100 and an H200.
export inline constexpr std::uint64_t context_bytes = std::uint64_t{528} << 20;

/// The allocator of PyTorch's under which a recording was made.
[[nodiscard]] fit_allocator recorded_under(const recording& from, std::uint64_t device,
                                           const caching_options& options);
/// See fit_answer::judged.
[[nodiscard]] fit_allocator judged_by(const fit_options& options, fit_allocator recorded);
/// See fit_answer::is_peak_known.
[[nodiscard]] bool is_peak_known(const recording& from, std::uint64_t device,
                                 const request_stream& asked);
/// What is not known of a file.
[[nodiscard]] std::vector<std::string> notes_of(const recording& from, std::uint64_t device,
                                                const request_stream& asked);
/// 1 with a no among the verdicts, else 2 with a within_error, else 0.
[[nodiscard]] int worse_code(int code, fit_verdict verdict) noexcept;

/// What the recorded allocator held before the first event.
[[nodiscard]] std::vector<start_layout> start_of(const recording& from, std::uint64_t device,
                                                 const request_stream& asked, bool is_expandable);

/// Memory over the requests: a point for every `stride` of them, with the memory held after its
/// last request, or the peak within it if that is a new maximum.
class memory_curve {
 public:
  explicit memory_curve(std::uint64_t stride) : stride_(stride) {}
  void see(std::uint64_t held_bytes, std::uint64_t peak_bytes) {
    points_.push_back(peak_bytes > peak_bytes_ ? peak_bytes : held_bytes);
    peak_bytes_ = std::max(peak_bytes_, peak_bytes);
  }
  [[nodiscard]] bool is_due(std::uint64_t index, std::uint64_t count) const noexcept {
    return (index + 1) % stride_ == 0 || index + 1 == count;
  }
  [[nodiscard]] const std::vector<std::uint64_t>& points() const noexcept { return points_; }

 private:
  std::uint64_t stride_;
  std::uint64_t peak_bytes_ = 0;
  std::vector<std::uint64_t> points_{};
};

struct play_options {
  /// The model begins with it; blocks that were live before the first event lie there.
  std::span<const start_layout> start{};
  memory_curve* curve = nullptr;
  bool has_shortages = false;  ///< the recorded device's refusals are repeated
  /// A workspace that is refused is left out, as a convolution of PyTorch does.
  bool has_spare_workspaces = false;
};
/// The most that a model holds; nothing where the limit is reached and releases do not help.
[[nodiscard]] std::optional<std::uint64_t> play(const request_stream& asked, caching_model& model,
                                                const play_options& options = {});
/// A device, and the program's library: it decides the options of vmm's pool.
struct pool_device {
  std::uint64_t size_bytes = 0;
  recording_form form = recording_form::torch_snapshot;
  bool has_spare_workspaces = false;  ///< as in play_options
};
/// What vmm's pool held of a device.
struct pool_figures {
  std::uint64_t held_bytes = 0;   ///< the most
  std::uint64_t retry_count = 0;  ///< see fit_device_answer::retries
};
/// The same for vmm's pool on a device.
[[nodiscard]] std::optional<pool_figures> play_pool(const request_stream& asked,
                                                    const pool_device& device,
                                                    memory_curve* curve = nullptr);
/// A device on which vmm's pool has room for the requests, however it holds them.
[[nodiscard]] std::uint64_t roomy_bytes(const request_stream& asked) noexcept;

/// One JSON object on one line, without a newline.
export [[nodiscard]] std::string to_json(const std::string& path, const recording& from,
                                         const fit_answer& found);
/// The same with the sizes of the devices and memory over the requests: the document of the page in
/// tools/view/fit.html. `found` is the answer for `asked`. Cost: a replay for each allocator.
export [[nodiscard]] std::string to_page_json(const std::string& path, const recording& from,
                                              const request_stream& asked, const fit_answer& found,
                                              const fit_options& options);
/// The object of a page with the largest batches beside it.
export [[nodiscard]] std::string with_batches(std::string document, const std::string& title,
                                              const batch_answer& found);
/// Some lines for people.
export [[nodiscard]] std::string to_text(const std::string& path, const recording& from,
                                         const fit_answer& found);

}  // namespace vmm::tools
