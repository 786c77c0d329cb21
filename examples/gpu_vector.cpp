// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A vector on a CUDA device that grows while a kernel reads it on another stream. It grows at the
// same address, so the kernel never notices; every element is checked on the device.
//
// Usage: example_gpu_vector [largest size in MiB, default 4096]
#include <array>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string_view>
#include <system_error>

import vmm;
import vmm.backend;
import vmm.kernels;

namespace {

using numbers = vmm::vector<std::uint64_t>;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t first_count = 64 * mib / sizeof(std::uint64_t);
constexpr std::uint64_t seed = 42;

int fail(const vmm::error& what) {
  std::fprintf(stderr, "%s\n", vmm::describe(what).c_str());
  return 1;
}

// What one growth showed.
struct growth {
  double us = 0;
  bool reader_still_runs = false;
  std::uint64_t wrong_count = 0;
};

class show {
 public:
  show(vmm::cuda_driver& driver, vmm::tools::kernel_set& kernels, numbers& values)
      : driver_(driver), kernels_(kernels), values_(values) {}

  // Streams, an event, and a word of device memory that kernels count wrong elements in.
  vmm::status prepare() {
    const auto reader = driver_.create_stream();
    if (!reader) return reader.error();
    const auto writer = driver_.create_stream();
    if (!writer) return writer.error();
    const auto read_done = driver_.create_event();
    if (!read_done) return read_done.error();
    reader_ = *reader;
    writer_ = *writer;
    read_done_ = *read_done;
    return values_.resize(first_count);
  }

  vmm::status write(std::uint64_t from) {
    const vmm::address_range part{values_.data_address() + from * 8, (values_.size() - from) * 8};
    const vmm::tools::pattern_request request{part, seed + from * vmm::tools::pattern_step,
                                              writer_};
    // The zeros that resize wrote are in the default stream.
    if (auto s = driver_.synchronize_stream(vmm::stream_handle::default_stream); !s) return s;
    if (auto s = kernels_.fill(request); !s) return s;
    return driver_.synchronize_stream(writer_);
  }

  // Doubles the vector while the reader's kernels run over what is there, then fills the new half.
  vmm::status grow(vmm::address counter, growth& seen) {
    const std::uint64_t old_count = values_.size();
    const vmm::address_range old{values_.data_address(), old_count * 8};
    if (auto s = kernels_.spin(5'000'000, reader_); !s) return s;
    if (auto s = kernels_.check({old, seed, reader_}, counter); !s) return s;
    if (auto s = driver_.record_event(read_done_, reader_); !s) return s;
    const auto begin = std::chrono::steady_clock::now();
    if (auto s = values_.resize(2 * old_count); !s) return s;
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    seen.us = taken.count();
    const auto finished = driver_.query_event(read_done_);
    if (!finished) return finished.error();
    seen.reader_still_runs = !*finished;
    if (auto s = write(old_count); !s) return s;
    const vmm::address_range all{values_.data_address(), values_.size() * 8};
    if (auto s = kernels_.check({all, seed, reader_}, counter); !s) return s;
    if (auto s = driver_.synchronize_stream(reader_); !s) return s;
    std::array<std::uint64_t, 1> wrong{};
    if (auto s = driver_.read(std::as_writable_bytes(std::span(wrong)), counter); !s) return s;
    seen.wrong_count = wrong[0];
    return {};
  }

  void end() {
    (void)driver_.destroy_event(read_done_);
    (void)driver_.destroy_stream(writer_);
    (void)driver_.destroy_stream(reader_);
  }

 private:
  vmm::cuda_driver& driver_;
  vmm::tools::kernel_set& kernels_;
  numbers& values_;
  vmm::stream_handle reader_{};
  vmm::stream_handle writer_{};
  vmm::event_handle read_done_{};
};

int run(vmm::cuda_driver& driver, vmm::tools::kernel_set& kernels, std::uint64_t last_count) {
  vmm::manager memory(driver);
  numbers counter(memory);
  numbers values(memory, last_count);
  show s(driver, kernels, values);
  if (const auto ready = counter.resize(1); !ready) return fail(ready.error());
  if (const auto ready = s.prepare(); !ready) return fail(ready.error());
  if (const auto first = s.write(0); !first) return fail(first.error());
  const vmm::address base = values.data_address();
  std::uint64_t wrong_count = 0;
  while (2 * values.size() <= last_count) {
    growth seen;
    if (const auto grown = s.grow(counter.data_address(), seen); !grown) return fail(grown.error());
    std::printf("grown to %5" PRIu64 " MiB in %7.1f us, %s, %" PRIu64 " wrong elements\n",
                values.size() * 8 / mib, seen.us,
                seen.reader_still_runs ? "the reader still running" : "the reader done",
                seen.wrong_count);
    wrong_count += seen.wrong_count;
  }
  s.end();
  const bool stayed = values.data_address() == base;
  std::printf("%s, %" PRIu64 " bytes copied to grow, %" PRIu64 " wrong elements in all\n",
              stayed ? "the address never changed" : "the address changed",
              memory.statistics().real_copy_count, wrong_count);
  return stayed && wrong_count == 0 ? 0 : 1;
}

bool read_mib(std::string_view text, std::uint64_t& into) {
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, into);
  return failure == std::errc{} && rest == end && into >= 128 && into <= 1048576;
}

}  // namespace

int main(int count, char** words) {
  std::uint64_t largest = 4096;
  if (count > 2 || (count == 2 && !read_mib(words[1], largest))) {
    std::fputs("usage: example_gpu_vector [MIB]; the largest size, from 128 to 1048576\n", stderr);
    return 2;
  }
  auto driver = vmm::cuda_driver::open();
  if (!driver) return fail(driver.error());
  std::printf("%s\n", driver->description().device_name);
  auto kernels = vmm::tools::kernel_set::load(*driver);
  if (!kernels) return fail(kernels.error());
  return run(*driver, *kernels, largest * mib / sizeof(std::uint64_t));
}
