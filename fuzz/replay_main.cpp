// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A main for any fuzz target: runs each file given, and each file of each folder given, through the
// target once, in the order of their names. So corpora are tests in builds without libFuzzer.
#include <filesystem>
#include "../tools/program/standard.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& given) {
  if (!std::filesystem::is_directory(given)) return {given};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(given))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

bool replay(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open() || in.bad()) {
    std::fprintf(stderr, "cannot read %s\n", file.c_str());
    return false;
  }
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::filesystem::path& file : files_of(argv[i])) {
      if (!replay(file)) return 2;
      ++count;
    }
  }
  if (count == 0) {
    std::fprintf(stderr, "usage: %s FILE|FOLDER ..., with at least one input in it\n", argv[0]);
    return 2;
  }
  std::printf("%zu inputs replayed\n", count);
  return 0;
}
