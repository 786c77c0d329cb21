// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of the command pair, and what they share. It imports what it uses, so it is the last
// include of a file.
#pragma once

#include "runner.hpp"

#include "../rig.hpp"

namespace vmm::gpu {

/// The table of all parts, or of one. Exit codes: 0, 1 where one failed, 77 without two GPUs.
int run_pair(const settings& how, std::string_view part);
[[nodiscard]] bool is_part(std::string_view name);

verdict try_rights(const settings& how);
verdict measure_copies(const settings& how);
verdict import_elsewhere(const settings& how);
verdict try_aliases(const settings& how);
verdict kill_importers(const settings& how);
verdict reduce_with_nccl(const settings& how);

/// One of the two devices. Ends the part where it is not there.
inline vmm::cuda_driver open_one(std::int32_t device) {
  auto opened = vmm::cuda_driver::open({.device = device});
  if (opened) return std::move(*opened);
  if (opened.error().code != vmm::errc::unavailable) stop(vmm::describe(opened.error()));
  std::fprintf(stderr, "vmm-gpu-test: %s\n", vmm::describe(opened.error()).c_str());
  end_part(verdict::no_pair, vmm::describe(opened.error()));
}

inline double gigabytes_per_second(std::uint64_t size_bytes, double us) {
  return static_cast<double>(size_bytes) / 1000.0 / us;
}

/// Options of memory that both devices read and write, for a driver of either.
inline vmm::manager_options both_devices(const vmm::cuda_driver& driver) {
  vmm::manager_options how;
  const vmm::access_grant other{vmm::device(1 - driver.home().ordinal), vmm::access::read_write};
  if (!how.peers.set(other)) stop("the list of access grants is full");
  return how;
}

/// The verdict on trials of which so many went as expected.
inline verdict judge_trials(std::size_t right_count, std::size_t count) {
  give_figure(text_of("%zu of %zu trials as expected", right_count, count));
  return right_count == count ? verdict::ok : verdict::failed;
}

}  // namespace vmm::gpu
