/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The calls of CUDA's runtime that libc10_cuda makes for memory, without a device: memory is the
 * process's, every stream is idle, and no stream is captured. For class_test.cpp alone. */
#include <stdlib.h>
#include <string.h>

static int current, devices = 1;

void cuda_set_device_count(int count) { devices = count; }
int cudaGetDeviceCount(int* count) { return *count = devices, 0; }
int cudaGetDevice(int* device) { return *device = current, 0; }
int cudaSetDevice(int device) { return current = device, device >= devices; }
int cudaGetLastError(void) { return 0; }
const char* cudaGetErrorString(int code) { return (void)code, "an error of the stub"; }
const char* cudaGetErrorName(int code) { return (void)code, "error"; }
int cudaDriverGetVersion(int* version) { return *version = 13000, 0; }
int cudaDeviceGetStreamPriorityRange(int* least, int* most) { return *least = *most = 0; }

/* The driver's calls, which expandable segments alone need. */
int cudaGetDriverEntryPointByVersion(const char* name, void** call, unsigned version,
                                     unsigned long long flags, int* found) {
  return (void)name, (void)version, (void)flags, *call = NULL, *found = 1, 0;
}
int cudaGetDeviceProperties(void* properties, int device) {
  return (void)properties, device >= devices;
}
int cudaGetDeviceProperties_v2(void* properties, int device) {
  return (void)properties, device >= devices;
}

int cudaMalloc(void** at, size_t size) {
  *at = aligned_alloc(512, (size + 511) / 512 * 512);
  return *at == NULL ? 2 : 0;
}
int cudaFree(void* at) { return free(at), 0; }
int cudaMemGetInfo(size_t* unused, size_t* total) {
  return *unused = (size_t)8 << 30, *total = (size_t)16 << 30, 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  return (void)kind, (void)stream, memcpy(to, from, size), 0;
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  return (void)flags, *event = malloc(1), 0;
}
int cudaEventDestroy(void* event) { return free(event), 0; }
int cudaEventRecord(void* event, void* stream) { return (void)event, (void)stream, 0; }
int cudaEventQuery(void* event) { return (void)event, 0; }
int cudaEventSynchronize(void* event) { return (void)event, 0; }

int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return (void)flags, (void)priority, *stream = malloc(1), 0;
}
int cudaStreamQuery(void* stream) { return (void)stream, 0; }
int cudaStreamSynchronize(void* stream) { return (void)stream, 0; }
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return (void)stream, (void)event, (void)flags, 0;
}
int cudaDeviceSynchronize(void) { return 0; }
int cudaStreamIsCapturing(void* stream, int* status) { return (void)stream, *status = 0, 0; }
int cudaStreamGetCaptureInfo(void* stream, int* status) { return (void)stream, *status = 0, 0; }
int cudaThreadExchangeStreamCaptureMode(int* mode) { return (void)mode, 0; }
