// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Sharing by way of vmm.h.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "manager_object.hpp"
#include "objects.hpp"
#include "share_objects.hpp"

import vmm.share;

namespace vmm_c {
namespace {

// A listener or channel, which has no driver.
template <class Object, class Made, class Handle>
vmm_status hand_out_alone(Made made, Handle** out) {
  auto object = std::make_unique<Object>(std::move(made));
  void* const handle = add_handle(Object::kind, object.get());
  if (handle == nullptr)
    return fail(VMM_ERROR_OUT_OF_HOST_MEMORY,
                "no handle is left: at most 65,536 can exist at a time");
  (void)object.release();
  *out = static_cast<Handle*>(handle);
  return VMM_SUCCESS;
}

vmm_status read_options(const vmm_share_options* given, vmm::share_options& into) noexcept {
  if (given == nullptr) return fail_null();
  vmm_share_options full{};
  if (const vmm_status read = read_struct(*given, full); read != VMM_SUCCESS) return read;
  static_assert(sizeof full.secret == sizeof into.secret.bytes);
  std::memcpy(into.secret.bytes.data(), full.secret, sizeof full.secret);
  ::explicit_bzero(full.secret, sizeof full.secret);
  if (full.reserved != 0) return fail(VMM_ERROR_BAD_OPTION, "a reserved member of options is 0");
  into.timeout_ms = full.timeout_ms;
  return VMM_SUCCESS;
}

// The channel that `open` makes from the options.
template <class Open>
vmm_status make_channel(const vmm_share_options* given, vmm_channel** out, Open&& open) {
  if (out == nullptr) return fail_null();
  *out = nullptr;
  vmm::share_options options;
  if (const vmm_status read = read_options(given, options); read != VMM_SUCCESS) return read;
  vmm::result<vmm::share_channel> made = open(options);
  if (!made) return fail(made.error());
  return hand_out_alone<channel_object>(std::move(*made), out);
}

constexpr vmm::error no_time{vmm::errc::invalid_argument, vmm::call::none, 0, "",
                             "timeout_ms is 0, and the peer's greeting takes time: give 1 or more"};

// As make_channel(), outside of calls on an object. A greeting ends a connection that gets no reply
// in time.
template <class Open>
vmm_status meet(const vmm_share_options* given, vmm_channel** out, Open&& open) {
  const handler_scope handlers;
  return make_channel(given, out, [&](const vmm::share_options& how) {
    return how.timeout_ms == 0 ? vmm::result<vmm::share_channel>(no_time) : open(how);
  });
}

vmm_status read_request(const vmm_export_request* given, vmm_export_request& into) noexcept {
  if (given == nullptr) return fail_null();
  if (const vmm_status read = read_struct(*given, into); read != VMM_SUCCESS) return read;
  if (into.reserved != 0)
    return fail(VMM_ERROR_INVALID_ARGUMENT, "a reserved member of a request is 0");
  const vmm_status flags = check_flags(
      VMM_ERROR_INVALID_ARGUMENT,
      {{into.followed, "followed is 0 or 1"}, {into.one_handle, "one_handle is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  if (into.kind == 0) into.kind = VMM_SHARE_POSIX_FD;
  if (into.kind != VMM_SHARE_POSIX_FD && into.kind != VMM_SHARE_WIN32 &&
      into.kind != VMM_SHARE_FABRIC)
    return fail_value(VMM_ERROR_INVALID_ARGUMENT, into.kind,
                      "kind is 0, or one of VMM_SHARE_POSIX_FD, VMM_SHARE_WIN32, VMM_SHARE_FABRIC");
  return VMM_SUCCESS;
}

vmm::share_label label_of(const vmm_export_request& request) noexcept {
  vmm::share_label label{};
  static_assert(sizeof request.label == sizeof(label));
  std::memcpy(label.data(), request.label, label.size());
  return label;
}

vmm_status export_own(driver_object& on, const vmm_export_request* given, vmm_export** out) {
  vmm_export_request request{};
  if (const vmm_status read = read_request(given, request); read != VMM_SUCCESS) return read;
  if (!on.made_in.is_here()) return fail_forked();
  if (request.followed != 0)
    return fail(VMM_ERROR_INVALID_ARGUMENT, "only a manager's block can be followed");
  auto made = vmm::exported_block::make(
      on.backend, {.size_bytes = request.size_bytes,
                   .handle_bytes = request.one_handle != 0 ? 0 : request.handle_bytes,
                   .kind = static_cast<vmm::share_kind>(request.kind),
                   .label = label_of(request)});
  if (!made) return fail(made.error());
  return hand_out(std::make_unique<export_object>(on, nullptr, std::move(*made)), on, out);
}

vmm_status export_of(manager_object& on, const void* at, const vmm_export_request* given,
                     vmm_export** out) {
  vmm_export_request request{};
  if (const vmm_status read = read_request(given, request); read != VMM_SUCCESS) return read;
  if (!on.made_in.is_here()) return fail_forked();
  if (request.size_bytes != 0 || request.handle_bytes != 0)
    return fail(VMM_ERROR_INVALID_ARGUMENT, "a manager's block has its own size: pass 0");
  auto made = vmm::exported_block::from(
      on.manager, address_of(at),
      {.rule = request.followed != 0 ? vmm::export_rule::followed : vmm::export_rule::pinned,
       .kind = static_cast<vmm::share_kind>(request.kind),
       .one_handle = request.one_handle != 0,
       .label = label_of(request)});
  if (!made) return fail(made.error());
  const vmm_status handed =
      hand_out(std::make_unique<export_object>(on.driver, &on, std::move(*made)), on.driver, out);
  if (handed == VMM_SUCCESS) on.export_count.fetch_add(1);
  return handed;
}

// Releases the object, and ends the handle only if that succeeded.
template <class Object, class Last>
vmm_status end_block(const void* handle, Last&& last) noexcept {
  if (handle == nullptr) return VMM_SUCCESS;
  const vmm_status released = run([&]() -> vmm_status {
    const call_on<Object> object(handle);
    if (!object) return fail_handle();
    if (!object->made_in.is_here()) return VMM_SUCCESS;
    const std::lock_guard<std::mutex> lock(object->mutex);
    return answer(object->block.release());
  });
  if (released != VMM_SUCCESS) return released;
  return run([&] {
    return destroy<Object>(handle, [&](Object& gone) {
      driver_object& driver = gone.driver;
      last(gone);
      delete &gone;
      driver.user_count.fetch_sub(1);
    });
  });
}

std::uint32_t kind_of(vmm::share_event::what kind) noexcept {
  using enum vmm::share_event::what;
  switch (kind) {
    case offered: return VMM_SHARE_OFFERED;
    case updated: return VMM_SHARE_UPDATED;
    case withdrawn: return VMM_SHARE_WITHDRAWN;
    case accepted: return VMM_SHARE_ACCEPTED;
    case refused: return VMM_SHARE_REFUSED;
    case released: return VMM_SHARE_RELEASED;
  }
  return VMM_SHARE_RELEASED;
}

// Drops the updates of one block and closes their descriptors.
void forget_updates(channel_object& on, std::uint64_t id) {
  std::erase_if(on.updates, [id](const vmm::share_event& each) { return each.id == id; });
}

vmm_status next(channel_object& on, std::uint32_t timeout_ms, vmm_share_event& out) {
  on.offers.reserve(on.offers.size() + 1);
  on.updates.reserve(on.updates.size() + 1);
  vmm::result<vmm::share_event> event = on.channel.next(timeout_ms);
  if (!event) return fail(event.error());
  vmm_share_event out_event{};
  out_event.id = event->id;
  out_event.epoch = event->epoch;
  out_event.kind = kind_of(event->kind);
  out_event.reason = status_of(event->reason);
  write_struct(out, out_event);
  if (event->kind == vmm::share_event::what::offered) on.offers.push_back(std::move(*event));
  if (event->kind == vmm::share_event::what::updated) {
    forget_updates(on, event->id);  // updates not applied are out of date
    on.updates.push_back(std::move(*event));
  }
  return VMM_SUCCESS;
}

// Imports, maps and accepts an offer that was returned before.
vmm::result<vmm::imported_block> borrow_accepted(channel_object& on, driver_object& driver,
                                                 const vmm::import_options& options) {
  const vmm::share_event offer = std::move(on.offers.front());
  on.offers.erase(on.offers.begin());
  auto made = vmm::imported_block::import_block(driver.backend, offer.block, options);
  vmm::status done = made ? vmm::status{} : vmm::status{made.error()};
  if (done) {
    if (const auto at = made->map(); !at) done = at.error();
  }
  if (!done) {
    (void)on.channel.refuse_offer(offer.id, done.error().code);
    return done.error();
  }
  if (const vmm::status out_event = on.channel.accept(offer.id); !out_event)
    return out_event.error();
  return made;
}

vmm_status borrow(channel_object& on, driver_object& driver, const vmm_import_request* given,
                  vmm_import** out) {
  vmm_import_request request{};
  if (given != nullptr) {
    if (const vmm_status read = read_struct(*given, request); read != VMM_SUCCESS) return read;
  }
  const vmm_status flags = check_flags(
      VMM_ERROR_INVALID_ARGUMENT,
      {{request.read_only, "read_only is 0 or 1"}, {request.any_device, "any_device is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  const vmm::import_options options{
      .rights = request.read_only != 0 ? vmm::access::read : vmm::access::read_write,
      .any_device = request.any_device != 0};
  auto made = on.offers.empty() ? on.channel.borrow(driver.backend, options)
                                : borrow_accepted(on, driver, options);
  if (!made) return fail(made.error());
  return hand_out(std::make_unique<import_object>(driver, std::move(*made)), driver, out);
}

vmm_status apply(channel_object& on, import_object& changed) {
  for (auto at = on.updates.begin(); at != on.updates.end(); ++at) {
    if (at->id != changed.block.id()) continue;
    const auto moved = changed.block.update(at->block);
    if (!moved) return fail(moved.error());
    on.updates.erase(at);
    return answer(on.channel.accept(changed.block.id()));
  }
  return fail(VMM_ERROR_INVALID_ARGUMENT,
              "no update of this block was received: see "
              "vmm_share_next");
}

vmm_status answer_info(const vmm::share_description& block, const vmm_shared_info& known,
                       vmm_shared_info* out) noexcept {
  if (out == nullptr) return fail_null();
  if (!is_sized(*out)) return fail_size(*out);
  vmm_shared_info info = known;
  info.size_bytes = block.size_bytes;
  info.id = block.id;
  info.epoch = block.epoch;
  info.part_count = block.part_count;
  std::memcpy(info.label, block.label.data(), block.label.size());
  write_struct(*out, info);
  return VMM_SUCCESS;
}

}  // namespace
}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_share_make_secret(uint8_t* secret) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (secret == nullptr) return fail_null();
    const auto made = vmm::share_secret::make();
    if (!made) return fail(made.error());
    std::memcpy(secret, made->bytes.data(), made->bytes.size());
    return VMM_SUCCESS;
  });
}

vmm_status vmm_share_read_secret(const char* path, uint8_t* secret) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (path == nullptr || secret == nullptr) return fail_null();
    const auto read = vmm::share_secret::from_file(path);
    if (!read) return fail(read.error());
    std::memcpy(secret, read->bytes.data(), read->bytes.size());
    return VMM_SUCCESS;
  });
}

