// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What rights for a second device, other places, spilling to the host, and clearing cost.
//
//   bench_special fake   two devices of the simulated driver, in its virtual time
//   bench_special host   memory files of Linux, in real time: clearing only
//   bench_special cuda   the first device, and the second one where there is one

#include "report.hpp"

import vmm;
import vmm.fake;
import vmm.multi_device;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr int rounds = 31;

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
  return median(taken);
}

void show(const char* what, std::uint64_t size_bytes, double us) {
  std::printf("%-44s %6llu MiB %12.2f us\n", what,
              static_cast<unsigned long long>(size_bytes / mib), us);
}

// ---- rights ------------------------------------------------------------------------

void rights(const world& in) {
  constexpr std::uint64_t size_bytes = 64 * mib;
  for (const bool shared : {false, true}) {
    if (shared && !in.has_other) continue;
    vmm::manager_options how;
    if (shared && !how.peers.set({in.other, vmm::access::read})) stop("a peer cannot be named");
    vmm::manager managed(in.driver, how);
    vmm::address at{};
    const auto drop = [&] {
      if (at) must(managed.free_idle(at));
    };
    const double us = median_us(in, drop, [&] { at = must(managed.allocate(size_bytes)); });
    show(shared ? "map for the home and one peer" : "map for the home", size_bytes, us);
    if (shared) {
      const vmm::access_grant off{in.other, vmm::access::none};
      const vmm::access_grant on{in.other, vmm::access::read};
      show("give a standing block to a peer", size_bytes,
           median_us(
               in, [&] { must(managed.set_peers({&off, 1})); },
               [&] { must(managed.set_peers({&on, 1})); }));
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
  if (ballast_bytes != 0) ballast = must(pool.allocate(ballast_bytes, {}));
  const vmm::address at = must(pool.allocate(size_bytes, {}));
  must(in.driver.synchronize_stream({}));
  const double us = median_us(
      in, [] {},
      [&] {
        must(in.driver.copy({at, at + size_bytes / 2, size_bytes / 2, {}}));
        must(in.driver.synchronize_stream({}));
      });
  show(name, size_bytes / 2, us);
  must(pool.free(at, {}));
  if (ballast) must(pool.free(ballast, {}));
}

void places(const world& in) {
  place(in, "copy at home", {}, 0);
  if (in.has_other) place(in, "copy at another device", {{.placement = in.other}}, 0);
  if (!in.driver.feature_set().host_node_location) return;
  place(in, "copy at a node of the host", {{.placement = vmm::host_node(0)}}, 0);
  const std::uint64_t free_bytes = must(in.driver.query_memory(in.driver.home())).free_bytes;
  const std::uint64_t ballast_bytes = free_bytes / mib * mib - 128 * mib;
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
        must(pool.free(must(pool.allocate(size_bytes, {})), {}));
        if (in.driver.feature_set().streams) must(in.driver.synchronize_stream({}));
      };
      pair();  // maps the memory
      show(each.name, size_bytes, median_us(in, [] {}, pair));
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
    const vmm::address from = must(managed.allocate(size_bytes));
    const vmm::address to = must(managed.allocate(size_bytes));
    const auto granted = must(vmm::granted_of(managed, from));
    const auto copy = [&] {
      must(in.driver.copy({to, from, size_bytes, {}}));
      must(in.driver.synchronize_stream({}));
    };
    std::vector<std::byte> noise(size_bytes);
    std::uint64_t word = 88172645463325252ULL;
    for (std::byte& each : noise) {
      word ^= word << 13;
      word ^= word >> 7;
      word ^= word << 17;
      each = static_cast<std::byte>(word);
    }
    must(in.driver.fill({{from, size_bytes}, 0, {}}));
    std::printf("compression wished %d granted %d\n", wished, granted.compressible);
    show("  copy of zeros", size_bytes, median_us(in, [] {}, copy));
    must(in.driver.write(from, noise));
    show("  copy of noise", size_bytes, median_us(in, [] {}, copy));
    must(managed.free(from));
    must(managed.free(to));
  }
}

double wall_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

void measure(const world& in) {
  rights(in);
  places(in);
  clearing(in);
  compression(in);
}

int on_fake() {
  vmm::fake::profile machine = vmm::fake::profile::cuda();
  machine.device_count = 2;
  vmm::fake_driver driver(machine);
  vmm::driver_ref with(driver);
  measure({*with, [&] { return driver.now_us(); }, vmm::device(1), true});
  return driver.misuse_count() == 0 ? 0 : 1;
}

int on_host() {
  auto driver = must(vmm::host_driver::open());
  vmm::driver_ref with(driver);
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
  measure({*with, wall_us, vmm::device(1), link && link->is_reachable()});
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view where = count > 1 ? words[1] : "fake";
  if (where == "fake") return on_fake();
  if (where == "host") return on_host();
  if (where == "cuda") return on_cuda();
  stop("takes one of fake, host, cuda");
}
