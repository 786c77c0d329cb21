// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of the table, under the driver's names: what programs linked against libcuda call,
// and what the other routes hand out.
#include "accounts.h"
#include "handlers.h"
#include "settings.h"

namespace {

using namespace vmm::preload;

constexpr bool legacy = false;
constexpr bool per_thread = true;

// Counts the call that it lives through.
class counted_call {
 public:
  explicit counted_call(entry_id entry) noexcept : entry_(entry) {
    accounts::start(entry);
    accounts::begin_call();
    begun_ = accounts::now();
  }
  [[nodiscard]] result_code done(result_code code) const noexcept {
    accounts::note_call(entry_, code, accounts::now() - begun_);
    return code;
  }

 private:
  entry_id entry_;
  std::uint64_t begun_ = 0;
};

}  // namespace

#define VMM_UNPACK(...) __VA_ARGS__
#define VMM_ENTRY(symbol, name, version, streams, handler, parameters, arguments) \
  extern "C" [[gnu::visibility("default")]] result_code symbol parameters {       \
    const call_site site{entry_id::symbol, streams, real_of(entry_id::symbol)};   \
    if (site.real == nullptr) return code::not_initialized;                       \
    if (is_passive()) return site arguments;                                      \
    const counted_call call(site.entry);                                          \
    return call.done(handlers::handler(site, VMM_UNPACK arguments));              \
  }
#include "entries.inc"
#undef VMM_ENTRY
#undef VMM_UNPACK
