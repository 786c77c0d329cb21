// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

module vmm.optimizer;

import vmm.backend;
import vmm.physical;
import vmm.timeline;

namespace vmm {

remap_outcome remapper::map(const mapping_plan& plan) {
  check(!plan.pieces.empty(), "a mapping plan without pieces");
  for (const piece* part : plan.pieces) {
    if (status ordered = time_.order(plan.stream, part->last_use); !ordered) return {ordered, 0};
  }
  std::size_t mapped_count = 0;
  address at = plan.at;
  for (piece* part : plan.pieces) {
    const status mapped = driver_->map({at, part->size_bytes, part->handle, 0});
    if (!mapped) return undo(plan, mapped_count, mapped);
    memory_.add_mapping(*part);
    ++mapped_count;
    at = at + part->size_bytes;
  }
  const status allowed = driver_->set_access({plan.at, plan.size_bytes()}, grants_.all());
  if (!allowed) return undo(plan, mapped_count, allowed);
  return {status{}, mapped_count};
}

remap_outcome remapper::unmap(const mapping_plan& plan) {
  if (plan.pieces.empty()) return {status{}, 0};
  if (driver_->feature_set().spanning_unmap || plan.pieces.size() == 1) {
    const status undone = driver_->unmap({plan.at, plan.size_bytes()});
    if (!undone) return {undone, plan.pieces.size()};
    for (piece* part : plan.pieces) memory_.drop_mapping(*part);
    return {status{}, 0};
  }
  address end = plan.at + plan.size_bytes();
  for (std::size_t left_count = plan.pieces.size(); left_count > 0; --left_count) {
    piece& part = *plan.pieces[left_count - 1];
    const address_range range{address{end.value - part.size_bytes}, part.size_bytes};
    if (status undone = driver_->unmap(range); !undone) return {undone, left_count};
    memory_.drop_mapping(part);
    end = range.base;
  }
  return {status{}, 0};
}

remap_outcome remapper::detach(const mapping_plan& plan) {
  const remap_outcome undone = unmap(plan);
  if (undone.result) return undone;
  const remap_outcome restored = restore(plan, undone.mapped_count);
  return {undone.result, restored.mapped_count, !restored.result};
}

remap_outcome remapper::exchange(const mapping_plan& old_plan, const mapping_plan& new_plan) {
  const remap_outcome undone = detach(old_plan);
  if (undone.lost) return {contents_lost(), undone.mapped_count, true};
  if (!undone.result) return undone;
  const remap_outcome done = map(new_plan);
  if (done.result) return done;
  if (done.mapped_count > 0) return {contents_lost(), done.mapped_count, true, true};
  const remap_outcome restored = restore(old_plan, 0);
  if (restored.result) return {done.result, restored.mapped_count};
  return {contents_lost(), restored.mapped_count, true};
}

remap_outcome remapper::restore(const mapping_plan& plan, std::size_t standing_count) {
  if (standing_count == plan.pieces.size()) return {status{}, standing_count};
  const mapping_plan standing{plan.at, plan.pieces.first(standing_count), plan.stream};
  const mapping_plan missing{plan.at + standing.size_bytes(), plan.pieces.subspan(standing_count),
                             plan.stream};
  remap_outcome again = map(missing);
  for (int left = undo_attempts - 1; left > 0 && !again.result && again.mapped_count == 0; --left)
    again = map(missing);
  return {again.result, standing_count + again.mapped_count};
}

remap_outcome remapper::undo(const mapping_plan& plan, std::size_t mapped_count,
                             const status& cause) {
  std::size_t left_count = mapped_count;
  for (int attempt = 0; attempt < undo_attempts && left_count > 0; ++attempt) {
    left_count = unmap({plan.at, plan.pieces.first(left_count), plan.stream}).mapped_count;
  }
  return {cause, left_count};
}

}  // namespace vmm
