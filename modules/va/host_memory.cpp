// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <sys/mman.h>
#include <unistd.h>

module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

#ifdef VMM_FIRST_COMMIT_BYTES
constexpr std::uint64_t first_commit_bytes = VMM_FIRST_COMMIT_BYTES;  // a fuzzer's, see fuzz
#else
constexpr std::uint64_t first_commit_bytes = 64 * 1024;
#endif
constexpr std::uint64_t huge_page_bytes = 2 * 1024 * 1024;

std::uint64_t page_bytes() noexcept {
  const long answer = ::sysconf(_SC_PAGESIZE);
  const std::uint64_t unit = answer > 0 ? static_cast<std::uint64_t>(answer) : 4096;
  check(std::has_single_bit(unit), "the system's page size is not a power of two");
  return unit;
}

/// Address space without memory; from a huge page's size on it begins where one may. nullptr when
/// the system refuses.
std::byte* map_aligned(std::uint64_t size_bytes) noexcept {
  check(size_bytes != 0, "host memory of no size is mapped");
  const std::uint64_t slack = size_bytes >= huge_page_bytes ? huge_page_bytes : 0;
  void* const mapped = ::mmap(nullptr, size_bytes + slack, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  if (slack == 0) return begin;
  const std::uint64_t lead = (0 - reinterpret_cast<std::uint64_t>(begin)) % huge_page_bytes;
  check(lead < huge_page_bytes && lead <= slack, "host memory is cut outside of itself");
  if (lead != 0) (void)::munmap(begin, lead);
  if (lead != slack) (void)::munmap(begin + lead + size_bytes, slack - lead);
  check(reinterpret_cast<std::uint64_t>(begin + lead) % huge_page_bytes == 0,
        "host memory begins inside a huge page");
  return begin + lead;
}

/// Records are reached at random, so that with small pages most of what a call costs is address
/// translation. A hint: without free huge pages it has no effect. Memory that was in use before a
/// huge page was filled is moved into one.
void prefer_huge_pages(std::byte* base, std::uint64_t used_bytes,
                       std::uint64_t size_bytes) noexcept {
  check(used_bytes <= size_bytes, "more host memory is in use than there is");
  check(base != nullptr && size_bytes >= huge_page_bytes, "no huge page fits into the memory");
  constexpr int collapse = 25;  // MADV_COLLAPSE: from Linux 6.1 on, and not in every header
  (void)::madvise(base, size_bytes, MADV_HUGEPAGE);
  const bool is_used = used_bytes != 0;  // where nothing is there, nothing moves
  if (is_used && used_bytes < huge_page_bytes) (void)::madvise(base, huge_page_bytes, collapse);
}

}  // namespace

reserved_memory::~reserved_memory() {
  check((base_ == nullptr) == (reserved_bytes_ == 0), "host memory has a size and no address");
  if (base_ == nullptr) return;
  const int answer = ::munmap(base_, reserved_bytes_);
  check(answer == 0, "host memory of an allocator cannot be unmapped");
}

result<reserved_memory> reserved_memory::reserve(std::uint64_t size_bytes) noexcept {
  const std::uint64_t rounded = round_up(size_bytes, page_bytes());
  check(rounded != 0 && rounded >= size_bytes, "a request for 0 bytes of host memory");
  std::byte* const base = map_aligned(rounded);
  if (base == nullptr) {
    return refuse(errc::out_of_host_memory,
                  "the system refused host address space for block records: raise ulimit -v, or "
                  "lower reservation_bytes (VMM_VA_SIZE)");
  }
  check(reinterpret_cast<std::uint64_t>(base) % page_bytes() == 0,
        "host memory begins inside a page");
  reserved_memory memory;
  memory.base_ = base;
  memory.reserved_bytes_ = rounded;
  return memory;
}

result<reserved_memory> reserved_memory::make(std::uint64_t size_bytes,
                                              const char* detail) noexcept {
  result<reserved_memory> memory = reserve(size_bytes);
  if (memory && !memory->commit(size_bytes)) return refuse(errc::out_of_host_memory, detail);
  check(!memory || memory->committed_bytes_ >= size_bytes, "host memory is smaller than requested");
  return memory;
}

bool reserved_memory::commit(std::uint64_t size_bytes) noexcept {
  check(committed_bytes_ <= reserved_bytes_, "more host memory is committed than reserved");
  if (size_bytes <= committed_bytes_) return true;
  if (size_bytes > reserved_bytes_) return false;
  const std::uint64_t wanted = std::max({size_bytes, committed_bytes_ * 2, first_commit_bytes});
  const std::uint64_t target = std::min(round_up(wanted, page_bytes()), reserved_bytes_);
  if (::mprotect(base_, target, PROT_READ | PROT_WRITE) != 0) return false;
  if (target >= huge_page_bytes) prefer_huge_pages(base_, committed_bytes_, target);
  committed_bytes_ = target;
  check(committed_bytes_ >= size_bytes && committed_bytes_ <= reserved_bytes_,
        "I1: host memory is committed outside of what is reserved");
  return true;
}

bool reserved_memory::extend(std::uint64_t size_bytes) noexcept {
  check(size_bytes > reserved_bytes_, "host memory is extended to less than it is");
  result<reserved_memory> larger = reserve(size_bytes);
  if (!larger || !larger->commit(committed_bytes_)) return false;
  check(larger->committed_bytes_ >= committed_bytes_,
        "I2: host memory is copied outside of itself");
  if (committed_bytes_ != 0) std::memcpy(larger->base_, base_, committed_bytes_);
  std::swap(*this, *larger);
  check(reserved_bytes_ >= size_bytes, "host memory is extended by too little");
  return true;
}

}  // namespace vmm
