// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The grown stub driver for libcuda: memory that another process gets. Within a process an exported
// descriptor names the same memory. Another process gets a copy of what it held when it was
// exported: memory of the fake driver does not leave its process.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "more.h"
#include "state.h"

namespace {

struct exported_memory {
  std::mutex lock;
  std::map<CUmemGenericAllocationHandle, std::size_t> sizes;
  std::map<std::uint64_t, int> descriptors;  // of this process, by what stat says of the file
};
exported_memory& all() {
  static auto* const only = new exported_memory;
  return *only;
}

// The driver creates and exports memory without a context, as for vmm-owner. The stub needs one.
void ensure_context() {
  if (!standin::context_stack().empty()) return;
  CUcontext made = nullptr;
  if (cuDevicePrimaryCtxRetain(&made, 0) == CUDA_SUCCESS) standin::context_stack().push_back(made);
}

std::uint64_t file_of(int descriptor) {
  struct stat about{};
  return fstat(descriptor, &about) == 0 ? about.st_ino : 0;
}

// Closes the fake's descriptors whose files this process has closed: another process copies what
// the file holds. Under the lock.
void sweep_files(exported_memory& m) {
  constexpr std::size_t kept = 32;
  if (m.descriptors.size() <= kept) return;
  std::set<std::uint64_t> open_files;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return;
  for (const dirent* each = readdir(folder); each != nullptr; each = readdir(folder))
    open_files.insert(file_of(std::atoi(each->d_name)));
  closedir(folder);
  std::erase_if(m.descriptors, [&](const auto& each) {
    if (open_files.contains(each.first)) return false;
    close(each.second);
    return true;
  });
}

// Maps a handle while `look` runs.
template <class Look>
CUresult with_mapping(CUmemGenericAllocationHandle handle, std::size_t size, Look&& look) {
  CUdeviceptr at = 0;
  CUresult code = cuMemAddressReserve(&at, size, 0, 0, 0);
  if (code != CUDA_SUCCESS) return code;
  code = cuMemMap(at, size, 0, handle, 0);
  CUmemAccessDesc grant{};  // all work is the first device's
  grant.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (code == CUDA_SUCCESS) code = cuMemSetAccess(at, size, &grant, 1);
  if (code == CUDA_SUCCESS) code = look(at);
  (void)cuMemUnmap(at, size);
  (void)cuMemAddressFree(at, size);
  return code;
}

// A file with the bytes of the memory.
int write_contents(CUmemGenericAllocationHandle handle, std::size_t size) {
  std::vector<char> bytes(size);
  const CUresult seen = with_mapping(handle, size, [&](CUdeviceptr at) {
    const CUresult code = base_cuMemcpyDtoHAsync_v2(bytes.data(), at, size, nullptr);
    return code == CUDA_SUCCESS ? base_cuStreamSynchronize(nullptr) : code;
  });
  const int file = memfd_create("vmm-standin", MFD_CLOEXEC);
  if (file < 0 || seen != CUDA_SUCCESS ||
      write(file, bytes.data(), size) != static_cast<ssize_t>(size)) {
    return -1;
  }
  return file;
}

CUresult read_contents(CUmemGenericAllocationHandle* handle, int file) {
  struct stat about{};
  if (fstat(file, &about) != 0 || about.st_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  const auto size = static_cast<std::size_t>(about.st_size);
  std::vector<char> bytes(size);
  if (pread(file, bytes.data(), size, 0) != about.st_size) return CUDA_ERROR_INVALID_VALUE;
  CUmemAllocationProp like{};
  like.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  like.location = {CU_MEM_LOCATION_TYPE_DEVICE, standin::context_stack().back()->device};
  const CUresult made = base_cuMemCreate(handle, size, &like, 0);
  if (made != CUDA_SUCCESS) return made;
  return with_mapping(*handle, size, [&](CUdeviceptr at) {
    const CUresult code = base_cuMemcpyHtoDAsync_v2(at, bytes.data(), size, nullptr);
    return code == CUDA_SUCCESS ? base_cuStreamSynchronize(nullptr) : code;
  });
}

}  // namespace

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  ensure_context();
  const CUresult made = base_cuMemCreate(handle, size, prop, flags);
  if (made != CUDA_SUCCESS) return made;
  const std::lock_guard<std::mutex> hold(all().lock);
  all().sizes[*handle] = size;
  return made;
}

CUresult cuMemExportToShareableHandle(void* into, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType kind, unsigned long long flags) {
  const CUresult code = base_cuMemExportToShareableHandle(into, handle, kind, flags);
  if (code != CUDA_SUCCESS || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return code;
  std::size_t size = 0;
  {
    const std::lock_guard<std::mutex> hold(all().lock);
    size = all().sizes[handle];
  }
  int own = -1;
  std::memcpy(&own, into, sizeof own);
  const int file = write_contents(handle, size);
  if (file < 0) return CUDA_SUCCESS;  // the fake's own descriptor, good in this process
  const std::lock_guard<std::mutex> hold(all().lock);
  sweep_files(all());
  all().descriptors[file_of(file)] = own;
  std::memcpy(into, &file, sizeof file);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                        CUmemAllocationHandleType kind) {
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
  if (kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    const std::lock_guard<std::mutex> hold(all().lock);
    const auto found = all().descriptors.find(file_of(file));
    struct stat about{};
    if (found != all().descriptors.end()) {
      from = reinterpret_cast<void*>(static_cast<std::intptr_t>(found->second));
    } else if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
      return read_contents(handle, file);  // the fake counts a file that it does not have as misuse
    }
  }
  const CUresult code = base_cuMemImportFromShareableHandle(handle, from, kind);
  if (code == CUDA_SUCCESS || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return code;
  return read_contents(handle, file);
}

// For known memory the driver returns a file; the range must begin and end with pages.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr at, std::size_t size,
                                       CUmemRangeHandleType, unsigned long long) {
  constexpr std::size_t page = 4096;
  CUmemorytype type{};
  if (at % page != 0 || size % page != 0 || size == 0 ||
      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) != CUDA_SUCCESS ||
      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + size - 1) !=
          CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int file = memfd_create("vmm-standin-dma", MFD_CLOEXEC);
  std::memcpy(handle, &file, sizeof file);
  return file < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

// Plain memory does not leave its process at all.
CUresult cuIpcOpenMemHandle(CUdeviceptr* at, CUipcMemHandle, unsigned) {
  *at = 0;
  return CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr) { return CUDA_ERROR_INVALID_VALUE; }

}  // extern "C"
