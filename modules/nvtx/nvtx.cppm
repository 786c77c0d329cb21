// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.nvtx - the blocks of a pool declared to memory checkers, by NVTX's memory extension. [G4]
//
// To a checker the memory of a pool is one large allocation: a kernel that runs over the end of one
// block into the next is nothing it could see. nvtx_declarer, given to a pool as its watcher, says
// where the pool's addresses are (a heap that nobody may touch) and which bytes of them are blocks
// (regions that anybody may). compute-sanitizer listens when it is started with --nvtx yes; it
// takes plain memory only: open the CUDA backend with cuda_memory::plain, docs/checking.md. Where
// no tool listens, nothing happens.
//
// I1  Declared regions do not overlap, and each lies in one declared heap.
//
// Thread safety: all of it, one lock. Cost: for a program that is being debugged.
module;
#include <cstdint>
#include <memory>

export module vmm.nvtx;

export import vmm.stream;

namespace vmm {

export class nvtx_declarer final : public block_watcher {
 public:
  /// Errors: unavailable (vmm was built without NVTX's headers), out_of_host_memory. That a tool
  /// listens shows when something is declared: see heap_count().
  [[nodiscard]] static result<std::unique_ptr<nvtx_declarer>> open();
  ~nvtx_declarer() override;
  nvtx_declarer(const nvtx_declarer&) = delete;
  nvtx_declarer& operator=(const nvtx_declarer&) = delete;

  void reserved(address_range addresses) override;
  void unreserved(address_range addresses) override;
  void mapped(address_range memory) override;
  void unmapped(address_range memory) override;
  void allocated(address_range block) override;
  void freed(address block) override;

  /// Reservations that a tool has taken note of; 0 where none listens or it refuses them.
  [[nodiscard]] std::uint64_t heap_count() const;
  /// Regions declared now: one a block, in heaps that a tool has taken note of.
  [[nodiscard]] std::uint64_t region_count() const;

 private:
  struct state;
  explicit nvtx_declarer(std::unique_ptr<state> made) noexcept;

  std::unique_ptr<state> state_;
};

}  // namespace vmm
