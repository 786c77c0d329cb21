// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

namespace caller {
namespace {

constexpr int version = 12000;

void find_memory(driver& cu, flag_set flags) {
  cu.get(cu.allocate, "cuMemAlloc", version, flags);
  cu.get(cu.free, "cuMemFree", version, flags);
  cu.get(cu.allocate_pitch, "cuMemAllocPitch", version, flags);
  cu.get(cu.allocate_async, "cuMemAllocAsync", version, flags);
  cu.get(cu.free_async, "cuMemFreeAsync", version, flags);
  cu.get(cu.allocate_from_pool, "cuMemAllocFromPoolAsync", version, flags);
  cu.get(cu.default_pool, "cuDeviceGetDefaultMemPool", version, flags);
  cu.get(cu.set_pool, "cuDeviceSetMemPool", version, flags);
  cu.get(cu.set_pool_access, "cuMemPoolSetAccess", version, flags);
  cu.get(cu.get_pool, "cuMemPoolGetAttribute", version, flags);
  cu.get(cu.put_pool, "cuMemPoolSetAttribute", version, flags);
  cu.get(cu.trim_pool, "cuMemPoolTrimTo", version, flags);
  cu.get(cu.info, "cuMemGetInfo", version, flags);
  cu.get(cu.total, "cuDeviceTotalMem", version, flags);
  cu.get(cu.range, "cuMemGetAddressRange", version, flags);
  cu.get(cu.attribute, "cuPointerGetAttribute", version, flags);
  cu.get(cu.attributes, "cuPointerGetAttributes", version, flags);
  cu.get(cu.ipc, "cuIpcGetMemHandle", version, flags);
  cu.get(cu.ipc_open, "cuIpcOpenMemHandle", version, flags);
  cu.get(cu.ipc_close, "cuIpcCloseMemHandle", version, flags);
  cu.get(cu.export_range, "cuMemGetHandleForAddressRange", version, flags);
  cu.get(cu.enable_peer, "cuCtxEnablePeerAccess", version, flags);
  cu.get(cu.get_access, "cuMemGetAccess", version, flags);
  cu.get(cu.reserve, "cuMemAddressReserve", version, flags);
  cu.get(cu.unreserve, "cuMemAddressFree", version, flags);
  cu.get(cu.create, "cuMemCreate", version, flags);
  cu.get(cu.release, "cuMemRelease", version, flags);
  cu.get(cu.map, "cuMemMap", version, flags);
  cu.get(cu.unmap, "cuMemUnmap", version, flags);
  cu.get(cu.set_access, "cuMemSetAccess", version, flags);
  cu.get(cu.export_handle, "cuMemExportToShareableHandle", version, flags);
  cu.get(cu.retain_handle, "cuMemRetainAllocationHandle", version, flags);
}

void find_work(driver& cu, flag_set flags) {
  cu.get(cu.create_stream, "cuStreamCreate", version, flags);
  cu.get(cu.destroy_stream, "cuStreamDestroy", version, flags);
  cu.get(cu.synchronize_stream, "cuStreamSynchronize", version, flags);
  cu.get(cu.wait_event, "cuStreamWaitEvent", version, flags);
  cu.get(cu.create_event, "cuEventCreate", version, flags);
  cu.get(cu.destroy_event, "cuEventDestroy", version, flags);
  cu.get(cu.record_event, "cuEventRecord", version, flags);
  cu.get(cu.begin_capture, "cuStreamBeginCapture", version, flags);
  cu.get(cu.end_capture, "cuStreamEndCapture", version, flags);
  cu.get(cu.is_capturing, "cuStreamIsCapturing", version, flags);
  cu.get(cu.destroy_graph, "cuGraphDestroy", version, flags);
  cu.get(cu.copy_any, "cuMemcpy", version, flags);
  cu.get(cu.copy_any_async, "cuMemcpyAsync", version, flags);
  cu.get(cu.copy, "cuMemcpyDtoD", version, flags);
  cu.get(cu.copy_async, "cuMemcpyDtoDAsync", version, flags);
  cu.get(cu.copy_in, "cuMemcpyHtoDAsync", version, flags);
  cu.get(cu.copy_out, "cuMemcpyDtoHAsync", version, flags);
  cu.get(cu.fill, "cuMemsetD8Async", version, flags);
}

}  // namespace

driver load(flag_set flags, void* of) {
  driver cu;
  cu.loaded = dlopen("libcuda.so.1", RTLD_NOW);
  must(cu.loaded != nullptr, "libcuda.so.1");
  void* finder = dlsym(of == nullptr ? cu.loaded : of, "cuGetProcAddress_v2");
  must(finder != nullptr, "cuGetProcAddress_v2");
  cu.find = reinterpret_cast<decltype(cu.find)>(finder);
  void* again = nullptr;
  int why = 0;
  must(cu.find("cuGetProcAddress", &again, version, flags, &why) == code::success, "the finder");
  cu.find = reinterpret_cast<decltype(cu.find)>(again);
  cu.get(cu.init, "cuInit", version, flags);
  cu.get(cu.retain, "cuDevicePrimaryCtxRetain", version, flags);
  cu.get(cu.reset, "cuDevicePrimaryCtxReset", version, flags);
  cu.get(cu.set_current, "cuCtxSetCurrent", version, flags);
  cu.get(cu.destroy_context, "cuCtxDestroy", version, flags);
  cu.get(cu.synchronize, "cuCtxSynchronize", version, flags);
  find_memory(cu, flags);
  find_work(cu, flags);
  cu.control(cu.manual, "vmm_standin_manual");
  cu.control(cu.finish, "vmm_standin_finish");
  cu.control(cu.misuses, "vmm_standin_misuses");
  cu.control(cu.calls, "vmm_standin_calls");
  cu.control(cu.fail, "vmm_standin_fail");
  cu.control(cu.on_call, "vmm_standin_on_call");
  cu.control(cu.stale, "vmm_standin_stale");
  cu.control(cu.create_context, "vmm_standin_create_context");
  return cu;
}

context_id start(const driver& cu, device_id device) {
  context_id context = nullptr;
  must(cu.init(0) == code::success, "cuInit");
  must(cu.retain(&context, device) == code::success, "cuDevicePrimaryCtxRetain");
  must(cu.set_current(context) == code::success, "cuCtxSetCurrent");
  return context;
}

}  // namespace caller
