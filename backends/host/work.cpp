// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A host_driver's calls on bytes and on streams, of which it has none but the default one, and on
// handles that go to other processes.
module;
#include <cerrno>

#include "linux.hpp"

module vmm.host;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;
import :tables;

namespace vmm {

using namespace host_tables;

namespace {

std::byte* bytes_at(address at) noexcept {
  check(static_cast<bool>(at), "bytes at address 0 are accessed");
  return reinterpret_cast<std::byte*>(
      static_cast<std::uintptr_t>(at.value));  // NOLINT(performance-no-int-to-ptr)
}

constexpr const char* no_copy = "the kernel makes no copy of the descriptor";
constexpr const char* streamless = "the host driver has no streams but the default one";

error no_streams(const process_mark& made_in, call where) noexcept {
  check(where != call::none, "a refusal names no call");
  if (!made_in.is_here()) return refuse_forked(where);
  return bad_call(where, errc::not_supported,
                  "the host driver has no streams and no events: work is finished when a call "
                  "returns");
}

}  // namespace

result<stream_handle> host_driver::create_stream() noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::create_stream);
}
status host_driver::destroy_stream(stream_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::destroy_stream);
}
status host_driver::synchronize_stream(stream_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::synchronize_stream);
}
result<event_handle> host_driver::create_event() noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::create_event);
}
status host_driver::destroy_event(event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::destroy_event);
}
status host_driver::record_event(event_handle, stream_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::record_event);
}
result<bool> host_driver::query_event(event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::query_event);
}
status host_driver::wait_event(stream_handle, event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::wait_event);
}
status host_driver::synchronize_event(event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::synchronize_event);
}

status host_driver::copy(const copy_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::copy);
  if (request.stream != stream_handle::default_stream) {
    return bad_call(call::copy, errc::invalid_argument, streamless);
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status readable =
      state_->addresses.usable(call::copy, {request.source, request.size_bytes}, access::read);
  if (!readable) return readable;
  const status writable = state_->addresses.usable(call::copy, {request.target, request.size_bytes},
                                                   access::read_write);
  if (!writable) return writable;
  if (request.size_bytes != 0)
    std::memmove(bytes_at(request.target), bytes_at(request.source), request.size_bytes);
  return {};
}

status host_driver::fill(const fill_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::fill);
  if (request.stream != stream_handle::default_stream) {
    return bad_call(call::fill, errc::invalid_argument, streamless);
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status writable = state_->addresses.usable(call::fill, request.target, access::read_write);
  if (!writable) return writable;
  if (!request.target.empty())
    std::memset(bytes_at(request.target.base), request.value, request.target.size_bytes);
  return {};
}

status host_driver::write(address at, std::span<const std::byte> source) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::write);
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status writable =
      state_->addresses.usable(call::write, {at, source.size()}, access::read_write);
  if (!writable) return writable;
  if (!source.empty()) std::memcpy(bytes_at(at), source.data(), source.size());
  return {};
}

status host_driver::read(std::span<std::byte> target, address at) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::read);
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status readable = state_->addresses.usable(call::read, {at, target.size()}, access::read);
  if (!readable) return readable;
  if (!target.empty()) std::memcpy(target.data(), bytes_at(at), target.size());
  return {};
}

result<physical_handle> host_driver::retain(address at) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::retain);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  const mapping* mapped = state_->addresses.mapping_at(at);
  if (mapped == nullptr)
    return bad_call(call::retain, errc::invalid_argument, "nothing is mapped there");
  return state_->memories.retain(*mapped->behind);
}

result<physical_properties> host_driver::get_properties(physical_handle handle) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::get_properties);
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const memory* behind = state_->memories.find(handle);
  if (behind == nullptr) {
    return unknown_handle(call::get_properties);
  }
  return physical_properties{.where = host(), .shareable = behind->shareable};
}

result<shared_handle> host_driver::export_handle(physical_handle handle, share_kind kind) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::export_handle);
  if (kind != share_kind::posix_fd) {
    return bad_call(call::export_handle, errc::not_supported,
                    "the host driver shares memory as posix_fd only");
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const memory* behind = state_->memories.find(handle);
  if (behind == nullptr) {
    return unknown_handle(call::export_handle);
  }
  if (behind->shareable != kind) {
    return bad_call(call::export_handle, errc::invalid_argument,
                    "the memory was not created shareable");
  }
  check(behind->own_file >= 0, "shareable memory has no file");
  const linux_os::opened copy = linux_os::duplicate(behind->own_file);
  if (copy.failure != 0)
    return file_error(call::export_handle, errc::out_of_memory, copy.failure, no_copy);
  shared_handle shared;
  shared.kind = kind;
  shared.descriptor = copy.descriptor;
  shared.size_bytes = behind->pages.size_bytes;
  check(shared.descriptor >= 0 && shared.size_bytes != 0, "memory is exported as no file");
  return shared;
}

result<physical_handle> host_driver::import_handle(const shared_handle& shared) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::import_handle);
  if (shared.kind != share_kind::posix_fd) {
    return bad_call(call::import_handle, errc::not_supported,
                    "the host driver shares memory as posix_fd only");
  }
  if (shared.descriptor < 0 || shared.descriptor > std::numeric_limits<int>::max()) {
    return bad_call(call::import_handle, errc::invalid_argument, "not a descriptor");
  }
  const int descriptor = static_cast<int>(shared.descriptor);
  const linux_os::file_facts facts = linux_os::examine(descriptor);
  if (facts.failure != 0) {
    return kernel_error(call::import_handle, errc::invalid_argument, facts.failure,
                        "not an open descriptor");
  }
  if (!facts.memory_file || !facts.shrink_sealed || !facts.writable) {
    return bad_call(call::import_handle, errc::invalid_argument,
                    "not a writable memory file that is sealed against shrinking");
  }
  const bool is_sized = shared.size_bytes != 0;
  if (facts.size_bytes == 0 || !state_->aligned(facts.size_bytes) ||
      (is_sized && facts.size_bytes != shared.size_bytes)) {
    return bad_call(call::import_handle, errc::invalid_argument,
                    "the size is not the file's, or not in granules");
  }
  const linux_os::opened copy = linux_os::duplicate(descriptor);
  if (copy.failure != 0)
    return file_error(call::import_handle, errc::out_of_memory, copy.failure, no_copy);
  check(copy.descriptor >= 0, "imported memory has no file");
  memory received;
  received.pages.size_bytes = facts.size_bytes;
  received.own_file = copy.descriptor;
  received.shareable = share_kind::posix_fd;
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  const result<physical_handle> handle = state_->memories.enter(call::import_handle, received);
  if (!handle) linux_os::close(copy.descriptor);
  check(!handle || state_->memories.find(*handle) != nullptr,
        "imported memory is missing from its table");
  return handle;
}

}  // namespace vmm
