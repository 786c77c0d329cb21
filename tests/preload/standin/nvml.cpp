// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub of libnvidia-ml: a device that the stub driver has, an instance of MIG, and a device
// in MIG mode. Each has 1 GiB, 600 MiB of it free, and two processes: this one, and the first.
#include "../../../adapters/preload/nvml.h"

#include <unistd.h>

#include <cstdio>

namespace nvml = vmm::preload::nvml;

namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr int insufficient_size = 7;
constexpr int version_mismatch = 25;
constexpr const char* uuids[] = {"GPU-20202020-2020-2020-2020-202020202020",
                                 "MIG-20202020-2020-2020-2020-202020202020",
                                 "GPU-21212121-2121-2121-2121-212121212121"};

std::uintptr_t number_of(nvml::device_id device) {
  return reinterpret_cast<std::uintptr_t>(device) - 1;
}

template <class Memory>
int fill(Memory& memory) {
  memory.total_bytes = 1024 * mebibyte;
  memory.free_bytes = 600 * mebibyte;
  memory.used_bytes = 424 * mebibyte;
  return nvml::success;
}

template <class Row>
int list(unsigned& count, Row* rows) {
  const bool is_enough = count >= 2;
  count = 2;
  if (!is_enough) return insufficient_size;
  rows[0] = {};
  rows[0].pid = static_cast<unsigned>(getpid());
  rows[0].used_bytes = 300 * mebibyte;
  rows[1] = {};
  rows[1].pid = 1;
  rows[1].used_bytes = 124 * mebibyte;
  return nvml::success;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return nvml::success; }
int nvmlInitWithFlags(unsigned) { return nvml::success; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::device_id* device) {
  *device = reinterpret_cast<nvml::device_id>(std::uintptr_t{index} + 1);
  return nvml::success;
}

int nvmlDeviceGetUUID(nvml::device_id device, char* text, unsigned size) {
  const int length = std::snprintf(text, size, "%s", uuids[number_of(device)]);
  return static_cast<unsigned>(length) < size ? nvml::success : insufficient_size;
}

int nvmlDeviceGetMigMode(nvml::device_id device, unsigned* now, unsigned* later) {
  *now = *later = number_of(device) == 2 ? 1 : 0;
  return nvml::success;
}

int nvmlDeviceGetMemoryInfo(nvml::device_id, nvml::memory* memory) { return fill(*memory); }

int nvmlDeviceGetMemoryInfo_v2(nvml::device_id, nvml::memory_v2* memory) {
  if (memory->version != nvml::memory_v2_version) return version_mismatch;
  memory->reserved_bytes = 24 * mebibyte;
  return fill(*memory);
}

int nvmlDeviceGetComputeRunningProcesses(nvml::device_id, unsigned* count, nvml::process_v1* rows) {
  return list(*count, rows);
}

int nvmlDeviceGetComputeRunningProcesses_v2(nvml::device_id, unsigned* count, nvml::process* rows) {
  return list(*count, rows);
}

int nvmlDeviceGetComputeRunningProcesses_v3(nvml::device_id, unsigned* count, nvml::process* rows) {
  return list(*count, rows);
}
}
