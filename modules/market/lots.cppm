// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:lots - serves an owner's requests: collects lots, releases and creates handles, and
// recalls memory of tenants. Internal.
//
// A request that fits is built: its handles are granted at once and sent together. Free handles of
// its group go first, the largest that fit; new ones follow. Where the driver has no memory for
// them, free handles that do not fit become void. Several lots are collected at a time: none waits
// for the driver behind another that free handles serve. A void handle whose imports have not ended
// in time counts as used: its importers are overdue, and lots that counted on it wait again.
//
// L1  Check and claim are one step: what a request will have is charged when it is decided.
// L3  One create at a time. After a refused one the next follows a release, or a second.
// L4  Requests within a guarantee go first, then by class and age. One that fits passes those that
//     do not: their tenants may wait for its end. First it waits until idle memory was recalled for
//     them once more, and the longer the longer they have waited. A request within its guarantee
//     is passed by others of that kind only, and lots of others that are not collected yet are
//     given up for it.
//
// Thread safety: one thread at a time. Cost: O(requests * tenants^2 + handles) for serve().
export module vmm.market:lots;

import vmm.backend;
import vmm.std;
import :policy;
import :records;
import :state;
import :wire;

namespace vmm {

/// The rules by which an owner serves.
class market_lots {
 public:
  explicit market_lots(owner_state& state) noexcept : state_(state) {}

  /// Everything that the state allows now. Ends requests whose time has passed.
  void serve();
  /// Gives up the lot of a request, which waits again.
  void unbuild(request_record& request);
  /// A grant ends: others may have the handle, or it is void.
  void free(owned_handle& handle);
  /// A handle serves nothing further, and is released after its last import.
  void make_void(owned_handle& handle);
  /// An import has ended.
  void drop_import(owned_handle& handle, const tenant_record& of);
  /// Free handles serve nothing further.
  void release_free();
  /// Requests the end of the imports of void handles.
  void send_drops();
  /// The handles of a request that was granted, in messages.
  void send_grant(const tenant_record& to, std::uint64_t request);

 private:
  void grant_all();
  [[nodiscard]] bool expire();
  void retry_creates();
  void begin(request_record& request, const tenant_record& tenant, std::uint64_t room);
  void advance(request_record& request);
  [[nodiscard]] owned_handle* best_free(const request_record& request,
                                        const tenant_record& tenant) noexcept;
  [[nodiscard]] bool create(std::uint64_t size_bytes);
  void make_room(std::uint64_t over_bytes);
  void finish(request_record& request, tenant_record& tenant);
  [[nodiscard]] bool decide();
  void note_late();
  [[nodiscard]] bool may_give_itself(const request_record& request, const tenant_record& tenant);
  void recall(const tenant_record& borrower, std::uint64_t missing_bytes, recall_kind kind);
  void recall_above_limits();
  void ask(tenant_record& from, std::uint64_t bytes, bool only_idle);
  [[nodiscard]] bool end_deadlock();

  owner_state& state_;
};

}  // namespace vmm
