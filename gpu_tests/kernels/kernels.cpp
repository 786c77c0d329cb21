// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../../backends/cuda/abi.h"
#include "ptx.h"

module vmm.kernels;

import vmm.backend;
import vmm.cuda;
import vmm.std;

namespace vmm::tools {
namespace {

enum : std::size_t {
  fill_kernel,
  check_kernel,
  spin_kernel,
  poke_kernel,
  copy_kernel,
  alias_words_kernel
};
constexpr std::array names{"vmm_pattern_fill", "vmm_pattern_check", "vmm_spin",
                           "vmm_poke",         "vmm_copy",          "vmm_alias_words"};

constexpr std::uint32_t thread_count = 256;
constexpr std::uint64_t block_count_max = 132 * 8;

template <class Function>
Function find(const cuda_driver& driver, const char* symbol, int version) noexcept {
  return reinterpret_cast<Function>(driver.entry_point(symbol, version));
}

CUcontext context_of(const cuda_driver& driver) noexcept {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(driver.native_context()));
}

// The driver's context for the length of a scope.
class current {
 public:
  explicit current(const cuda_driver& driver) noexcept
      : pop_(find<PFN_cuCtxPopCurrent_v4000>(driver, "cuCtxPopCurrent", 4000)) {
    const auto push = find<PFN_cuCtxPushCurrent_v4000>(driver, "cuCtxPushCurrent", 4000);
    pushed_ = push(context_of(driver)) == CUDA_SUCCESS;
  }
  ~current() {
    CUcontext popped = nullptr;
    if (pushed_) static_cast<void>(pop_(&popped));
  }
  current(const current&) = delete;
  current& operator=(const current&) = delete;

 private:
  PFN_cuCtxPopCurrent_v4000 pop_;
  bool pushed_ = false;
};

error failed(CUresult code, const char* detail) noexcept {
  return error{errc::internal, call::none, static_cast<std::int64_t>(code), "", detail};
}

template <class Pointer>
std::uint64_t number(Pointer object) noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(object));
}

std::uint32_t blocks_for(std::uint64_t word_count) noexcept {
  const std::uint64_t wanted = (word_count + thread_count - 1) / thread_count;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, 1, block_count_max));
}

std::string text_of(const strided_kernel& kernel) {
  std::string list;
  std::string loads;
  std::string_view left = kernel.parameters;
  while (!left.empty()) {
    std::string name(left.substr(0, left.find(' ')));
    left.remove_prefix(name.size() == left.size() ? name.size() : name.size() + 1);
    const bool is_address = name.front() == '*';
    if (is_address) name.erase(0, 1);
    list += (list.empty() ? ".param .u64 " : ", .param .u64 ") + name;
    loads += "  .reg .b64 %" + name + ";\n  ld.param.u64 %" + name + ", [" + name + "];\n";
    if (is_address) loads += "  cvta.to.global.u64 %" + name + ", %" + name + ";\n";
  }
  return std::string("\n.visible .entry ") + kernel.name + "(" + list + R"()
{
  .reg .pred %done, %more;
  .reg .b32 %width, %block, %thread, %blocks;
  .reg .b64 %index, %wide, %stride;
  )" + kernel.registers +
         "\n" + loads + R"(
  mov.u32 %width, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mov.u32 %blocks, %nctaid.x;
  mul.wide.u32 %index, %block, %width;
  cvt.u64.u32 %wide, %thread;
  add.u64 %index, %index, %wide;
  mul.wide.u32 %stride, %blocks, %width;
  )" + kernel.before +
         R"(
  setp.ge.u64 %done, %index, %n;
  @%done bra END;
NEXT:)" + kernel.at_index +
         R"(
  add.u64 %index, %index, %stride;
  setp.lt.u64 %more, %index, %n;
  @%more bra NEXT;
END:
  )" + kernel.behind +
         "\n  ret;\n}\n";
}

