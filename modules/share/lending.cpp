// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls of a channel that wait for the peer: lend, take back, borrow and give back blocks.
module vmm.share;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;

namespace vmm {
namespace {

constexpr const char* too_many_loans = "too many blocks are lent";

}  // namespace

// ---- exporting -----------------------------------------------------------------------

std::size_t share_channel::lent_count() const noexcept {
  check(loans_.size() <= share_loans_max, too_many_loans);
  return loans_.size();
}

void share_channel::end_loan(std::uint64_t id) noexcept {
  check(id != 0, "a loan ends that has no number");
  std::erase_if(loans_, [id](const loan& each) { return each.id == id; });
}

status share_channel::send_block(share_message& message, const exported_block& block) noexcept {
  check(message.block.id != 0, "a block is sent that has no number");
  std::array<shared_handle, share_parts_max> handles{};
  const std::size_t count = descriptor_count_of(message);
  if (count != 0) {
    if (const status made = block.export_handles(handles); !made) return made;
  }
  return transmit(message, std::span(handles).first(count));
}

result<std::uint64_t> share_channel::send(const exported_block& block) noexcept {
  if (const status ready = usable(); !ready) return ready.error();
  result<share_description> description = block.describe();
  if (!description) return description.error();
  try {
    loans_.reserve(loans_.size() + 1);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, no_list_memory);
  }
  const share_session before = session_;
  result<share_message> message = session_.offer(*description);
  if (!message) return message.error();
  const std::uint64_t id = description->id;
  check(session_.lent(id) == loan_state::offered, "a block is offered and not lent");
  check(id != 0, "a block is lent without a number");
  loans_.push_back({id, block.state_});
  check(loans_.size() <= share_loans_max, too_many_loans);
  if (const status sent = send_block(*message, block); !sent) {
    end_loan(id);
    if (descriptor_ >= 0) session_ = before;
    return sent.error();
  }
  return id;
}

result<std::uint64_t> share_channel::lend(const exported_block& block) noexcept {
  const result<std::uint64_t> id = send(block);
  return id ? await_reply(*id) : id;
}

result<std::uint64_t> share_channel::await_reply(std::uint64_t id) noexcept {
  constexpr std::array replies{share_event::what::accepted, share_event::what::refused,
                               share_event::what::released};
  const result<share_event> answer = wait_for(id, replies);
  // The caller of lend() has no number of the offer.
  if (!answer && usable() && withdraw(id)) return offer_withdrawn();
  if (!answer) return answer.error();
  check(answer->id == id, "the reply names another block");
  if (answer->kind == share_event::what::accepted) return id;
  return refuse(answer->kind == share_event::what::refused ? answer->reason : errc::unavailable,
                "the peer refused the block");
}

result<std::uint64_t> share_channel::update(std::uint64_t id) noexcept {
  if (const status ready = usable(); !ready) return ready.error();
  const auto found =
      std::find_if(loans_.begin(), loans_.end(), [id](const loan& each) { return each.id == id; });
  if (found == loans_.end()) return refuse(errc::invalid_argument, "no lent block has this number");
  check(found->block != nullptr, "a loan has no block");
  const exported_block block(found->block);
  result<share_description> description = block.describe();
  if (!description) return description.error();
  description->id = id;
  const share_session before = session_;
  result<share_message> message = session_.update(*description);
  if (!message) return message.error();
  check(session_.lent(id) == loan_state::accepted, "a block changes that the peer does not use");
  if (const status sent = send_block(*message, block); !sent) {
    if (descriptor_ >= 0) session_ = before;
    return sent.error();
  }
  check(description->epoch != 0, "an update has the epoch of the offer");
  return description->epoch;
}

status share_channel::withdraw(std::uint64_t id) noexcept {
  return say([&] { return session_.withdraw(id); });
}

status share_channel::take_back(std::uint64_t id) noexcept {
  if (const status ready = usable(); !ready) return ready;
  constexpr std::array replies{share_event::what::released, share_event::what::refused};
  const bool has_come_back = std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& each) {
    return each.id == id && (each.kind == replies[0] || each.kind == replies[1]);
  });
  if (!has_come_back && session_.lent(id) != loan_state::withdrawn) {
    if (const status asked = withdraw(id); !asked) return asked;
  }
  const result<share_event> answer = wait_for(id, replies);
  check(!answer || session_.lent(id) == loan_state::none, "a returned block is still lent");
  return answer ? status{} : status{answer.error()};
}

// ---- importing -----------------------------------------------------------------------

status share_channel::accept(std::uint64_t id) noexcept {
  if (const status ready = usable(); !ready) return ready;
  const auto seen = std::find_if(shown_.begin(), shown_.end(),
                                 [id](const shown_block& each) { return each.id == id; });
  if (id == 0 || seen == shown_.end())
    return refuse(errc::invalid_argument, "no such block was offered on this connection");
  return say([&] { return session_.accept(*seen); });
}

status share_channel::refuse_offer(std::uint64_t id, errc reason) noexcept {
  return say([&] { return session_.refuse_offer(id, reason); });
}

result<imported_block> share_channel::borrow(driver_ref driver,
                                             const import_options& options) noexcept {
  if (const status ready = usable(); !ready) return ready.error();
  constexpr std::array offers{share_event::what::offered};
  result<share_event> offer = wait_for(0, offers);
  if (!offer) return offer.error();
  result<imported_block> made = imported_block::import_block(driver, offer->block, options);
  status done = made ? status{} : status{made.error()};
  if (done) {
    if (const result<address> mapped = made->map(); !mapped) done = mapped.error();
  }
  if (!done) {
    (void)refuse_offer(offer->id, done.error().code);
    return done.error();
  }
  check(made->id() == offer->id && made->data_address(),
        "the borrowed block is not the offered one");
  if (const status accepted = accept(offer->id); !accepted) return accepted.error();
  return made;
}

status share_channel::give_back(imported_block& block) noexcept {
  if (!made_in_.is_here()) return refuse_forked();
  const std::uint64_t id = block.id();
  if (block.channel_ != 0 && block.channel_ != number_)
    return refuse(errc::invalid_argument, "the block came by another connection");
  if (const status released = block.release(); !released) return released;
  check(block.empty(), "a block is given back and has memory");
  return say([&] { return session_.release(id); });
}

}  // namespace vmm
