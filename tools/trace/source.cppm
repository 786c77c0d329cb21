// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.trace:source - the bytes of a file, or of memory, block by block, inflated when they begin as
// gzip does. Several gzip members in a row are one text, as gzip has it; anything else behind a
// member is refused, and so are other compressed forms, each with what unpacks it.
//
// Thread safety: values only. Cost: linear in the bytes; memory is two blocks of 64 KiB.
export module vmm.trace:source;

import vmm.std;

namespace vmm::tools {

export class byte_source {
 public:
  struct trouble_text {
    std::string what{};      ///< empty while all is well
    std::string expected{};  ///< empty if it has no detail
  };

  /// The file at `path`. Where it cannot be opened, next() returns nothing and trouble() why.
  explicit byte_source(const std::string& path);
  /// Bytes in memory. Requires: they outlive this.
  explicit byte_source(std::span<const std::byte> bytes);
  ~byte_source();
  byte_source(const byte_source&) = delete;
  byte_source& operator=(const byte_source&) = delete;

  /// The next bytes, valid until the next call. Empty: the end, or trouble().
  [[nodiscard]] std::string_view next();
  /// What next() will return. A pipe can be read by one source only.
  [[nodiscard]] std::string_view peek();
  [[nodiscard]] const trouble_text& trouble() const noexcept { return trouble_; }
  /// Whether the file itself cannot be read: trouble() is the system's reason.
  [[nodiscard]] bool is_unreadable() const noexcept { return is_unreadable_; }
  /// Bytes of the file that were read, before they were inflated.
  [[nodiscard]] std::uint64_t read_bytes() const noexcept { return read_bytes_; }
  /// Of the whole file; 0 where it has no size, as a pipe.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  struct inflater;
  static constexpr std::size_t block_bytes = 65536;

  [[nodiscard]] std::string_view read_next();
  [[nodiscard]] std::string_view read_block();
  [[nodiscard]] std::string_view begin();
  [[nodiscard]] std::string_view next_inflated();
  [[nodiscard]] bool begin_member();
  void refuse_unreadable(int failure);
  void refuse(std::string what, std::string expected);

  struct closer {
    void operator()(void* file) const noexcept;
  };
  std::unique_ptr<void, closer> file_{};
  std::span<const std::byte> memory_{};
  std::unique_ptr<inflater> inflater_;
  std::vector<char> block_{};
  trouble_text trouble_{};
  std::uint64_t read_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
  std::string_view peeked_{};
  bool is_peeked_ = false;
  bool has_begun_ = false;
  bool is_gzip_ = false;
  bool is_unreadable_ = false;
};

}  // namespace vmm::tools
