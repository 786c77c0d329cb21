// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - bytes: copy and fill in stream order, write and read from the host, tags.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :contents;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;
using fake::misuse_kind;
using fake::refusal;
using mapped_part = fake::fake_state::mapped_part;

namespace {

constexpr std::uint64_t every_byte = 0x0101'0101'0101'0101U;

// Queues a copy or a fill whose ranges are mapped and usable.
status submit(fake_state& s, call where, stream_handle stream, fake::work&& what) {
  check(!what.reads.empty() || !what.writes.empty(), "work touches nothing");
  const auto which = s.queue_of(stream);
  if (!which || (!s.emulated.can.streams && *which != 0)) {
    s.misused(misuse_kind::stale_handle, where, {}, static_cast<std::uint64_t>(stream),
              "not a live stream");
    return s.refuse_as(where, refusal::bad_object, "not a live stream");
  }
  const auto ignore = [](const mapped_part&, address) {};
  what.device = s.emulated.home;
  const bool is_copy = what.what == fake::work::kind::copy;
  const fake_state::user reader{what.device, access::read, is_copy};
  const fake_state::user writer{what.device, access::read_write, is_copy};
  std::uint64_t traffic = 0;
  for (const address_range& range : what.reads) {
    if (const auto fine = s.each_part(where, range, reader, ignore); !fine) return fine;
    traffic += range.size_bytes;
  }
  for (const address_range& range : what.writes) {
    if (const auto fine = s.each_part(where, range, writer, ignore); !fine) return fine;
    traffic += range.size_bytes;
  }
  check(s.emulated.costs.traffic_bytes_per_us > 0, "a device moves nothing");
  const double us = static_cast<double>(traffic) / s.emulated.costs.traffic_bytes_per_us;
  what.duration_ns = static_cast<std::uint64_t>(us * 1000.0 + 0.5);
  if (fake::stream_record* const captured = s.captured(stream))
    return s.capture_work(where, *captured, std::move(what));
  s.enqueue(*which, std::move(what));
  s.charge_us(s.emulated.costs.submit_us);
  if (!s.emulated.can.streams) s.wait_for({*which, s.queues[*which].tail_seq});
  return {};
}

// All of a range must be usable before the first byte of it is used.
status check_range(fake_state& s, call where, address_range range, access need) {
  return s.each_part(where, range, need, [&](const mapped_part& part, address at) {
    s.check_host_use(where, part, at, need == access::read_write);
  });
}

}  // namespace

status fake_driver::copy(const copy_request& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::copy, [&]() -> status {
    fake::work what{};
    what.what = fake::work::kind::copy;
    what.name = "copy";
    what.reads.push_back({request.source, request.size_bytes});
    what.writes.push_back({request.target, request.size_bytes});
    return submit(s, call::copy, request.stream, std::move(what));
  });
}

status fake_driver::fill(const fill_request& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::fill, [&]() -> status {
    fake::work what{};
    what.what = fake::work::kind::fill;
    what.name = "fill";
    what.has_tag = true;
    what.tag = request.value * every_byte;
    what.writes.push_back(request.target);
    return submit(s, call::fill, request.stream, std::move(what));
  });
}

status fake_driver::write(address at, std::span<const std::byte> source) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::write, [&]() -> status {
    const address_range range{at, source.size()};
    const auto fine = check_range(s, call::write, range, access::read_write);
    if (!fine) return fine;
    s.charge_us(s.emulated.costs.submit_us +
                static_cast<double>(source.size()) / s.emulated.costs.host_bytes_per_us);
    return s.each_part(
        call::write, range, access::read_write, [&](const mapped_part& part, address to) {
          const auto bytes = source.subspan(to - at, part.size_bytes);
          s.machine->each_target(
              *part.from, part.offset, part.size_bytes,
              [&](fake::contents& into, std::uint64_t offset, std::uint64_t skipped,
                  std::uint64_t size) { into.write(offset, bytes.subspan(skipped, size)); });
        });
  });
}

status fake_driver::read(std::span<std::byte> target, address at) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::read, [&]() -> status {
    const address_range range{at, target.size()};
    const auto fine = check_range(s, call::read, range, access::read);
    if (!fine) return fine;
    s.charge_us(s.emulated.costs.submit_us +
                static_cast<double>(target.size()) / s.emulated.costs.host_bytes_per_us);
    return s.each_part(call::read, range, access::read, [&](const mapped_part& part, address from) {
      part.from->data.read(part.offset, target.subspan(from - at, part.size_bytes));
    });
  });
}

status fake_driver::write_tag(address_range range, std::uint64_t tag) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    const auto fine = check_range(s, call::none, range, access::read_write);
    if (!fine) return fine;
    return s.each_part(
        call::none, range, access::read_write, [&](const mapped_part& part, address) {
          s.machine->each_target(*part.from, part.offset, part.size_bytes,
                                 [&](fake::contents& into, std::uint64_t offset, std::uint64_t,
                                     std::uint64_t size) { into.fill(offset, size, tag); });
        });
  });
}

result<std::uint64_t> fake_driver::read_tag(address at) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<std::uint64_t>([&]() -> result<std::uint64_t> {
    const auto fine = check_range(s, call::none, {at, 1}, access::read);
    if (!fine) return fine.error();
    const auto part = s.use(call::none, {at, 1}, {s.emulated.home, access::read});
    return part->from->data.word(part->offset);
  });
}

}  // namespace vmm
