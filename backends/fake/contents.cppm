// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:contents (internal) - the contents of a piece of physical memory, stored sparsely.
//
// A pattern is a 64-bit word repeated from the start of the memory on, little end first: byte k
// holds byte k % 8 of it. Fresh memory has pattern 0. The whole is one pattern until a part of it
// is given another; a granule is one pattern until a part of that is; then it is a list of runs,
// each of one pattern, or a page of 4 KiB to which bytes were written. So tags are words of the
// real content, and moving untouched granules costs O(1) each, while bytes are always right.
//
// I1  The runs of a granule cover it; each ends where the next begins, and none is empty.
// I2  A run with bytes is one page.
// Thread safety: none. A change that throws std::bad_alloc may have been made in part; doing it
// again completes it. Cost: O(1) for each granule touched as a whole, else O(runs of the granule),
// of which there are at most runs_max and two a page.
module vmm.fake:contents;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm::fake {

class contents {
 public:
  static constexpr std::uint64_t page_bytes = 4096;

  /// Both sizes are multiples of page_bytes, and `granule_bytes` divides `size_bytes`.
  contents(std::uint64_t size_bytes, std::uint64_t granule_bytes) noexcept
      : size_bytes_(size_bytes), granule_bytes_(granule_bytes) {
    check(granule_bytes != 0 && granule_bytes % page_bytes == 0 && size_bytes % granule_bytes == 0,
          "a memory is not whole granules");
  }

  void fill(std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t pattern);
  /// The 64-bit word that holds the byte at `offset`.
  [[nodiscard]] std::uint64_t word(std::uint64_t offset) const noexcept;
  void write(std::uint64_t offset, std::span<const std::byte> source);
  void read(std::uint64_t offset, std::span<std::byte> target) const noexcept;
  /// Copies from `source`, which may be this object if the two parts do not overlap.
  void copy(std::uint64_t offset, const contents& source, std::uint64_t source_offset,
            std::uint64_t size_bytes);

 private:
  struct run {
    std::uint64_t begin = 0;  // in the granule
    std::uint64_t pattern = 0;
    std::unique_ptr<std::byte[]> bytes{};  // when set, the content; the pattern then means nothing
  };
  using runs = std::vector<run>;

  // From this number of runs on, a part of a page is written as bytes, so that its page is one run.
  static constexpr std::size_t runs_max = 64;
  static constexpr const char* past_end = "contents are used past the end of their memory";

  [[nodiscard]] inline bool has_all(std::uint64_t offset, std::uint64_t size) const noexcept {
    return size <= size_bytes_ && offset <= size_bytes_ - size;
  }
  [[nodiscard]] inline std::uint64_t pattern_of(std::uint64_t granule) const noexcept {
    check(patterns_.empty() || granule < patterns_.size(), past_end);
    return patterns_.empty() ? uniform_ : patterns_[granule];
  }
  [[nodiscard]] inline const runs* overlay_of(std::uint64_t granule) const noexcept {
    check(granule < size_bytes_ / granule_bytes_, past_end);
    if (overlays_.empty()) return nullptr;
    const auto found = overlays_.find(granule);
    return found == overlays_.end() ? nullptr : &found->second;
  }
  void set_granule(std::uint64_t granule, std::uint64_t pattern);
  [[nodiscard]] runs& make_overlay(std::uint64_t granule);
  /// The run that holds the byte at `inside`, and where it ends.
  [[nodiscard]] static std::size_t run_at(const runs& of, std::uint64_t inside) noexcept;
  [[nodiscard]] std::uint64_t end_of(const runs& of, std::size_t index) const noexcept;
  /// The run that begins at `inside`, which lies in no page of bytes; of.size() at the end.
  [[nodiscard]] std::size_t cut(runs& of, std::uint64_t inside) const;
  /// The content of the page that holds the byte at `inside`, as bytes.
  [[nodiscard]] std::byte* make_bytes(runs& of, std::uint64_t inside) const;
  void fill_part(runs& of, std::uint64_t inside, std::uint64_t size_bytes,
                 std::uint64_t pattern) const;
  void read_part(const runs& of, std::uint64_t inside, std::span<std::byte> target) const noexcept;
  void copy_granule(std::uint64_t granule, const contents& source, std::uint64_t source_granule);
  /// The run of one kind from an offset on, with the phase of the pattern as stored here.
  struct part {
    std::uint64_t size_bytes = 0;
    std::uint64_t pattern = 0;
    bool is_bytes = false;
  };
  [[nodiscard]] part part_at(std::uint64_t offset, std::uint64_t limit_bytes) const noexcept;
  void copy_part(std::uint64_t offset, const contents& source, std::uint64_t source_offset,
                 std::uint64_t size_bytes);

  std::uint64_t size_bytes_;
  std::uint64_t granule_bytes_;
  std::uint64_t uniform_ = 0;            // the pattern of every granule while patterns_ is empty
  std::vector<std::uint64_t> patterns_;  // one for each granule, or empty
  std::unordered_map<std::uint64_t, runs> overlays_;  // granules that are more than one pattern
};

}  // namespace vmm::fake
