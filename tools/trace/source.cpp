// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>

module vmm.trace;

import vmm.base;
import vmm.std;

namespace vmm::tools {

namespace {

/// Files that are neither text nor gzip, recognised by their first bytes.
struct other_form {
  std::string_view magic;
  const char* what;
  const char* expected;
};

constexpr std::array other_forms = {
    other_form{{"\xfd\x37zXZ\0", 6},
               "the file is compressed by xz",
               "plain text or gzip: unpack it with 'xz -d'"},
    other_form{"\x28\xb5\x2f\xfd", "the file is compressed by zstd",
               "plain text or gzip: unpack it with 'zstd -d'"},
    other_form{"BZh", "the file is compressed by bzip2",
               "plain text or gzip: unpack it with 'bzip2 -d'"},
    other_form{"PK\x03\x04", "the file is a zip archive",
               "plain text or gzip: unpack it with 'unzip'"},
    other_form{"\xff\xfe", "the file is UTF-16 text", "ASCII text"},
    other_form{"\xfe\xff", "the file is UTF-16 text", "ASCII text"},
    other_form{"version https://git-lfs", "the file is a Git LFS pointer, not the trace itself",
               "the contents: fetch them with 'git lfs pull'"},
};

constexpr char gzip_first_byte = '\x1f';  // no text of ours begins with it

}  // namespace

struct byte_source::inflater {
  z_stream stream{};
  std::vector<char> text = std::vector<char>(block_bytes);
  bool is_full = false;  // zlib may have more output from its bytes
  bool has_member_ended = false;
};

void byte_source::closer::operator()(void* file) const noexcept {
  (void)std::fclose(static_cast<std::FILE*>(file));
}

byte_source::byte_source(const std::string& path) : block_(block_bytes) {
  const opened_file opened = open_named(path.c_str(), O_RDONLY);
  if (opened.failure == 0) file_.reset(::fdopen(opened.descriptor, "rb"));
  if (file_ == nullptr) {
    const int failure = opened.failure != 0 ? opened.failure : errno;
    if (opened.failure == 0) (void)::close(opened.descriptor);
    refuse_unreadable(failure);
    return;
  }
  auto* const file = static_cast<std::FILE*>(file_.get());
  if (std::fseek(file, 0, SEEK_END) != 0) return;
  const long end = std::ftell(file);
  size_bytes_ = end > 0 ? static_cast<std::uint64_t>(end) : 0;
  std::rewind(file);
}

byte_source::byte_source(std::span<const std::byte> bytes)
    : memory_(bytes), size_bytes_(bytes.size()) {}

byte_source::~byte_source() {
  if (inflater_ != nullptr) ::inflateEnd(&inflater_->stream);
}

void byte_source::refuse_unreadable(int failure) {
  is_unreadable_ = true;
  const char* const cause = limit_text(failure);
  refuse(std::string("cannot be read: ") + (cause != nullptr ? cause : std::strerror(failure)),
         "a readable file");
}

void byte_source::refuse(std::string what, std::string expected) {
  trouble_ = {std::move(what), std::move(expected)};
}

std::string_view byte_source::read_block() {
  if (file_ == nullptr) {
    const auto block = memory_.first(std::min(memory_.size(), block_bytes));
    memory_ = memory_.subspan(block.size());
    read_bytes_ += block.size();
    return {reinterpret_cast<const char*>(block.data()), block.size()};
  }
  auto* const file = static_cast<std::FILE*>(file_.get());
  const std::size_t got = std::fread(block_.data(), 1, block_.size(), file);
  if (std::ferror(file) != 0) {
    refuse_unreadable(errno);
    return {};
  }
  read_bytes_ += got;
  return {block_.data(), got};
}

std::string_view byte_source::begin() {
  has_begun_ = true;
  const std::string_view head = read_block();
  for (const other_form& each : other_forms) {
    if (!head.starts_with(each.magic)) continue;
    refuse(each.what, each.expected);
    return {};
  }
  if (head.empty() || head.front() != gzip_first_byte) return head;
  inflater_ = std::make_unique<inflater>();
  constexpr int gzip_only = 15 + 16;  // the largest window; 16: a gzip header and its check sum
  if (::inflateInit2(&inflater_->stream, gzip_only) != Z_OK) {
    inflater_.reset();
    refuse("zlib cannot start to decompress", "more free memory");
    return {};
  }
  is_gzip_ = true;
  inflater_->stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(head.data()));
  inflater_->stream.avail_in = static_cast<uInt>(head.size());
  return next_inflated();
}

std::string_view byte_source::peek() {
  if (!is_peeked_) peeked_ = read_next();
  is_peeked_ = true;
  return peeked_;
}

std::string_view byte_source::next() {
  return std::exchange(is_peeked_, false) ? peeked_ : read_next();
}

std::string_view byte_source::read_next() {
  if (!trouble_.what.empty()) return {};
  if (!has_begun_) return begin();
  return is_gzip_ ? next_inflated() : read_block();
}

/// Every turn takes input or gives output, so the loop ends.
std::string_view byte_source::next_inflated() {
  z_stream& stream = inflater_->stream;
  while (trouble_.what.empty()) {
    if (stream.avail_in == 0 && !inflater_->is_full) {
      const std::string_view block = read_block();
      if (block.empty()) {
        if (trouble_.what.empty() && !inflater_->has_member_ended)
          refuse("the gzip data is cut short here", "the rest of the file");
        return {};
      }
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
      stream.avail_in = static_cast<uInt>(block.size());
    }
    if (inflater_->has_member_ended && !begin_member()) return {};
    stream.next_out = reinterpret_cast<Bytef*>(inflater_->text.data());
    stream.avail_out = static_cast<uInt>(block_bytes);
    const int code = ::inflate(&stream, Z_NO_FLUSH);
    inflater_->has_member_ended = code == Z_STREAM_END;
    inflater_->is_full = stream.avail_out == 0 && code != Z_STREAM_END;
    // Z_BUF_ERROR: it needs the next block.
    if (code != Z_STREAM_END && code != Z_OK && code != Z_BUF_ERROR) {
      const char* const why = stream.msg != nullptr ? stream.msg : "unknown reason";
      refuse(std::string("the gzip data is damaged (") + why + ")", "an intact file");
    }
    const std::size_t got = block_bytes - stream.avail_out;
    if (got != 0) return {inflater_->text.data(), got};
  }
  return {};
}

bool byte_source::begin_member() {
  if (*inflater_->stream.next_in != static_cast<Bytef>(gzip_first_byte)) {
    refuse("there are further bytes behind the end of the gzip data", "the end of the file");
    return false;
  }
  inflater_->has_member_ended = false;
  if (::inflateReset(&inflater_->stream) == Z_OK) return true;
  refuse("zlib cannot start again", "an intact file");
  return false;
}

}  // namespace vmm::tools