vmm_status vmm_share_options_init(vmm_share_options* options, uint64_t struct_size) VMM_NOEXCEPT {
  return init_struct(options, struct_size, [](vmm_share_options& out) {
    out.timeout_ms = vmm::share_options{}.timeout_ms;
  });
}

vmm_status vmm_share_listen(const char* path, vmm_listener** listener) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (path == nullptr || listener == nullptr) return fail_null();
    *listener = nullptr;
    auto made = vmm::share_listener::open(path);
    if (!made) return fail(made.error());
    return hand_out_alone<listener_object>(std::move(*made), listener);
  });
}

vmm_status vmm_share_accept(vmm_listener* listener, const vmm_share_options* options,
                            vmm_channel** channel) VMM_NOEXCEPT {
  return on_object<listener_object>(listener, [&](listener_object& on) {
    return make_channel(options, channel,
                        [&](const vmm::share_options& how) { return on.listener.accept(how); });
  });
}

vmm_status vmm_share_stop(vmm_listener* listener) VMM_NOEXCEPT {
  if (listener == nullptr) return VMM_SUCCESS;
  return run([&] {
    return destroy<listener_object>(listener, [](listener_object& gone) { delete &gone; });
  });
}

vmm_status vmm_share_connect(const char* path, const vmm_share_options* options,
                             vmm_channel** channel) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (path == nullptr) return fail_null();
    return meet(options, channel, [&](const vmm::share_options& how) {
      return vmm::share_channel::connect(path, how);
    });
  });
}

