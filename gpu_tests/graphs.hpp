// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The driver's calls that make and play graphs. vmm itself needs none of them. The last include of
// a file, as rig.hpp is.
#pragma once

#include "rig.hpp"

namespace vmm::gpu {

inline CUstream native(vmm::stream_handle stream) { return vmm::native_stream<CUstream>(stream); }

class graphs {
 public:
  explicit graphs(const vmm::cuda_driver& driver)
      : driver_(driver),
        begin_(call_of<PFN_cuStreamBeginCapture_v10010>(driver, "cuStreamBeginCapture", 10010)),
        end_(call_of<PFN_cuStreamEndCapture_v10000>(driver, "cuStreamEndCapture", 10000)),
        destroy_(call_of<PFN_cuGraphDestroy_v10000>(driver, "cuGraphDestroy", 10000)) {
    enter(driver);
  }
  void begin(vmm::stream_handle stream) {
    must(begin_(native(stream), CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  }
  /// Whether the driver begins a capture on it; what was begun is ended.
  [[nodiscard]] CUresult try_begin(vmm::stream_handle stream) {
    const CUresult code = begin_(native(stream), CU_STREAM_CAPTURE_MODE_RELAXED);
    if (code == CUDA_SUCCESS) must(end(stream), "cuStreamEndCapture");
    return code;
  }
  /// The driver's result; without a place for the graph it is thrown away.
  [[nodiscard]] CUresult end(vmm::stream_handle stream, CUgraphExec* into = nullptr) {
    CUgraph made = nullptr;
    const CUresult code = end_(native(stream), &made);
    if (code != CUDA_SUCCESS) return code;
    if (into != nullptr) {
      const auto instantiate = call_of<PFN_cuGraphInstantiateWithFlags_v11040>(
          driver_, "cuGraphInstantiateWithFlags", 11040);
      must(instantiate(into, made, 0), "cuGraphInstantiateWithFlags");
    }
    return destroy_(made);
  }
  void launch(CUgraphExec what, vmm::stream_handle stream) {
    static const auto call = call_of<PFN_cuGraphLaunch_v10000>(driver_, "cuGraphLaunch", 10000);
    must(call(what, native(stream)), "cuGraphLaunch");
  }
  void destroy(CUgraphExec what) {
    const auto call = call_of<PFN_cuGraphExecDestroy_v10000>(driver_, "cuGraphExecDestroy", 10000);
    must(call(what), "cuGraphExecDestroy");
  }

 private:
  const vmm::cuda_driver& driver_;
  PFN_cuStreamBeginCapture_v10010 begin_;
  PFN_cuStreamEndCapture_v10000 end_;
  PFN_cuGraphDestroy_v10000 destroy_;
};

}  // namespace vmm::gpu
