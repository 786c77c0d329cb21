// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What rights for a second device, other places, spilling to the host, and clearing cost.
//
//   bench_special fake   two devices of the simulated driver, in its virtual time
//   bench_special host   memory files of Linux, in real time: clearing only
//   bench_special cuda   the first device, and the second one where there is one
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <vector>

import vmm;
import vmm.fake;
import vmm.multi_device;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr int rounds = 31;

void need(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "bench_special: %s failed\n", what);
  std::exit(1);
}

// The driver, and the time of its world in microseconds.
struct world {
  vmm::driver_interface& driver;
  std::function<double()> now_us;
  vmm::location other = vmm::device(1);
  bool has_other = false;
};

double median_us(const world& in, const std::function<void()>& before,
                 const std::function<void()>& work) {
  std::vector<double> taken;
  for (int i = 0; i < rounds; ++i) {
    before();
    const double begin = in.now_us();
    work();
    taken.push_back(in.now_us() - begin);
  }
  std::nth_element(taken.begin(), taken.begin() + rounds / 2, taken.end());
  return taken[rounds / 2];
}

void print(const char* what, std::uint64_t size_bytes, double us) {
  std::printf("%-44s %6llu MiB %12.2f us\n", what,
              static_cast<unsigned long long>(size_bytes / mib), us);
}

// ---- rights ------------------------------------------------------------------------

void rights(const world& in) {
  constexpr std::uint64_t size_bytes = 64 * mib;
  for (const bool shared : {false, true}) {
    if (shared && !in.has_other) continue;
    vmm::manager_options how;
    if (shared) need(how.peers.set({in.other, vmm::access::read}), "naming a peer");
    vmm::manager managed(in.driver, how);
    vmm::address at{};
    const auto drop = [&] {
      if (at) need(managed.free_idle(at).has_value(), "free");
    };
    const double us = median_us(in, drop, [&] {
      const auto made = managed.allocate(size_bytes);
      need(made.has_value(), "allocate");
      at = *made;
    });
    print(shared ? "map for the home and one peer" : "map for the home", size_bytes, us);
    if (shared) {
      const vmm::access_grant off{in.other, vmm::access::none};
      const vmm::access_grant on{in.other, vmm::access::read};
      print("give a standing block to a peer", size_bytes,
            median_us(
                in, [&] { need(managed.set_peers({&off, 1}).has_value(), "set_peers"); },
                [&] { need(managed.set_peers({&on, 1}).has_value(), "set_peers"); }));
    }
    drop();
  }
}

// ---- places ------------------------------------------------------------------------

// A copy of the block onto itself's other half, on a stream, by the home.
void place(const world& in, const char* name, const vmm::pool_options& how,
           std::uint64_t ballast_bytes) {
  constexpr std::uint64_t size_bytes = 256 * mib;
  vmm::stream_pool pool(in.driver, how);
  vmm::address ballast{};
  if (ballast_bytes != 0) {
    const auto made = pool.allocate(ballast_bytes, {});
    need(made.has_value(), "allocate of what fills the device");
    ballast = *made;
  }
  const auto at = pool.allocate(size_bytes, {});
  need(at.has_value(), name);
  const auto finish = [&] { need(in.driver.synchronize_stream({}).has_value(), "synchronize"); };
  finish();
  const double us = median_us(
      in, [] {},
      [&] {
        need(in.driver.copy({*at, *at + size_bytes / 2, size_bytes / 2, {}}).has_value(), "copy");
        finish();
      });
  print(name, size_bytes / 2, us);
  need(pool.free(*at, {}).has_value(), "free");
  if (ballast) need(pool.free(ballast, {}).has_value(), "free");
}

void places(const world& in) {
  place(in, "copy at home", {}, 0);
  if (in.has_other) place(in, "copy at another device", {{.placement = in.other}}, 0);
  if (!in.driver.feature_set().host_node_location) return;
  place(in, "copy at a node of the host", {{.placement = vmm::host_node(0)}}, 0);
  const auto memory = in.driver.query_memory(in.driver.home());
  need(memory.has_value(), "asking for the device's memory");
  const std::uint64_t ballast_bytes = memory->free_bytes / mib * mib - 128 * mib;
  place(in, "copy where the device is full: spilled", {{.spill = vmm::host_node(0)}},
        ballast_bytes);
}

