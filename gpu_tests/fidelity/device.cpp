// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0

#include "program.hpp"

import vmm.backend;
import vmm.cuda;

namespace fidelity {
namespace {

// The driver's own version, which its programming interface lacks: from the kernel module,
// else as gpu_tests/gpu.sh found it. Empty when not known.
std::string installed_driver() {
  const char* given = std::getenv("VMM_DRIVER_VERSION");
  if (given != nullptr && *given != '\0') return std::string(given) + ", ";
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  const std::size_t words = line.find("  ");
  const std::size_t begin =
      words == std::string::npos ? words : line.find_first_of("0123456789", words);
  if (begin == std::string::npos) return {};
  return line.substr(begin, line.find(' ', begin) - begin) + ", ";
}

}  // namespace

vmm::cuda_driver open_device(const settings& how) {
  auto device = vmm::cuda_driver::open({.driver_library = how.driver_library_or_null()});
  if (!device) stop("no CUDA device: " + vmm::describe(device.error()));
  return std::move(*device);
}

report_head head_of(const vmm::cuda_driver& device) {
  const vmm::cuda_description& device_facts = device.description();
  return {device_facts.device_name, installed_driver() + "CUDA " +
                                        std::to_string(device_facts.driver_version / 1000) + "." +
                                        std::to_string(device_facts.driver_version % 1000 / 10)};
}

int run_about(const settings& how) {
  vmm::cuda_driver device = open_device(how);
  const report_head head = head_of(device);
  const vmm::features& can = device.feature_set();
  const vmm::cuda_description& device_facts = device.description();
  std::printf("%-20s %s\n%-20s %s\n%-20s %d.%d\n", "device", head.device.c_str(), "driver",
              head.driver.c_str(), "compute capability", device_facts.compute_major,
              device_facts.compute_minor);
  const std::pair<const char*, bool> lines[] = {
      {"descriptors", can.export_posix_fd},
      {"fabric, as reported", can.export_fabric},
      {"fabric, as tried", static_cast<bool>(device.probe_fabric())},
      {"compression", can.compression},
      {"RDMA", can.rdma},
      {"host memory", can.host_location},
      {"host NUMA memory", can.host_node_location},
      {"DMA-BUF", device_facts.dma_buf},
      {"multicast", can.multicast_capable},
      {"multicast, allowed", can.multicast},
  };
  for (const auto& [name, there] : lines) std::printf("%-20s %s\n", name, there ? "yes" : "no");
  return 0;
}

}  // namespace fidelity
