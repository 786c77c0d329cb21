// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "words.h"

namespace caller {
namespace {

bool is_wrong = false;

struct word {
  std::string_view name;
  void (*run)(const arguments&);
};

constexpr word words[] = {
#define VMM_ROW(name) {#name, name}
    VMM_CALLER_WORDS(VMM_ROW)};

int run(const arguments& all) {
  for (const word& each : words) {
    if (all.empty() || each.name != all.front()) continue;
    each.run({all.begin() + 1, all.end()});
    std::fflush(stdout);
    return is_wrong ? 1 : 0;
  }
  std::puts("no such word");
  return 2;
}

}  // namespace

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("WRONG %s\n", what);
  is_wrong = true;
}

bool are_all(std::span<const unsigned char> bytes, unsigned char value) {
  if (bytes.empty()) return true;
  // Each byte is as the one before it, and the first is right.
  return bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

const char* owner_of(const void* address) {
  Dl_info about{};
  if (address == nullptr) return "none";
  if (dladdr(address, &about) == 0) return "nowhere";
  const char* slash = std::strrchr(about.dli_fname, '/');
  return slash == nullptr ? about.dli_fname : slash + 1;
}

}  // namespace caller

int main(int count, char** texts) { return caller::run({texts + 1, texts + count}); }
