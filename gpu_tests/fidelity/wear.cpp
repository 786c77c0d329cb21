// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The two words that wear a driver down: the leak check (G5) and real out of memory (G6).
#include <unistd.h>

#include <filesystem>

#include "program.hpp"

import vmm.backend;
import vmm.cuda;

namespace fidelity {
namespace {

constexpr std::uint64_t default_cycles = 1'000'000;
constexpr std::uint64_t rounds_of_wear = 100;
// What the process itself may grow by; eight bytes lost in each of a million cycles are more.
// A short run shows only how the process warms up, so there the host's bytes are reported without a
// limit.
constexpr std::uint64_t host_growth_max = 4u << 20;
constexpr std::uint64_t judged_cycles_min = 100'000;

struct held {
  std::uint64_t device_free = 0;
  std::uint64_t descriptors = 0;
  std::uint64_t host_bytes = 0;
};

held look(vmm::cuda_driver& device) {
  held out;
  if (const auto info = device.query_memory(device.home())) out.device_free = info->free_bytes;
  const std::filesystem::directory_iterator open_files("/proc/self/fd");
  out.descriptors = static_cast<std::uint64_t>(std::distance(begin(open_files), end(open_files)));
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  statm >> pages >> resident;
  out.host_bytes = resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return out;
}

// One granule made, joined, opened, closed and dropped, over and over.
void cycle(vmm::cuda_driver& device, vmm::address_range room, std::uint64_t count) {
  const vmm::access_grant all[] = {{device.home(), vmm::access::read_write}};
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto made = must(device.create({.size_bytes = room.size_bytes, .where = device.home()}));
    must(device.map({room.base, room.size_bytes, made, 0}));
    must(device.set_access(room, all));
    must(device.unmap(room));
    must(device.release(made));
  }
}

std::string signed_text(std::uint64_t before, std::uint64_t after) {
  return std::to_string(static_cast<std::int64_t>(after - before));
}

// ---- out of memory ----

// Creates handles of `size_bytes` until the device refuses one; the refusal is returned.
vmm::error fill(vmm::cuda_driver& device, std::uint64_t size_bytes,
                std::vector<vmm::physical_handle>& into) {
  while (true) {
    const auto made = device.create({.size_bytes = size_bytes, .where = device.home()});
    if (!made) return made.error();
    into.push_back(*made);
  }
}

vmm::status drop(vmm::cuda_driver& device, std::vector<vmm::physical_handle>& from,
                 std::size_t keep) {
  for (; from.size() > keep; from.pop_back())
    if (const vmm::status outcome = device.release(from.back()); !outcome) return outcome;
  return {};
}

// Fills the device in large and in small handles, gives half back, takes one again, gives all back.
// Says what was not as it should be; empty when all was.
std::string one_round(vmm::cuda_driver& device, std::uint64_t granule,
                      std::uint64_t& created_count) {
  std::vector<vmm::physical_handle> handles;
  handles.reserve(1 << 17);
  const vmm::error large = fill(device, 1ull << 30, handles);
  const vmm::error small = fill(device, granule, handles);
  created_count += handles.size();
  std::string wrong;
  for (const vmm::error& each : {large, small})
    if (each.code != vmm::errc::out_of_memory) wrong = "refused with " + vmm::describe(each);
  const vmm::status half = drop(device, handles, handles.size() / 2);
  if (!half) wrong = "release: " + vmm::describe(half.error());
  const auto again = device.create({.size_bytes = granule, .where = device.home()});
  if (again) handles.push_back(*again);
  if (!again) wrong = "no memory after giving half back: " + vmm::describe(again.error());
  const vmm::status rest = drop(device, handles, 0);
  if (!rest) wrong = "release: " + vmm::describe(rest.error());
  return wrong;
}

}  // namespace

int run_leak(const settings& how) {
  vmm::cuda_driver device = open_device(how);
  const auto unit = must(device.query_granularity({.where = device.home()}));
  const vmm::address_range room = must(device.reserve({.size_bytes = unit.minimum_bytes}));
  const std::uint64_t count = how.count == 0 ? default_cycles : how.count;
  cycle(device, room, count / 100 + 1);
  const held before = look(device);
  const auto begin = std::chrono::steady_clock::now();
  cycle(device, room, count);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const held after = look(device);
  const bool clean =
      before.device_free == after.device_free && before.descriptors == after.descriptors &&
      (count < judged_cycles_min || after.host_bytes <= before.host_bytes + host_growth_max);
  const table rows{
      {"cycles", "seconds", "device bytes lost", "descriptors gained", "host bytes gained"},
      {std::to_string(count), std::to_string(taken.count()),
       signed_text(after.device_free, before.device_free),
       signed_text(before.descriptors, after.descriptors),
       signed_text(before.host_bytes, after.host_bytes)}};
  std::printf("%s cycles in %s s: %s device bytes lost, %s descriptors and %s host bytes gained\n",
              rows[1][0].c_str(), rows[1][1].c_str(), rows[1][2].c_str(), rows[1][3].c_str(),
              rows[1][4].c_str());
  publish(how, {"Leak check", head_of(device),
                "Create, map, set access, unmap and release one granule, over and over.\n\n"
                "Command: `vmm-fidelity leak --count " +
                    std::to_string(count) + "`.",
                rows});
  must(device.free_reservation(room));
  return clean ? 0 : 1;
}

int run_oom(const settings& how) {
  vmm::cuda_driver device = open_device(how);
  const auto unit = must(device.query_granularity({.where = device.home()}));
  const std::uint64_t count = how.count == 0 ? rounds_of_wear : how.count;
  const held before = look(device);
  std::uint64_t created_count = 0;
  std::uint64_t wrong_count = 0;
  for (std::uint64_t round = 0; round < count; ++round) {
    std::string wrong = one_round(device, unit.minimum_bytes, created_count);
    if (look(device).device_free != before.device_free && wrong.empty())
      wrong = "not all memory came back";
    if (wrong.empty()) continue;
    ++wrong_count;
    std::printf("round %llu: %s\n", static_cast<unsigned long long>(round), wrong.c_str());
  }
  const table rows{
      {"rounds", "handles created", "rounds with a fault", "device bytes lost"},
      {std::to_string(count), std::to_string(created_count), std::to_string(wrong_count),
       signed_text(look(device).device_free, before.device_free)}};
  std::printf("%s rounds, %s handles: %s rounds with a fault, %s device bytes lost\n",
              rows[1][0].c_str(), rows[1][1].c_str(), rows[1][2].c_str(), rows[1][3].c_str());
  publish(how, {"Real out of memory", head_of(device),
                "The device filled until it refuses, in handles of 1 GiB and then of one granule; "
                "half given back, one handle taken, all given back.\n\nCommand: `vmm-fidelity oom "
                "--count " +
                    std::to_string(count) + "`.",
                rows});
  return wrong_count == 0 ? 0 : 1;
}

}  // namespace fidelity
