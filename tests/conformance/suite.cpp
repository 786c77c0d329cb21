// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h. The tests themselves, for every backend that has joined.
#include <ostream>

#include "addresses.h"
#include "bytes.h"
#include "devices.h"
#include "memory.h"
#include "random.h"

namespace conformance {
namespace {

// Backends join before main, in no order of files: the list is created by the first one.
std::vector<tested_backend>& all_backends() {
  static std::vector<tested_backend> all;
  return all;
}

std::string name_of(const ::testing::TestParamInfo<tested_backend>& info) {
  return info.param.name;
}

}  // namespace

bool join(const tested_backend& backend) {
  all_backends().push_back(backend);
  return true;
}

void PrintTo(const tested_backend& backend, std::ostream* out) { *out << backend.name; }

// The tests of a program are made when all of it has joined: Conformance.WriteAndRead/host_lazy.
INSTANTIATE_TEST_SUITE_P(, Conformance, ::testing::ValuesIn(all_backends()), name_of);

}  // namespace conformance