vmm_status vmm_share_adopt(int32_t descriptor, uint32_t accepts, const vmm_share_options* options,
                           vmm_channel** channel) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    return meet(options, channel, [&](const vmm::share_options& how) {
      return vmm::share_channel::adopt(
          descriptor, accepts != 0 ? vmm::share_role::accepting : vmm::share_role::connecting, how);
    });
  });
}

vmm_status vmm_share_close(vmm_channel* channel) VMM_NOEXCEPT {
  if (channel == nullptr) return VMM_SUCCESS;
  return run(
      [&] { return destroy<channel_object>(channel, [](channel_object& gone) { delete &gone; }); });
}

vmm_status vmm_share_descriptor(vmm_channel* channel, int32_t* descriptor) VMM_NOEXCEPT {
  return on_object<channel_object>(channel, [&](channel_object& on) -> vmm_status {
    if (descriptor == nullptr) return fail_null();
    *descriptor = on.channel.native();
    return VMM_SUCCESS;
  });
}

vmm_status vmm_share_export(vmm_driver* driver, const vmm_export_request* request,
                            vmm_export** block) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<driver_object> on(driver);
    if (!on) return fail_handle();
    if (block == nullptr) return fail_null();
    *block = nullptr;
    return export_own(*on, request, block);
  });
}

