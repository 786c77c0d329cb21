// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

// ---- unmap_list ----------------------------------------------------------------------

void unmap_list::link_last(unmap_entry& range) noexcept {
  check(range.before == nullptr && range.after == nullptr, "a range that waits is linked twice");
  range.before = last_;
  (last_ != nullptr ? last_->after : first_) = &range;
  last_ = &range;
  range.is = unmap_entry::place::listed;
  check((range.before == nullptr) == (first_ == &range),
        "the last of several ranges is also the first");
}

// All of it once for every so many changes as there are ranges.
void unmap_list::audit() noexcept {
  if constexpr (check_level >= 3) {
    if (++unaudited_count_ < std::max<std::size_t>(64, count_)) return;
    unaudited_count_ = 0;
    paranoid_check([&] { return validate().has_value(); }, "a list of ranges to unmap is broken");
  }
}

void unmap_list::unlink(unmap_entry& range) noexcept {
  check(range.is == unmap_entry::place::listed, "a range is taken off a list that it is not on");
  check(count_ > asked_count_, "a range is taken off a list that has none");
  check((range.before == nullptr) == (first_ == &range) &&
            (range.after == nullptr) == (last_ == &range),
        "a range that waits is not where its neighbours say");
  (range.before != nullptr ? range.before->after : first_) = range.after;
  (range.after != nullptr ? range.after->before : last_) = range.before;
  range.before = range.after = nullptr;
}

void unmap_list::push(unmap_entry& range, std::uint64_t size_bytes) noexcept {
  check(range.is == unmap_entry::place::outside, "I1: a range waits twice to be unmapped");
  check(size_bytes > 0, "a range without addresses waits to be unmapped");
  range.waiting_bytes = size_bytes;
  link_last(range);
  ++count_;
  size_bytes_ += size_bytes;
  check(size_bytes_ >= size_bytes, "more bytes wait to be unmapped than can be counted");
  audit();
}

unmap_entry* unmap_list::take_oldest() noexcept {
  unmap_entry* const range = first_;
  if (range == nullptr) return nullptr;
  unlink(*range);
  check(range->waiting_bytes != 0, "a range waits that is not counted");
  range->is = unmap_entry::place::asked;
  ++asked_count_;
  check(asked_count_ <= count_, "more ranges are polled than wait");
  return range;
}

void unmap_list::put_back(unmap_entry& kept) noexcept {
  check(kept.is == unmap_entry::place::asked, "I3: a range is put back that was not taken");
  check(asked_count_ > 0, "a range is put back and none was taken");
  --asked_count_;
  link_last(kept);
  check(kept.waiting_bytes != 0, "a range that was put back is not counted");
  audit();
}

void unmap_list::remove(unmap_entry& unmapped) noexcept {
  check(unmapped.is != unmap_entry::place::outside, "a range leaves a list that it is not on");
  if (unmapped.is == unmap_entry::place::asked) {
    check(asked_count_ > 0, "a polled range was not taken");
    --asked_count_;
  } else {
    unlink(unmapped);
  }
  check(count_ > 0 && size_bytes_ >= unmapped.waiting_bytes, "more ranges leave a list than wait");
  --count_;
  size_bytes_ -= unmapped.waiting_bytes;
  unmapped.waiting_bytes = 0;
  unmapped.is = unmap_entry::place::outside;
  check(unmapped.before == nullptr && unmapped.after == nullptr,
        "a removed range is still in its list");
  check(count_ != 0 || (size_bytes_ == 0 && asked_count_ == 0 && first_ == nullptr),
        "an empty queue has a count");
  audit();
}

status unmap_list::validate() const noexcept {
  std::size_t seen_count = 0;
  std::uint64_t sum_bytes = 0;
  const unmap_entry* before = nullptr;
  for (const unmap_entry* range = first_; range != nullptr; range = range->after) {
    if (range->is != unmap_entry::place::listed || range->before != before)
      return refuse(errc::internal, "the list of ranges to unmap is broken");
    if (++seen_count > count_)
      return refuse(errc::internal, "the list of ranges to unmap is a ring");
    sum_bytes += range->waiting_bytes;
    before = range;
  }
  if (before != last_ || seen_count + asked_count_ != count_)
    return refuse(errc::internal, "I1: the count of ranges to unmap is wrong");
  if (sum_bytes > size_bytes_ || (asked_count_ == 0 && sum_bytes != size_bytes_))
    return refuse(errc::internal, "the bytes of ranges to unmap are wrong");
  return {};
}

// ---- unmap_queue ---------------------------------------------------------------------

void unmap_queue::push(unmap_entry& range, std::uint64_t size_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  list_.push(range, size_bytes);
}

unmap_entry* unmap_queue::take_oldest() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return list_.take_oldest();
}

void unmap_queue::finish(unmap_entry& asked, unmap_answer answer) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(asked.is == unmap_entry::place::asked,
        "I2: a result is recorded for a range that was not "
        "taken");
  if (answer == unmap_answer::refused) ++refused_count_;
  if (answer == unmap_answer::unmapped) {
    list_.remove(asked);
  } else {
    list_.put_back(asked);
  }
}

void unmap_queue::wait_for_asked() noexcept {
  const sync::lock_guard<sync::shared_mutex> no_query(asked_);
}

void unmap_queue::count_refusal() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  ++refused_count_;
}

std::size_t unmap_queue::size() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return list_.size();
}

std::uint64_t unmap_queue::size_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return list_.size_bytes();
}

std::uint64_t unmap_queue::refused_count() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return refused_count_;
}

status unmap_queue::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return list_.validate();
}

}  // namespace vmm
