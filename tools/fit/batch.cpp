// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - the largest batch, from recordings of one program at two batch sizes.
//
// Requests of the two are matched in order, by the place in the program that makes them. Each pair
// gives the request's size as a line in the batch size: before any rounding, which the replay does.
module vmm.fit;

import vmm.recording;
import vmm.std;

namespace vmm::tools {

namespace {

// More differences than this: the programs do not do the same.
constexpr std::size_t difference_count_max = 4096;

/// The allocations of a recording: where each stands among the requests, and which place of the
/// program makes it.
struct allocation_list {
  std::vector<std::uint32_t> indices{};
  std::vector<std::uint64_t> places{};
};

[[nodiscard]] std::uint64_t place_of(const recording& from, std::uint32_t context,
                                     std::uint16_t stream) {
  // The numbers of stacks differ between two files; their texts do not.
  const recorded_range& range = from.stacks[from.contexts[context].stack];
  std::uint64_t hash = 1469598103934665603U + stream;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211U; };
  for (std::uint64_t i = 0; i < range.count; ++i) {
    const recorded_frame& frame = from.frames[from.stack_frames[range.first + i]];
    add(std::hash<std::string_view>{}(from.text(frame.file)));
    add(frame.line);
  }
  return hash;
}

[[nodiscard]] allocation_list list_allocations(const recording& from, const request_stream& asked) {
  allocation_list out;
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::uint64_t> known;
  for (std::size_t i = 0; i < asked.requests.size(); ++i) {
    const request& each = asked.requests[i];
    if (each.kind != request_kind::allocate) continue;
    const std::pair key{asked.contexts[i], each.stream};
    auto found = known.find(key);
    if (found == known.end())
      found = known.emplace(key, place_of(from, key.first, key.second)).first;
    out.indices.push_back(static_cast<std::uint32_t>(i));
    out.places.push_back(found->second);
  }
  return out;
}

constexpr std::uint32_t no_match = ~std::uint32_t{0};
constexpr std::size_t run_length = 4;  // equal places that show that two lists are in step again

/// Places that neither list has a match for, next to (i, j): how many of each are passed over until
/// the lists are in step again.
struct detour {
  std::size_t first = 0;
  std::size_t second = 0;
};
[[nodiscard]] std::optional<detour> find_detour(std::span<const std::uint64_t> one,
                                                std::span<const std::uint64_t> two) {
  const auto is_in_step = [&](std::size_t i, std::size_t j) {
    const std::size_t length = std::min({run_length, one.size() - i, two.size() - j});
    return std::equal(one.begin() + static_cast<std::ptrdiff_t>(i),
                      one.begin() + static_cast<std::ptrdiff_t>(i + length),
                      two.begin() + static_cast<std::ptrdiff_t>(j));
  };
  const std::size_t most = std::min(difference_count_max, one.size() + two.size());
  for (std::size_t sum = 1; sum <= most; ++sum) {
    for (std::size_t i = sum > two.size() ? sum - two.size() : 0; i <= std::min(sum, one.size());
         ++i) {
      if (is_in_step(i, sum - i)) return detour{i, sum - i};
    }
  }
  return std::nullopt;
}

/// For each place of `two` its match in `one`. Nothing where the lists differ too much.
[[nodiscard]] std::optional<std::vector<std::uint32_t>> match(std::span<const std::uint64_t> one,
                                                              std::span<const std::uint64_t> two) {
  std::vector<std::uint32_t> out(two.size(), no_match);
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t difference_count = 0;
  while (i < one.size() && j < two.size()) {
    if (one[i] == two[j]) {
      out[j++] = static_cast<std::uint32_t>(i++);
      continue;
    }
    const auto around = find_detour(one.subspan(i), two.subspan(j));
    if (!around) return std::nullopt;
    i += around->first;
    j += around->second;
    difference_count += around->first + around->second;
    if (difference_count > difference_count_max) return std::nullopt;
  }
  difference_count += one.size() - i + two.size() - j;
  if (difference_count > difference_count_max) return std::nullopt;
  return out;
}

/// The size of one request at any batch size.
struct size_line {
  double constant = 0;
  double by_item = 0;
};

class batch_model {
 public:
  /// Requires: the first batch is the smaller one.
  batch_model(const request_stream& larger, std::vector<size_line> lines)
      : base_(larger), lines_(std::move(lines)) {}

  [[nodiscard]] request_stream at(std::uint64_t batch) const {
    request_stream out = base_;
    std::uint64_t live_bytes = 0;
    std::vector<std::uint64_t> size_by_slot(out.slot_count);
    out.peak_live_bytes = 0;
    for (std::size_t i = 0; i < out.requests.size(); ++i) {
      request& each = out.requests[i];
      if (each.kind == request_kind::allocate) {
        const size_line& line = lines_[i];
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

 private:
  const request_stream& base_;
  std::vector<size_line> lines_;  // of each request
};

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

}  // namespace

batch_answer largest_batch(const batch_recordings& of, const fit_options& options) {
  batch_answer out;
  const request_stream small = requests_of(*of.smaller, busiest_device(*of.smaller));
  const request_stream large = requests_of(*of.larger, busiest_device(*of.larger));
  const allocation_list one = list_allocations(*of.smaller, small);
  const allocation_list two = list_allocations(*of.larger, large);
  const auto matches = match(one.places, two.places);
  if (!matches) {
    out.problem = "the two recordings differ in more than " + std::to_string(difference_count_max) +
                  " requests: record as many steps of the same program, without gradient "
                  "accumulation or chunks that follow the batch size";
    return out;
  }
  std::vector<size_line> lines(large.requests.size());
  const double items = static_cast<double>(of.larger_batch - of.smaller_batch);
  for (std::size_t i = 0; i < two.indices.size(); ++i) {
    const double after = static_cast<double>(large.requests[two.indices[i]].size_bytes);
    size_line& line = lines[two.indices[i]];
    line.constant = after;
    if ((*matches)[i] == no_match) {
      ++out.unmatched_count;
      continue;
    }
    const double before =
        static_cast<double>(small.requests[one.indices[(*matches)[i]]].size_bytes);
    line.by_item = (after - before) / items;
    line.constant = before - line.by_item * static_cast<double>(of.smaller_batch);
    const bool is_whole = line.by_item == std::floor(line.by_item) && line.constant >= 0;
    ++(after == before ? out.constant_count : is_whole ? out.line_count : out.inexact_count);
  }
  const batch_model model(large, std::move(lines));
  out.guess_from = 4 * of.larger_batch;
  for (const fit_device& device : options.devices) {
    batch_device_answer made;
    made.device = device;
    for (std::size_t i = 0; i < fit_allocator_count; ++i) {
      const auto which = static_cast<fit_allocator>(i);
      const auto at = [&](double factor) {
        return largest(1, batch_max, [&](std::uint64_t batch) {
          return is_served(which, model.at(batch), *of.larger, options, device, factor);
        });
      };
      made.limits[i] = {at(1 - batch_error), at(1), at(1 + batch_error)};
    }
    out.devices.push_back(made);
  }
  return out;
}

}  // namespace vmm::tools
