// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - memory over the requests under each allocator, for a page.
module vmm.fit;

import vmm.recording;
import vmm.replay;
import vmm.std;

namespace vmm::tools {

namespace {

constexpr std::uint64_t point_count_max = 2000;

using point_list = std::vector<std::uint64_t>;

// The most that is live in each point.
[[nodiscard]] point_list live_points(const request_stream& asked, std::uint64_t stride) {
  constexpr std::uint64_t step_bytes = 512;
  point_list out;
  std::vector<std::uint64_t> bytes_by_slot(asked.slot_count);
  std::uint64_t live_bytes = 0;
  for (std::size_t i = 0; i < asked.requests.size(); ++i) {
    const request& each = asked.requests[i];
    if (i % stride == 0) out.push_back(live_bytes);
    if (each.kind == request_kind::allocate) {
      const std::uint64_t count = std::max<std::uint64_t>((each.size_bytes + 511) / step_bytes, 1);
      live_bytes += bytes_by_slot[each.slot] = count * step_bytes;
    } else if (each.kind == request_kind::free || each.kind == request_kind::free_completed) {
      live_bytes -= std::exchange(bytes_by_slot[each.slot], 0);
    }
    out.back() = std::max(out.back(), live_bytes);
  }
  return out;
}

// The band of a policy that is not published: the figure's factors, of live memory and of the most
// of it so far.
[[nodiscard]] std::array<point_list, 2> band(const point_list& live, const fit_figure& of) {
  std::array<point_list, 2> out;
  const std::uint64_t peak_bytes =
      std::max<std::uint64_t>(*std::max_element(live.begin(), live.end()), 1);
  const auto part = [&](std::uint64_t figure, std::uint64_t bytes) {
    return static_cast<std::uint64_t>(static_cast<double>(figure) * static_cast<double>(bytes) /
                                      static_cast<double>(peak_bytes));
  };
  std::uint64_t most_bytes = 0;
  for (const std::uint64_t each : live) {
    most_bytes = std::max(most_bytes, each);
    out[0].push_back(part(of.held_low_bytes, each));
    out[1].push_back(part(of.held_bytes, most_bytes));
  }
  return out;
}

[[nodiscard]] std::string json_list(const point_list& points) {
  std::string out;
  for (const std::uint64_t each : points) out += (out.empty() ? "" : ",") + std::to_string(each);
  return "[" + out + "]";
}

[[nodiscard]] point_list model_points(const recording& from, const request_stream& asked,
                                      const fit_answer& found, caching_options conf,
                                      std::uint64_t stride) {
  const fit_allocator which =
      conf.expandable_segments ? fit_allocator::expandable : fit_allocator::native;
  std::vector<start_layout> start;
  if (which == found.recorded && found.check)
    start = start_of(from, found.device, asked, conf.expandable_segments);
  caching_model model(conf);
  memory_curve curve(stride);
  (void)play(asked, model, {.start = start, .curve = &curve});
  return curve.points();
}

}  // namespace

std::string to_page_json(const std::string& path, const recording& from,
                         const request_stream& asked, const fit_answer& found,
                         const fit_options& options) {
  const std::uint64_t stride = (asked.requests.size() + point_count_max - 1) / point_count_max;
  const point_list live = live_points(asked, stride);
  std::string curves;
  const auto add = [&](const char* name, point_list points) {
    // A replay that ran out of memory ends early.
    points.resize(live.size(), points.empty() ? 0 : points.back());
    curves += std::string(", \"") + name + "\": " + json_list(points);
  };
  point_list firsts;
  point_list times_ns;
  for (std::uint64_t i = 0; i < live.size(); ++i) {
    firsts.push_back(i * stride);
    times_ns.push_back((asked.times_us[i * stride] - asked.times_us.front()) * 1000);
  }
  // Of an estimate the recorded times are not those of the program.
  if (times_ns.back() != 0 && !options.is_estimate) add("time_ns", times_ns);
  add("live", live);
  caching_options conf = options_of(from);
  (void)read_conf(options.conf, conf);  // has been tried
  for (const fit_allocator which : {fit_allocator::native, fit_allocator::expandable}) {
    conf.expandable_segments = which == fit_allocator::expandable;
    add(name_of(which), model_points(from, asked, found, conf, stride));
  }
  memory_curve pool(stride);
  (void)play_pool(asked, {roomy_bytes(asked), from.form}, &pool);
  add(name_of(fit_allocator::vmm), pool.points());
  const auto async = band(live, found.figures[static_cast<std::size_t>(fit_allocator::async)]);
  add("async_low", async[0]);
  add("async_high", async[1]);
  std::string sizes;
  for (const fit_device_answer& each : found.devices)
    sizes += (sizes.empty() ? "" : ", ") + json_string(each.device.name) + ": " +
             std::to_string(each.device.size_bytes);
  std::string out = to_json(path, from, found);
  out.pop_back();  // the closing brace
  return out + ", \"device_bytes\": {" + sizes +
         "}, \"curves\": {\"request\": " + json_list(firsts) + curves + "}}";
}

std::string with_batches(std::string document, const std::string& title,
                         const batch_answer& found) {
  document.pop_back();  // the closing brace
  return document + ", \"title\": " + json_string(title) + ", \"batches\": " + to_json(found) + "}";
}

}  // namespace vmm::tools
