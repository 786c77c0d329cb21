// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - the largest batch of a program whose requests are lines in the batch size.
module vmm.fit;

import vmm.recording;
import vmm.std;

namespace vmm::tools {

namespace {

[[nodiscard]] request_stream requests_of_batch(const batch_program& of, std::uint64_t batch) {
  request_stream out = of.requests;
  std::uint64_t live_bytes = 0;
  std::vector<std::uint64_t> size_by_slot(out.slot_count);
  out.peak_live_bytes = 0;
  for (std::size_t i = 0; i < out.requests.size(); ++i) {
    request& each = out.requests[i];
    if (each.kind == request_kind::allocate) {
      const size_line& line = of.lines[i];
      const double bytes = line.constant + line.by_item * static_cast<double>(batch);
      each.size_bytes = bytes < 1      ? 1
                        : bytes > 1e14 ? std::uint64_t{100'000'000'000'000}
                                       : static_cast<std::uint64_t>(bytes + 0.5);
      size_by_slot[each.slot] = (each.size_bytes + 511) / 512 * 512;
      live_bytes += size_by_slot[each.slot];
      if (live_bytes > out.peak_live_bytes) {
        out.peak_live_bytes = live_bytes;
        out.peak_index = i;
      }
    } else if (each.kind == request_kind::free || each.kind == request_kind::free_completed) {
      live_bytes -= size_by_slot[each.slot];
    }
  }
  return out;
}

/// The largest number from `from` on, below `end`, for which `is_good` holds, if it holds for all
/// that are smaller. 0 where it does not hold for `from`.
template <class Good>
[[nodiscard]] std::uint64_t largest(std::uint64_t from, std::uint64_t end, Good&& is_good) {
  if (!is_good(from)) return 0;
  std::uint64_t good = from;
  std::uint64_t bad = from;
  while (bad == good && good < end) {
    const std::uint64_t next = std::min(end, good * 2);
    (is_good(next) ? good : bad) = next;
    if (good == next) bad = next;
  }
  if (good >= end) return end;
  while (bad - good > 1) {
    const std::uint64_t middle = good + (bad - good) / 2;
    (is_good(middle) ? good : bad) = middle;
  }
  return good;
}

class batch_finder {
 public:
  batch_finder(const batch_recordings& of, const batch_program& program, const fit_options& options)
      : from_(*of.larger), program_(program), wanted_(options) {}

  [[nodiscard]] batch_device_answer find(const fit_device& device) const {
    batch_device_answer out;
    out.device = device;
    for (std::size_t i = 0; i < fit_allocator_count; ++i) {
      const auto which = static_cast<fit_allocator>(i);
      const auto at = [&](double factor) { return limit(which, device, factor); };
      out.limits[i] = {at(1 - batch_error), at(1), at(1 + batch_error)};
      out.fits[i] = verdict(which, device, out.limits[i]);
    }
    return out;
  }

 private:
  [[nodiscard]] std::uint64_t limit(fit_allocator which, const fit_device& device,
                                    double factor) const {
    return largest(1, batch_max, [&](std::uint64_t batch) {
      if (wanted_.progress)
        wanted_.progress(name_of(which) + (" on " + device.name) + ", batch " +
                         std::to_string(batch));
      return is_served(which, requests_of_batch(program_, batch), from_, wanted_, device, factor);
    });
  }
  // Of batch 1. The band of async begins at live memory.
  [[nodiscard]] fit_verdict verdict(fit_allocator which, const fit_device& device,
                                    const batch_limit& found) const {
    const std::uint64_t own_bytes =
        device.size_bytes - std::min(device.size_bytes, wanted_.beside_bytes);
    const bool is_possible =
        found.high != 0 ||
        (which == fit_allocator::async &&
         async_least_bytes(requests_of_batch(program_, 1).peak_live_bytes) <= own_bytes);
    if (!is_possible) return fit_verdict::no;
    const bool is_sure = found.low != 0 && program_.found.is_peak_known;
    return is_sure ? fit_verdict::yes : fit_verdict::within_error;
  }

  const recording& from_;
  const batch_program& program_;
  const fit_options& wanted_;
};

}  // namespace

std::optional<request_stream> requests_at(const batch_recordings& of, std::uint64_t batch) {
  const batch_program program = program_of(of);
  if (!program.found.problem.empty()) return std::nullopt;
  return requests_of_batch(program, batch);
}

batch_answer largest_batch(const batch_recordings& of, const fit_options& options) {
  const batch_program program = program_of(of);
  batch_answer out = program.found;
  if (!out.problem.empty()) return out;
  out.judged = judged_by(
      options, recorded_under(*of.larger, device_of(of, *of.larger), options_of(*of.larger)));
  out.guess_from = 4 * of.larger_batch;
  const batch_finder finder(of, program, options);
  bool is_cut = false;
  for (const fit_device& each : options.devices) {
    out.devices.push_back(finder.find(each));
    for (const batch_limit& limit : out.devices.back().limits)
      is_cut = is_cut || limit.high == batch_max;
  }
  if (is_cut) out.notes.push_back("the search ends at batch " + std::to_string(batch_max));
  return out;
}

int exit_code_of(const batch_answer& found) {
  int code = 0;
  for (const batch_device_answer& each : found.devices)
    code = worse_code(code, each.fits[static_cast<std::size_t>(found.judged)]);
  return code;
}

}  // namespace vmm::tools