vmm_status vmm_share_export_block(vmm_manager* manager, void* at, const vmm_export_request* request,
                                  vmm_export** block) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<manager_object> on(manager);
    if (!on) return fail_handle();
    if (block == nullptr) return fail_null();
    *block = nullptr;
    return export_of(*on, at, request, block);
  });
}

vmm_status vmm_share_moved(vmm_export* block, void* at) VMM_NOEXCEPT {
  return on_object<export_object>(
      block, [&](export_object& on) { return answer(on.block.moved_to(address_of(at))); });
}

vmm_status vmm_share_query_export(vmm_export* block, vmm_shared_info* info) VMM_NOEXCEPT {
  return on_object<export_object>(block, [&](export_object& on) -> vmm_status {
    const auto description = on.block.describe();
    if (!description) return fail(description.error());
    vmm_shared_info known{};
    known.base = pointer_to(on.block.data_address());
    known.lent = on.block.is_lent() ? 1 : 0;
    return answer_info(*description, known, info);
  });
}

vmm_status vmm_share_end_export(vmm_export* block) VMM_NOEXCEPT {
  return end_block<export_object>(block, [](export_object& gone) {
    if (gone.owner != nullptr) gone.owner->export_count.fetch_sub(1);
  });
}

vmm_status vmm_share_lend(vmm_channel* channel, vmm_export* block, uint64_t* id) VMM_NOEXCEPT {
  return on_object<channel_object>(channel, [&](channel_object& on) -> vmm_status {
    std::uint64_t number = 0;
    const vmm_status sent = on_object<export_object>(block, [&](export_object& lent) -> vmm_status {
      if (id == nullptr) return fail_null();
      const auto offered = on.channel.send(lent.block);
      if (!offered) return fail(offered.error());
      number = *offered;
      return VMM_SUCCESS;
    });
    if (sent != VMM_SUCCESS) return sent;
    const auto accepted = on.channel.await_reply(number);  // without the block's lock
    if (!accepted) return fail(accepted.error());
    *id = *accepted;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_share_update(vmm_channel* channel, uint64_t id, uint64_t* epoch) VMM_NOEXCEPT {
  return on_object<channel_object>(channel, [&](channel_object& on) -> vmm_status {
    const auto now = on.channel.update(id);
    if (!now) return fail(now.error());
    if (epoch != nullptr) *epoch = *now;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_share_take_back(vmm_channel* channel, uint64_t id) VMM_NOEXCEPT {
  return on_object<channel_object>(
      channel, [&](channel_object& on) { return answer(on.channel.take_back(id)); });
}

vmm_status vmm_share_next(vmm_channel* channel, uint32_t timeout_ms,
                          vmm_share_event* event) VMM_NOEXCEPT {
  return on_object<channel_object>(channel, [&](channel_object& on) -> vmm_status {
    if (event == nullptr) return fail_null();
    return is_sized(*event) ? next(on, timeout_ms, *event) : fail_size(*event);
  });
}

vmm_status vmm_share_borrow(vmm_channel* channel, vmm_driver* driver,
                            const vmm_import_request* request, vmm_import** block) VMM_NOEXCEPT {
  return on_object<channel_object>(channel, [&](channel_object& on) -> vmm_status {
    const call_on<driver_object> with(driver);
    if (!with) return fail_handle();
    if (block == nullptr) return fail_null();
    *block = nullptr;
    return borrow(on, *with, request, block);
  });
}

vmm_status vmm_share_apply(vmm_channel* channel, vmm_import* block) VMM_NOEXCEPT {
  return on_object<channel_object>(channel, [&](channel_object& on) {
    return on_object<import_object>(block,
                                    [&](import_object& changed) { return apply(on, changed); });
  });
}

vmm_status vmm_share_query_import(vmm_import* block, vmm_shared_info* info) VMM_NOEXCEPT {
  return on_object<import_object>(block, [&](import_object& on) {
    vmm_shared_info known{};
    known.base = pointer_to(on.block.data_address());
    return answer_info(on.block.block(), known, info);
  });
}

vmm_status vmm_share_give_back(vmm_channel* channel, vmm_import* block) VMM_NOEXCEPT {
  return on_object<channel_object>(channel, [&](channel_object& on) {
    return on_object<import_object>(block, [&](import_object& gone) {
      const std::uint64_t id = gone.block.id();
      const vmm::status back = on.channel.give_back(gone.block);
      if (gone.block.empty()) forget_updates(on, id);
      return answer(back);
    });
  });
}

vmm_status vmm_share_end_import(vmm_import* block) VMM_NOEXCEPT {
  return end_block<import_object>(block, [](import_object&) {});
}

}  // extern "C"
