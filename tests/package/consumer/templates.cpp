// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every exported template can be instantiated, all of it, by a program without headers.
// Method: explicit instantiation of each class template, on a driver that has every refinement and
// on one chosen at run time. A compiler that leaves out a part of a template from a module only
// shows it when linking, and programs that include <map> hide it.
#include <cstdio>
#if defined(__clang_major__) && __clang_major__ >= 22
#include <mutex>  // see docs/support.md, clang 22
#endif

import vmm;
import vmm.backend;
import vmm.base;
import vmm.fake;
import vmm.observe;
import vmm.registry;

namespace {

struct pooled {
  pooled* next_free = nullptr;
};

}  // namespace

template class vmm::result<int>;
template class vmm::object_pool<pooled>;
template class vmm::device_array<float>;
template class vmm::vector<float>;
template class vmm::observed_backend<vmm::fake_driver, vmm::call_counter>;
template class vmm::observed_backend<vmm::any_backend, vmm::call_log>;
template vmm::fake_driver* vmm::driver_in<vmm::fake_driver>(vmm::any_backend&) noexcept;

int use_templates() {
  vmm::paranoid_check([] { return true; }, "said");
  vmm::debug_check([] { return true; }, "said");
  std::printf("every template can be instantiated\n");
  return 0;
}
