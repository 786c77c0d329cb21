// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - the largest batch, from recordings of one program at two batch sizes.
//
// A program repeats itself: of each recording the beginning and two steady iterations are taken, so
// that the numbers of steps may differ. All is taken where another iteration holds more. Requests
// of the two are matched in order, by the place in the program that makes them. Each pair gives the
// request's size as a line in the batch size: before any rounding, which the replay does.
module vmm.fit;

import vmm.recording;
import vmm.replay;
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
  std::unordered_set<std::uint64_t> bare_places{};  ///< without a stack
};

[[nodiscard]] std::uint64_t place_of(const recording& from, std::uint32_t context,
                                     std::uint16_t stream) {
  // The numbers of stacks differ between two files; their texts do not.
  const recorded_range& range = from.stacks[from.contexts[context].stack];
  std::uint64_t hash = 1469598103934665603U + stream;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211U; };
  for (std::uint64_t i = 0; i < range.count; ++i) {
    const recorded_frame& frame = from.frames[from.stack_frames[range.first + i]];
    std::string_view file = from.text(frame.file);
    file.remove_prefix(file.find_last_of('/') + 1);  // a script is started by different paths
    add(std::hash<std::string_view>{}(file));
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
    if (found == known.end()) {
      found = known.emplace(key, place_of(from, key.first, key.second)).first;
      if (from.stacks[from.contexts[key.first].stack].count == 0)
        out.bare_places.insert(found->second);
    }
    out.indices.push_back(static_cast<std::uint32_t>(i));
    out.places.push_back(found->second);
  }
  return out;
}

/// The end of a recording repeats `length` places `count` times.
struct repetition {
  std::size_t length = 0;
  std::size_t count = 0;
};
constexpr std::size_t places_max = std::size_t{1} << 22;  // that are compared, from the end

/// The repetition that covers the most. Cost: linear.
[[nodiscard]] repetition find_repetition(std::span<const std::uint64_t> places) {
  const std::size_t count = std::min(places.size(), places_max);
  const auto at = [&](std::size_t i) { return places[places.size() - 1 - i]; };
  // same[i]: how many places before the last i are those before the end (Z-function).
  std::vector<std::uint32_t> same(count);
  repetition found;
  std::size_t covered = 0;
  std::size_t first = 0;
  std::size_t end = 0;
  for (std::size_t i = 1; i < count; ++i) {
    std::size_t length = i < end ? std::min<std::size_t>(end - i, same[i - first]) : 0;
    while (i + length < count && at(length) == at(i + length)) ++length;
    same[i] = static_cast<std::uint32_t>(length);
    if (i + length > end) {
      first = i;
      end = i + length;
    }
    if (length < i || i + length <= covered) continue;
    covered = i + length;
    found = {i, covered / i};
  }
  return found;
}

constexpr std::size_t steady_count = 2;  // iterations that are taken

/// Leaves the beginning and two steady iterations, and returns the allocations of one. 0 where the
/// recording does not repeat itself: then all is taken.
[[nodiscard]] std::uint64_t cut(request_stream& asked, allocation_list& allocations) {
  const repetition found = find_repetition(allocations.places);
  if (found.count < steady_count) return 0;
  const std::size_t left_count =
      allocations.places.size() - (found.count - steady_count) * found.length;
  if (left_count < allocations.places.size()) {
    asked.requests.resize(allocations.indices[left_count]);
    asked.contexts.resize(asked.requests.size());
    asked.times_us.resize(asked.requests.size());
    allocations.indices.resize(left_count);
    allocations.places.resize(left_count);
  }
  return found.length;
}

/// Of the first `count` requests; each rounded up to 512.
[[nodiscard]] std::uint64_t peak_live_of(const request_stream& asked, std::size_t count) {
  std::vector<std::uint64_t> size_by_slot(asked.slot_count);
  std::uint64_t live_bytes = 0;
  std::uint64_t peak_bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const request& each = asked.requests[i];
    if (each.kind == request_kind::allocate) {
      size_by_slot[each.slot] = (each.size_bytes + 511) / 512 * 512;
      live_bytes += size_by_slot[each.slot];
      peak_bytes = std::max(peak_bytes, live_bytes);
    } else if (each.kind == request_kind::free || each.kind == request_kind::free_completed) {
      live_bytes -= size_by_slot[each.slot];
    }
  }
  return peak_bytes;
}

