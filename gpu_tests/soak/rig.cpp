// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "rig.hpp"

namespace soak {

void stop(std::string_view text) {
  std::fflush(stdout);
  std::fprintf(stderr, "vmm-soak: %.*s\n", static_cast<int>(text.size()), text.data());
  std::exit(2);
}

vmm::cuda_driver open_device() {
  auto opened = vmm::cuda_driver::open();
  if (!opened) stop("no CUDA device: " + vmm::describe(opened.error()));
  return std::move(*opened);
}

vmm::pool_policy policy_of(const settings& how) {
  const auto named = vmm::pool_policy::by_name(how.policy);
  if (!named) stop("unknown policy " + how.policy);
  return *named;
}

void publish(const settings& how, const std::string& text) {
  std::fputs(text.c_str(), stdout);
  if (how.markdown.empty()) return;
  std::ofstream file(how.markdown, std::ios::binary | std::ios::app);
  file << text;
  if (!file.flush()) stop("cannot write " + how.markdown);
}

std::string number(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

rig::rig(vmm::cuda_driver& on)
    : driver(on), kernels_(must(vmm::tools::kernel_set::load(on))), memory_(on) {
  for (vmm::stream_handle& stream : streams_) stream = must(driver.create_stream());
  mark_ = must(driver.create_event());
  order_ = must(driver.create_event());
  counter_ = must(memory_.allocate(8));
  const std::array<std::uint64_t, 1> zero{};
  must(driver.write(counter_, std::as_bytes(std::span(zero))));
}

rig::~rig() {
  for (const vmm::stream_handle stream : streams_) {
    must(driver.synchronize_stream(stream));
    must(driver.destroy_stream(stream));
  }
  must(driver.destroy_event(mark_));
  must(driver.destroy_event(order_));
  must(memory_.free(counter_));
}

void rig::order(std::size_t first, std::size_t second) {
  must(driver.record_event(order_, streams_[first]));
  must(driver.wait_event(streams_[second], order_));
}

std::uint64_t rig::wrong_words() {
  for (const vmm::stream_handle stream : streams_) must(driver.synchronize_stream(stream));
  std::array<std::uint64_t, 1> wrong{};
  must(driver.read(std::as_writable_bytes(std::span(wrong)), counter_));
  return wrong[0];
}

}  // namespace soak