// ---- clearing ----------------------------------------------------------------------

void clearing(const world& in) {
  struct rule {
    const char* name;
    vmm::contents_rule what;
  };
  constexpr rule all[] = {
      {"allocate and free, contents none", vmm::contents_rule::none},
      {"allocate and free, zero on acquire", vmm::contents_rule::zero_on_acquire},
      {"allocate and free, zero on release", vmm::contents_rule::zero_on_release},
      {"allocate and free, poison", vmm::contents_rule::poison}};
  for (const std::uint64_t size_bytes : {2 * mib, 64 * mib}) {
    for (const rule& each : all) {
      vmm::stream_pool pool(in.driver, {{.contents = each.what}});
      const auto pair = [&] {
        const auto at = pool.allocate(size_bytes, {});
        need(at.has_value(), "allocate");
        need(pool.free(*at, {}).has_value(), "free");
        if (in.driver.feature_set().streams)
          need(in.driver.synchronize_stream({}).has_value(), "synchronize");
      };
      pair();  // maps the memory
      print(each.name, size_bytes, median_us(in, [] {}, pair));
    }
  }
}

// ---- compression -------------------------------------------------------------------

// Whether it was granted, and what a copy of zeros takes beside one of noise.
void compression(const world& in) {
  constexpr std::uint64_t size_bytes = 64 * mib;
  if (!in.driver.feature_set().compression) return;
  for (const bool wished : {false, true}) {
    vmm::manager managed(in.driver, {.compressible = wished});
    const auto from = managed.allocate(size_bytes);
    const auto to = managed.allocate(size_bytes);
    need(from && to, "allocate");
    const auto granted = vmm::granted_of(managed, *from);
    need(granted.has_value(), "asking what was granted");
    const auto copy = [&] {
      need(in.driver.copy({*to, *from, size_bytes, {}}).has_value(), "copy");
      need(in.driver.synchronize_stream({}).has_value(), "synchronize");
    };
    std::vector<std::byte> noise(size_bytes);
    std::uint64_t word = 88172645463325252ULL;
    for (std::byte& each : noise) {
      word ^= word << 13;
      word ^= word >> 7;
      word ^= word << 17;
      each = static_cast<std::byte>(word);
    }
    need(in.driver.fill({{*from, size_bytes}, 0, {}}).has_value(), "fill");
    std::printf("compression wished %d granted %d\n", wished, granted->compressible);
    print("  copy of zeros", size_bytes, median_us(in, [] {}, copy));
    need(in.driver.write(*from, noise).has_value(), "write");
    print("  copy of noise", size_bytes, median_us(in, [] {}, copy));
    need(managed.free(*from) && managed.free(*to), "free");
  }
}

double wall_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

int on_fake() {
  vmm::fake::profile machine = vmm::fake::profile::cuda();
  machine.device_count = 2;
  vmm::fake_driver driver(machine);
  vmm::driver_ref with(driver);
  const world in{*with, [&] { return driver.now_us(); }, vmm::device(1), true};
  rights(in);
  places(in);
  clearing(in);
  compression(in);
  return driver.misuse_count() == 0 ? 0 : 1;
}

int on_host() {
  auto driver = vmm::host_driver::open();
  need(driver.has_value(), "opening the host driver");
  vmm::driver_ref with(*driver);
  clearing({*with, wall_us});
  return 0;
}

int on_cuda() {
  auto driver = vmm::cuda_driver::open();
  if (!driver) {
    std::fprintf(stderr, "bench_special: %s\n", vmm::describe(driver.error()).c_str());
    return 77;
  }
  vmm::driver_ref with(*driver);
  const auto link = with->query_peer({vmm::device(1), vmm::device(0)});
  const world in{*with, wall_us, vmm::device(1), link && link->is_reachable()};
  rights(in);
  places(in);
  clearing(in);
  compression(in);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view where = count > 1 ? words[1] : "fake";
  if (where == "fake") return on_fake();
  if (where == "host") return on_host();
  if (where == "cuda") return on_cuda();
  std::fprintf(stderr, "bench_special takes one of fake, host, cuda\n");
  return 2;
}