/// One recording of the two. `all`: nothing is cut.
struct batch_side {
  request_stream asked;
  allocation_list allocations;
  std::uint64_t iteration_length = 0;

  batch_side(const recording& from, std::uint64_t device, bool all)
      : asked(requests_of(from, device)), allocations(list_allocations(from, asked)) {
    if (!all) iteration_length = cut(asked, allocations);
  }
  [[nodiscard]] std::size_t count() const { return allocations.places.size(); }
  [[nodiscard]] std::uint64_t size_bytes(std::size_t allocation) const {
    return asked.requests[allocations.indices[allocation]].size_bytes;
  }
  /// Whether an iteration that was cut holds more than those that are left: iterations differ.
  [[nodiscard]] bool has_lost_peak() const {
    constexpr double same_peak = 0.99;
    const std::uint64_t left_bytes = peak_live_of(asked, asked.requests.size());
    return static_cast<double>(left_bytes) < same_peak * static_cast<double>(asked.peak_live_bytes);
  }
};

struct batch_sides {
  batch_side small;
  batch_side large;

  explicit batch_sides(const batch_recordings& of, bool all = false)
      : small(*of.smaller, device_of(of, *of.smaller), all),
        large(*of.larger, device_of(of, *of.larger), all) {}
};

[[nodiscard]] batch_sides sides_of(const batch_recordings& of) {
  batch_sides out(of);
  if (out.small.has_lost_peak() || out.large.has_lost_peak()) return batch_sides(of, true);
  return out;
}

constexpr std::uint32_t no_match = ~std::uint32_t{0};

/// Positions in the first list by the difference of the positions in the two lists.
class furthest_list {
 public:
  explicit furthest_list(std::ptrdiff_t difference_count)
      : most_(difference_count),
        positions_(static_cast<std::size_t>(2 * difference_count + 3), 0) {}
  [[nodiscard]] std::ptrdiff_t& operator[](std::ptrdiff_t diagonal) {
    return positions_[static_cast<std::size_t>(diagonal + most_ + 1)];
  }

 private:
  std::ptrdiff_t most_;
  std::vector<std::ptrdiff_t> positions_;
};

/// Which requests of two recordings can be one request of the program at two batch sizes.
class pair_rule {
 public:
  pair_rule(const batch_side& small, const batch_side& large, double ratio)
      : small_(small), large_(large), ratio_(ratio) {
    const auto& bare = small.allocations.bare_places;
    for (const std::uint64_t each : small.allocations.places)
      has_stacks_ = has_stacks_ || !bare.contains(each);
  }
  /// Of one place, and of a size that stays or grows with the batch. Many requests of a backward
  /// pass have no stack: of these the size either stays or is in proportion to the batch.
  [[nodiscard]] bool is_pair(std::size_t one, std::size_t two) const {
    const std::uint64_t place = small_.allocations.places[one];
    if (place != large_.allocations.places[two]) return false;
    const auto before = static_cast<double>(small_.size_bytes(one));
    const auto after = static_cast<double>(large_.size_bytes(two));
    constexpr double unit_bytes = 512;
    constexpr double tolerance = 0.001;
    const double grown = before * ratio_;
    const double difference = after > grown ? after - grown : grown - after;
    if (after == before || difference <= std::max(unit_bytes, tolerance * grown)) return true;
    const bool is_bare = has_stacks_ && small_.allocations.bare_places.contains(place);
    return !is_bare && after > before && after < grown * (1 + grown_more);
  }
  [[nodiscard]] std::size_t count_one() const { return small_.count(); }
  [[nodiscard]] std::size_t count_two() const { return large_.count(); }

 private:
  static constexpr double grown_more = 1;  // a workspace may grow faster than the batch

  const batch_side& small_;
  const batch_side& large_;
  double ratio_;
  bool has_stacks_ = false;
};

/// A longest common subsequence of the allocations of two recordings (Myers' algorithm): for each
/// of `two` its match in `one`. Nothing where the lists differ too much.
/// Cost: linear in the lists, square in the differences.
class place_matcher {
 public:
  explicit place_matcher(const pair_rule& rule) : rule_(rule) {}

