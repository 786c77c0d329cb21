// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :lot_table;

namespace vmm {

// ---- lots ----------------------------------------------------------------------------

physical_handle lot_table::add(std::unique_ptr<tenant_lot> made) {
  check(made->handle_count != 0, "lot_table I1: a lot is added that no handle refers to");
  const std::uint64_t token = token_bit | ++last_token_;
  made->token = token;
  lots_.emplace(token, std::move(made));
  return physical_handle{token};
}

tenant_lot* lot_table::find(physical_handle handle) noexcept {
  const auto found = lots_.find(static_cast<std::uint64_t>(handle));
  const bool is_live = found != lots_.end() && found->second->handle_count != 0;
  return is_live ? found->second.get() : nullptr;
}

void lot_table::drop_handle(tenant_lot& of, lent_list& gone) {
  check(of.handle_count != 0, "a lot has fewer handles than are released");
  --of.handle_count;
  end_if_unused(of, gone);
}

void lot_table::end_if_unused(tenant_lot& of, lent_list& gone) {
  if (of.handle_count != 0 || of.mapping_count != 0) return;
  for (const lot_part& each : of.parts) gone.push_back(each.lent);
  lots_.erase(of.token);
}

// ---- mappings ------------------------------------------------------------------------

lot_table::mapping_map::iterator lot_table::first_at(std::uint64_t address) noexcept {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return found;
  const auto before = std::prev(found);
  return address - before->first < before->second.size_bytes ? before : found;
}

tenant_lot* lot_table::find_mapped(address at) noexcept {
  const auto found = first_at(at.value);
  return found != mappings_.end() && found->first <= at.value ? found->second.of : nullptr;
}

bool lot_table::any_in(address_range range) noexcept {
  const auto found = first_at(range.base.value);
  return found != mappings_.end() && found->first < range.end().value;
}

bool lot_table::is_cut(address_range range) noexcept {
  for (const std::uint64_t at : {range.base.value, range.end().value}) {
    const auto found = first_at(at);
    if (found != mappings_.end() && found->first < at) return true;
  }
  return false;
}

void lot_table::map(address at, const lot_mapping& what) {
  check(!any_in({at, what.size_bytes}), "lot_table I2: a mapping overlaps another one");
  mappings_.emplace(at.value, what);
  ++what.of->mapping_count;
}

void lot_table::unmap(address_range range, lent_list& gone) {
  const std::uint64_t end = range.end().value;
  for (auto at = first_at(range.base.value); at != mappings_.end() && at->first < end;) {
    const std::uint64_t begin = at->first;
    const lot_mapping old = at->second;
    at = mappings_.erase(at);
    --old.of->mapping_count;
    if (begin < range.base.value) {
      mappings_[begin] = {range.base.value - begin, old.offset_bytes, old.of};
      ++old.of->mapping_count;
    }
    if (begin + old.size_bytes > end) {
      const std::uint64_t skipped = end - begin;
      at = mappings_
               .insert_or_assign(
                   end, lot_mapping{old.size_bytes - skipped, old.offset_bytes + skipped, old.of})
               .first;
      ++old.of->mapping_count;
    }
    end_if_unused(*old.of, gone);
  }
}

// ---- fills ---------------------------------------------------------------------------

status lot_fills::fill(address base, const tenant_lot& of) {
  if (inside_.feature_set().streams && !has_stream_) {
    const result<stream_handle> made = inside_.create_stream();
    if (!made) return made.error();
    stream_ = *made;
    has_stream_ = true;
  }
  for (const lot_part& each : of.parts) {
    if (!each.lent.must_clear) continue;
    const status filled =
        inside_.fill({{base + each.offset_bytes, each.lent.size_bytes}, 0, stream_});
    if (!filled) return filled;
  }
  return {};
}

status lot_fills::finish() noexcept {
  if (!has_stream_) return {};
  status finished = try_to_close([this] { return inside_.synchronize_stream(stream_); });
  if (!finished && inside_.synchronize_all()) finished = {};
  is_late_ = !finished || !late_.empty();
  return finished;
}

status lot_fills::provide_room() noexcept { return reserve_more(late_, 1); }

void lot_fills::add_late(address_range range) noexcept {
  check(late_.size() < late_.capacity(), "a late range has no room");
  late_.push_back(range);
  is_late_ = true;
}

std::vector<address_range> lot_fills::take_late() noexcept {
  is_late_ = false;
  return std::exchange(late_, {});
}

void lot_fills::end() noexcept {
  if (has_stream_) (void)inside_.destroy_stream(stream_);
}

}  // namespace vmm
