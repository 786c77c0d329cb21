// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

#include "system.hpp"

module vmm.share;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;

namespace vmm {
namespace {

constexpr const char* more_descriptors = "a block has more descriptors than parts";

error disagrees(const char* detail) noexcept {
  check(detail != nullptr, "a peer is refused without a text");
  return {errc::foreign_error, call::import_handle, EPROTO, "EPROTO", detail};
}

}  // namespace

// ---- received_block ------------------------------------------------------------------

result<received_block> received_block::of(const share_description& block,
                                          std::span<const shared_handle> handles) noexcept {
  if (const status fits = check_share_description(block); !fits) return fits.error();
  received_block made;
  made.block_ = block;
  if (block.kind == share_kind::fabric && handles.empty()) return made;
  if (handles.size() != block.part_count)
    return refuse(errc::invalid_argument, "a block's numbers of handles and parts differ");
  for (const shared_handle& each : handles) {
    if (each.kind != block.kind)
      return refuse(errc::invalid_argument, "a handle is of another kind than its block");
    made.descriptors_[made.descriptor_count_++] = each.descriptor;
  }
  check(made.descriptor_count_ == block.part_count && !made.owns_,
        "a block lacks its handles, or owns the caller's");
  return made;
}

received_block::received_block(received_block&& other) noexcept
    : block_(other.block_),
      channel_(other.channel_),
      descriptors_(other.descriptors_),
      descriptor_count_(std::exchange(other.descriptor_count_, 0)),
      owns_(std::exchange(other.owns_, false)) {
  check(descriptor_count_ <= share_parts_max, more_descriptors);
}

received_block& received_block::operator=(received_block&& other) noexcept {
  if (this == &other) return *this;
  close();
  check(descriptor_count_ == 0 && !owns_, "descriptors without an owner are left");
  block_ = other.block_;
  channel_ = other.channel_;
  descriptors_ = other.descriptors_;
  descriptor_count_ = std::exchange(other.descriptor_count_, 0);
  owns_ = std::exchange(other.owns_, false);
  return *this;
}

void received_block::close() noexcept {
  check(descriptor_count_ <= share_parts_max, more_descriptors);
  for (std::size_t i = 0; owns_ && i < descriptor_count_; ++i)
    unix_os::close(static_cast<int>(descriptors_[i]));
  descriptor_count_ = 0;
  owns_ = false;
}

shared_handle received_block::handle(std::size_t index) const noexcept {
  check(index < block_.part_count, "the index of a handle exceeds the block's count");
  check(!owns_ || block_.kind != share_kind::posix_fd || index < descriptor_count_,
        "a part came without its descriptor");
  shared_handle made;
  made.kind = block_.kind;
  made.size_bytes = block_.part_bytes[index];
  if (block_.kind == share_kind::fabric) {
    std::copy(block_.fabric[index].begin(), block_.fabric[index].end(), made.fabric);
  } else if (index < descriptor_count_) {
    made.descriptor = descriptors_[index];
  }
  return made;
}

// ---- imported_block ------------------------------------------------------------------

namespace {

// Compares the driver's properties of a handle with the peer's description. CUDA does not report
// the kind of an imported handle; the import by this kind proves it.
result<location> check_granted(driver_interface& driver, physical_handle handle,
                               const share_description& block,
                               const import_options& options) noexcept {
  const result<physical_properties> granted = driver.get_properties(handle);
  if (!granted) return granted.error();
  if (granted->where.kind != block.where.kind)
    return disagrees("the memory is not at the location that the peer named");
  if (!options.any_device && granted->where != block.where) {
    return disagrees(
        "the memory is not on the device that the peer named; if the processes number devices "
        "differently, set import_options::any_device");
  }
  return granted->where;
}

status check_granularity(driver_interface& driver, const share_description& block,
                         location where) noexcept {
  physical_request like{.size_bytes = block.size_bytes, .where = where};
  like.shareable = block.kind;
  const result<granularity> unit = driver.query_granularity(like);
  if (!unit) return unit.error();
  check(block.part_count != 0 && block.part_count <= share_parts_max,
        "a block is imported that has no parts, or too many");
  for (std::size_t i = 0; i < block.part_count; ++i) {
    if (block.part_bytes[i] % unit->minimum_bytes != 0)
      return disagrees("a part is not whole granules of this driver");
  }
  return {};
}

status import_parts(mapped_parts& to, const received_block& from, const import_options& options,
                    location& where) noexcept {
  check(to.parts().empty() && !to.is_mapped(), "a block is imported into another");
  const share_description& block = from.block();
  driver_interface& driver = to.driver();
  for (std::size_t i = 0; i < block.part_count; ++i) {
    const result<physical_handle> made = driver.import_handle(from.handle(i));
    if (!made) return made.error();
    if (status added = to.add(*made, block.part_bytes[i]); !added) {
      (void)driver.release(*made);
      return added;
    }
    const result<location> granted = check_granted(driver, *made, block, options);
    if (!granted) return granted.error();
    if (i != 0 && *granted != where) return disagrees("the parts of a block lie at two places");
    where = *granted;
  }
  check(to.parts().size() == block.part_count, "a part of a block was not imported");
  return check_granularity(driver, block, where);
}

}  // namespace

result<imported_block> imported_block::import_block(driver_ref driver, const received_block& from,
                                                    const import_options& options) noexcept {
  if (const status fits = check_share_description(from.block()); !fits) return fits.error();
  imported_block made;
  made.parts_.reset(new (std::nothrow) mapped_parts(driver));
  if (made.parts_ == nullptr) return refuse(errc::out_of_host_memory, no_block_memory);
  if (const status done = import_parts(*made.parts_, from, options, made.where_); !done)
    return done.error();
  check(made.parts_->size_bytes() == from.block().size_bytes, "a block is imported in part");
  check(!made.parts_->is_mapped(), "an import does not map its memory");
  made.block_ = from.block();
  made.channel_ = from.channel_;
  made.options_ = options;
  return made;
}

address imported_block::data_address() const noexcept {
  check(
      parts_ == nullptr || !parts_->is_mapped() || parts_->where().size_bytes == block_.size_bytes,
      "a block is mapped in part");
  return parts_ != nullptr && parts_->is_mapped() ? parts_->where().base : address{};
}

result<address> imported_block::map() noexcept {
  if (parts_ == nullptr) return refuse(errc::invalid_argument, "an empty block is not mapped");
  if (!parts_->is_here()) return refuse_forked(call::map);
  if (parts_->is_mapped()) return parts_->where().base;
  if (const status mapped = parts_->map(where_, options_.rights); !mapped) return mapped.error();
  check(parts_->where().size_bytes == block_.size_bytes, "a block is mapped in part");
  return parts_->where().base;
}

status imported_block::set_access(address_range range,
                                  std::span<const access_grant> grants) noexcept {
  if (parts_ == nullptr || !parts_->is_mapped() || range.empty() ||
      !parts_->where().contains(range))
    return refuse(errc::invalid_argument, "the range is not one of this block's, or not mapped");
  if (!parts_->is_here()) return refuse_forked(call::set_access);
  return parts_->driver().set_access(range, grants);
}

result<address> imported_block::update(const received_block& from) noexcept {
  if (parts_ == nullptr) return refuse(errc::invalid_argument, "an empty block is not updated");
  if (!parts_->is_here()) return refuse_forked(call::import_handle);
  if (from.block().id != block_.id || from.channel_ != channel_)
    return refuse(errc::invalid_argument, "the update is another block's");
  result<imported_block> next = import_block(parts_->reference(), from, options_);
  if (!next) return next.error();
  if (parts_->is_mapped()) {
    const result<address> at = next->map();
    if (!at) return at.error();
  }
  check(next->parts_->is_mapped() == parts_->is_mapped(),
        "an update and its block are not both mapped");
  *this = std::move(*next);  // the former mapping ends here
  check(parts_ != nullptr && size_bytes() == from.block().size_bytes, "an update is not taken");
  return data_address();
}

status imported_block::release() noexcept {
  if (parts_ == nullptr) return {};
  if (!parts_->is_here()) return refuse_forked(call::release);
  if (status closed = parts_->close(); !closed) return closed;
  check(parts_->parts().empty() && !parts_->is_mapped(), "a block was released in part");
  parts_.reset();
  return {};
}

}  // namespace vmm