  [[nodiscard]] std::optional<std::vector<std::uint32_t>> match() {
    const auto most = static_cast<std::ptrdiff_t>(difference_count_max);
    for (std::ptrdiff_t count = 0; count <= most; ++count)
      if (extend(count)) return trace_back(count);
    return std::nullopt;
  }

 private:
  // Whether a step from the diagonal above, a place of `two` alone, leads further than one from the
  // diagonal below.
  [[nodiscard]] static bool is_of_two(furthest_list& before, std::ptrdiff_t diagonal,
                                      std::ptrdiff_t count) {
    return diagonal == count ||
           (diagonal != -count && before[diagonal - 1] >= before[diagonal + 1] + 1);
  }
  // All paths with so many differences; whether one reaches both ends.
  [[nodiscard]] bool extend(std::ptrdiff_t count) {
    const auto size_one = static_cast<std::ptrdiff_t>(rule_.count_one());
    const auto size_two = static_cast<std::ptrdiff_t>(rule_.count_two());
    furthest_list now(count);
    bool is_done = false;
    for (std::ptrdiff_t diagonal = -count; diagonal <= count; diagonal += 2) {
      std::ptrdiff_t at = 0;
      if (count != 0) {
        furthest_list& before = steps_.back();
        at = is_of_two(before, diagonal, count) ? before[diagonal - 1] : before[diagonal + 1] + 1;
      }
      while (at < size_one && at + diagonal < size_two && at + diagonal >= 0 &&
             rule_.is_pair(static_cast<std::size_t>(at), static_cast<std::size_t>(at + diagonal)))
        ++at;
      now[diagonal] = at;
      is_done = is_done || (at >= size_one && at + diagonal >= size_two);
    }
    steps_.push_back(std::move(now));
    return is_done;
  }
  [[nodiscard]] std::vector<std::uint32_t> trace_back(std::ptrdiff_t count) {
    std::vector<std::uint32_t> out(rule_.count_two(), no_match);
    auto at = static_cast<std::ptrdiff_t>(rule_.count_one());
    auto diagonal = static_cast<std::ptrdiff_t>(rule_.count_two()) - at;
    for (; count >= 0; --count) {
      std::ptrdiff_t begin = 0;
      std::ptrdiff_t next_diagonal = 0;
      std::ptrdiff_t next = 0;
      if (count != 0) {
        furthest_list& before = steps_[static_cast<std::size_t>(count - 1)];
        const bool is_of_second = is_of_two(before, diagonal, count);
        next_diagonal = is_of_second ? diagonal - 1 : diagonal + 1;
        next = before[next_diagonal];
        begin = is_of_second ? next : next + 1;
      }
      while (at > begin) {
        --at;
        out[static_cast<std::size_t>(at + diagonal)] = static_cast<std::uint32_t>(at);
      }
      at = next;
      diagonal = next_diagonal;
    }
    return out;
  }

  const pair_rule& rule_;
  std::vector<furthest_list> steps_{};  // for each number of differences
};

[[nodiscard]] std::optional<std::vector<std::uint32_t>> match(const batch_recordings& of,
                                                              const batch_side& small,
                                                              const batch_side& large) {
  const double ratio = static_cast<double>(of.larger_batch) / static_cast<double>(of.smaller_batch);
  const pair_rule rule(small, large, ratio);
  return place_matcher(rule).match();
}