std::string kernel_text(bool with_aliases) {
  std::string text =
      with_aliases ? ".version 7.5\n.target sm_75\n" : ".version 7.0\n.target sm_70\n";
  text += std::string(".address_size 64\n") + single_kernels;
  for (const strided_kernel& each : strided_kernels) text += text_of(each);
  return with_aliases ? text + text_of(alias_kernel) : text;
}

}  // namespace

result<kernel_set> kernel_set::load(cuda_driver& driver, bool with_aliases) {
  const auto load_data = find<PFN_cuModuleLoadData_v2000>(driver, "cuModuleLoadData", 2000);
  const auto get = find<PFN_cuModuleGetFunction_v2000>(driver, "cuModuleGetFunction", 2000);
  if (load_data == nullptr || get == nullptr)
    return refuse(errc::unavailable, "the CUDA driver cannot load kernels");
  const current here(driver);
  kernel_set made(driver);
  CUmodule loaded = nullptr;
  if (const CUresult code = load_data(&loaded, kernel_text(with_aliases).c_str());
      code != CUDA_SUCCESS) {
    return failed(code, "the CUDA driver does not compile the kernels");
  }
  made.module_ = number(loaded);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == alias_words_kernel && !with_aliases) continue;
    CUfunction function = nullptr;
    if (const CUresult code = get(&function, loaded, names[i]); code != CUDA_SUCCESS)
      return failed(code, "a kernel is missing from what the CUDA driver compiled");
    made.functions_[i] = number(function);
  }
  return made;
}

kernel_set::kernel_set(kernel_set&& from) noexcept
    : driver_(from.driver_), module_(std::exchange(from.module_, 0)), functions_(from.functions_) {}

kernel_set::~kernel_set() {
  if (module_ == 0) return;
  const current here(*driver_);
  const auto unload = find<PFN_cuModuleUnload_v2000>(*driver_, "cuModuleUnload", 2000);
  static_cast<void>(unload(reinterpret_cast<CUmodule>(static_cast<std::uintptr_t>(module_))));
}

// A thread an element, as far as there are blocks; `words` are the kernel's parameters.
template <class... Words>
status kernel_set::launch(std::size_t which, stream_handle stream, std::uint64_t element_count,
                          Words... words) {
  const auto start = find<PFN_cuLaunchKernel_v4000>(*driver_, "cuLaunchKernel", 4000);
  const current here(*driver_);
  std::array<void*, sizeof...(words)> arguments{&words...};
  const CUresult code =
      start(reinterpret_cast<CUfunction>(static_cast<std::uintptr_t>(functions_[which])),
            blocks_for(element_count), 1, 1, thread_count, 1, 1, 0, native_stream<CUstream>(stream),
            arguments.data(), nullptr);
  if (code != CUDA_SUCCESS) return failed(code, "the CUDA driver does not start a kernel");
  return {};
}

status kernel_set::fill(const pattern_request& request) {
  const std::uint64_t word_count = request.range.size_bytes / 8;
  return launch(fill_kernel, request.stream, word_count, request.range.base.value, word_count,
                request.seed);
}

status kernel_set::check(const pattern_request& request, address wrong) {
  const std::uint64_t word_count = request.range.size_bytes / 8;
  return launch(check_kernel, request.stream, word_count, request.range.base.value, word_count,
                request.seed, wrong.value);
}

status kernel_set::write_and_read(const pattern_request& request, address read, address wrong) {
  const std::uint64_t word_count = request.range.size_bytes / 8;
  return launch(alias_words_kernel, request.stream, word_count, request.range.base.value,
                read.value, word_count, request.seed, wrong.value);
}

status kernel_set::poke(address target, std::uint8_t value, stream_handle stream) {
  return launch(poke_kernel, stream, 1, target.value, std::uint64_t{value});
}

status kernel_set::copy(const array_request& request) {
  const std::uint64_t word_count = request.size_bytes / 8;
  return launch(copy_kernel, request.stream, word_count / 2, request.target.value,
                request.source.value, word_count);
}

status kernel_set::spin(std::uint64_t duration_ns, stream_handle stream) {
  return launch(spin_kernel, stream, 1, duration_ns);
}

}  // namespace vmm::tools