/// The size of each request of the larger batch as a line; counts them in `out`.
[[nodiscard]] std::vector<size_line> find_lines(const batch_recordings& of, const batch_side& small,
                                                const batch_side& large,
                                                std::span<const std::uint32_t> matches,
                                                batch_answer& out) {
  std::vector<size_line> lines(large.asked.requests.size());
  std::unordered_set<std::uint64_t> constants;
  const double items = static_cast<double>(of.larger_batch - of.smaller_batch);
  for (std::size_t i = 0; i < matches.size(); ++i) {
    if (matches[i] == no_match) continue;
    const std::uint64_t after_bytes = large.size_bytes(i);
    const std::uint64_t before_bytes = small.size_bytes(matches[i]);
    size_line& line = lines[large.allocations.indices[i]];
    const double before = static_cast<double>(before_bytes);
    line.by_item = (static_cast<double>(after_bytes) - before) / items;
    line.constant = before - line.by_item * static_cast<double>(of.smaller_batch);
    const bool is_whole = line.by_item == std::floor(line.by_item) && line.constant >= 0;
    const bool is_constant = after_bytes == before_bytes;
    if (is_constant) constants.insert(after_bytes);
    ++(is_constant ? out.constant_count : is_whole ? out.line_count : out.inexact_count);
  }
  // A library takes other steps for more data. Without a size that others have, those are as large
  // as the data.
  for (std::size_t i = 0; i < matches.size(); ++i) {
    if (matches[i] != no_match) continue;
    ++out.unmatched_count;
    const std::uint64_t bytes = large.size_bytes(i);
    size_line& line = lines[large.allocations.indices[i]];
    const double size = static_cast<double>(bytes);
    (constants.contains(bytes) ? line.constant : line.by_item) =
        constants.contains(bytes) ? size : size / static_cast<double>(of.larger_batch);
  }
  return lines;
}

/// Whether at least half of the larger batch's requests have a match.
[[nodiscard]] bool has_half(const std::optional<std::vector<std::uint32_t>>& matches) {
  if (!matches) return false;
  const auto missing = std::count(matches->begin(), matches->end(), no_match);
  return static_cast<std::size_t>(missing) * 2 <= matches->size();
}

/// Empty, or why the recordings are not of one program at the two batch sizes.
[[nodiscard]] std::string problem_of(const batch_recordings& of, const batch_side& one,
                                     const batch_side& two,
                                     const std::optional<std::vector<std::uint32_t>>& matches) {
  const std::string small = "batch " + std::to_string(of.smaller_batch);
  const std::string large = "batch " + std::to_string(of.larger_batch);
  const bool has_less = one.asked.peak_live_bytes > two.asked.peak_live_bytes;
  if (has_less && (has_half(matches) || has_half(match(of, two, one))))
    return large + " has less live memory than " + small +
           ": name the batch sizes in the order of the files";
  if (!matches)
    return "the two recordings differ in more than " + std::to_string(difference_count_max) +
           " requests: record the same program, without gradient accumulation or chunks that "
           "follow the batch size";
  const auto missing =
      static_cast<std::uint64_t>(std::count(matches->begin(), matches->end(), no_match));
  if (!has_half(matches))
    return "only " + show_count(matches->size() - missing) + " of " + show_count(matches->size()) +
           " requests of " + large + " come from places of the program that " + small +
           " has too: record one program twice";
  return "";
}

void add_notes(const recording& from, std::uint64_t device, std::uint64_t batch,
               const request_stream& asked, batch_answer& into) {
  into.is_peak_known = into.is_peak_known && is_peak_known(from, device, asked);
  for (const std::string& each : notes_of(from, device, asked))
    into.notes.push_back("batch " + std::to_string(batch) + ": " + each);
}

}  // namespace

std::uint64_t device_of(const batch_recordings& of, const recording& from) {
  return of.device ? *of.device : busiest_device(from);
}

batch_program program_of(const batch_recordings& of) {
  batch_program out;
  for (const recording* const each : {of.smaller, of.larger}) {
    out.found.problem = problem_of_device(*each, of.device);
    if (!out.found.problem.empty()) return out;
  }
  auto [small, large] = sides_of(of);
  if (!small.asked.has_events || !large.asked.has_events) {
    out.found.problem = "a recording has no events: python -m libvmm record writes them";
    return out;
  }
  const auto matches = match(of, small, large);
  out.found.problem = problem_of(of, small, large, matches);
  if (!out.found.problem.empty()) return out;
  out.found.iteration_length = large.iteration_length;
  out.lines = find_lines(of, small, large, *matches, out.found);
  add_notes(*of.smaller, device_of(of, *of.smaller), of.smaller_batch, small.asked, out.found);
  add_notes(*of.larger, device_of(of, *of.larger), of.larger_batch, large.asked, out.found);
  if (out.found.line_count + out.found.inexact_count == 0)
    out.found.problem = "no request is larger at batch " + std::to_string(of.larger_batch) +
                        " than at batch " + std::to_string(of.smaller_batch) +
                        ": both recordings are of one batch size";
  out.requests = std::move(large.asked);
  return out;
}

}  // namespace vmm::tools
