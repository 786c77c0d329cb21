// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of program.hpp. It is compiled once, over a driver of any type.
#include <stdexcept>

#include "../support/byte_source.hpp"
#include "program.hpp"

import vmm.containers;
import vmm.manager;

namespace contents {
namespace {

constexpr std::size_t stream_count = 3;

/// The driver, the manager, the streams, and what the program has found.
struct bench {
  struct flight {  // work of the program on bytes [begin, end) of an object
    vmm::event_handle done{};
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    bool writes = false;
  };
  struct sink {  // a device read on its way
    vmm::event_handle done{};
    vmm::address at{};
    std::vector<std::uint16_t> expected;
  };
  static constexpr std::size_t sink_count = 8;
  static constexpr std::uint64_t sink_bytes = granule_bytes / sink_count;

  std::unique_ptr<manual_driver> made;
  vmm::driver_interface& driver = made->given();
  vmm::driver_interface& honest = made->honest();
  vmm::fake_driver* fake = made->fake();  // null on real memory
  std::unique_ptr<vmm::manager> managed;
  std::array<vmm::stream_handle, stream_count> streams{};
  std::array<sink, sink_count> sinks;
  vmm::address_range sink_range{};
  vmm::physical_handle sink_memory{};
  std::vector<vmm::event_handle> events;
  std::optional<vmm::fake::fault> planned;
  bool struck = false;
  std::string failure;

  explicit bench(std::unique_ptr<manual_driver> on) : made(std::move(on)) {
    for (std::size_t i = 1; i < stream_count; ++i) streams[i] = driver.create_stream().value();
    sink_range = driver.reserve({granule_bytes, 0, {}}).value();
    vmm::physical_request request;
    request.size_bytes = granule_bytes;
    request.where = driver.home();
    sink_memory = driver.create(request).value();
    require(driver.map({sink_range.base, granule_bytes, sink_memory, 0}).has_value(), "map");
    const vmm::access_grant grant{driver.home(), vmm::access::read_write};
    require(driver.set_access(sink_range, {&grant, 1}).has_value(), "set_access");
    for (std::size_t i = 0; i < sink_count; ++i) sinks[i].at = sink_range.base + i * sink_bytes;
  }

  void require(bool holds, const char* what) {
    if (!holds && failure.empty()) failure = what;
  }
  void order(std::size_t before, std::size_t after) {
    if (before == after) return;
    const vmm::event_handle point = mark(before);
    require(honest.wait_event(streams[after], point).has_value(), "wait_event");
  }
  [[nodiscard]] vmm::event_handle mark(std::size_t stream) {
    const vmm::event_handle point = honest.create_event().value();
    events.push_back(point);
    require(honest.record_event(point, streams[stream]).has_value(), "record_event");
    return point;
  }
  void wait(vmm::event_handle point) {
    require(honest.synchronize_event(point).has_value(), "synchronize_event");
  }
  /// Before the host touches [begin, end) of an object: the program's own work there.
  void wait(std::vector<flight>& flights, const flight& next) {
    std::erase_if(flights, [&](const flight& each) {
      if (each.begin >= next.end || next.begin >= each.end) return false;
      if (!each.writes && !next.writes) return false;
      wait(each.done);
      return true;
    });
  }

  /// Runs a call of the library under the planned fault, if any.
  template <class Operation>
  auto call(Operation&& operation) {
    struck = false;
    if (fake == nullptr) return operation();
    const std::uint64_t before = fake->faults_struck();
    if (planned) fake->fail(*planned);
    auto outcome = operation();
    fake->clear_faults();
    planned.reset();
    struck = fake->faults_struck() != before;
    return outcome;
  }
  template <class T>
  [[nodiscard]] bool succeeded(const vmm::result<T>& outcome) {
    if (!outcome && !struck && !vmm::is_shortage(outcome.error().code))
      require(false, "an error that nothing explains");
    return outcome.has_value();
  }

  void verify(sink& of) {
    std::vector<std::byte> seen(of.expected.size());
    require(driver.read(seen, of.at).has_value(), "read of the program's own memory");
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const bool is_right =
          of.expected[i] > 255 || of.expected[i] == std::to_integer<std::uint16_t>(seen[i]);
      require(is_right, "device work read what was not there");
    }
    of.expected.clear();
  }
  void verify_finished() {
    for (sink& each : sinks) {
      if (each.expected.empty()) continue;
      if (honest.query_event(each.done).value_or(false)) verify(each);
    }
  }
  [[nodiscard]] sink& free_sink(std::size_t index) {
    sink& taken = sinks[index % sink_count];
    if (taken.expected.empty()) return taken;
    wait(taken.done);
    verify(taken);
    return taken;
  }
  void check_misuse() {
    if (const char* const found = made->misuse()) require(false, found);
  }
  void close() {
    managed.reset();
    require(driver.unmap(sink_range).has_value(), "unmap");
    require(driver.release(sink_memory).has_value(), "release");
    require(driver.free_reservation(sink_range).has_value(), "free_reservation");
    for (const vmm::event_handle each : events)
      require(driver.destroy_event(each).has_value(), "destroy_event");
    for (std::size_t i = 1; i < stream_count; ++i)
      require(driver.destroy_stream(streams[i]).has_value(), "destroy_stream");
    require(made->is_empty(), "something is left at the end");
    check_misuse();
  }
};

constexpr std::uint16_t not_known = 256;

/// Bytes that device work and the host use: a block's, or those of a vector's elements.
class byte_object {
 public:
  using flight = bench::flight;

  explicit byte_object(bench& on, std::size_t home) : on_(on), home_(home) {}
  virtual ~byte_object() = default;
  byte_object(const byte_object&) = delete;
  byte_object& operator=(const byte_object&) = delete;

  virtual void act(byte_source& input) = 0;
  /// Compares all bytes, after whatever the host must wait for.
  virtual void check() = 0;
  [[nodiscard]] std::size_t home() const { return home_; }

 protected:
  struct part {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  [[nodiscard]] part some_part(byte_source& input, std::uint64_t size_max) const {
    const std::uint64_t count = model_.size();
    const std::uint64_t begin = count == 0 ? 0 : input.below(65536) % count;
    const std::uint64_t wished = 1 + input.below(65536) % std::max<std::uint64_t>(size_max, 1);
    return {begin, std::min(count, begin + wished)};
  }
  void compare(std::span<const std::byte> seen, std::uint64_t begin, const char* what) {
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const std::uint16_t known = model_[begin + i];
      on_.require(known == not_known || known == std::to_integer<std::uint16_t>(seen[i]), what);
    }
  }

  // A kernel that writes one byte's value, or one that reads.
  void use_on_device(byte_source& input, vmm::address base, bool writes) {
    if (model_.empty()) return;
    const std::uint32_t how = input.byte();
    const std::size_t stream = how % stream_count;
    const part where = some_part(input, writes ? 3 * granule_bytes : bench::sink_bytes);
    const std::uint64_t size_bytes = where.end - where.begin;
    on_.order(home_, stream);
    if (writes) {
      const auto value = static_cast<std::uint8_t>(how);
      const vmm::fill_request work{{base + where.begin, size_bytes}, value, on_.streams[stream]};
      on_.require(on_.driver.fill(work).has_value(), "fill of a live object");
      std::fill_n(model_.begin() + static_cast<std::ptrdiff_t>(where.begin), size_bytes, value);
    } else {
      auto& into = on_.free_sink(how / 8);
      const vmm::copy_request work{into.at, base + where.begin, size_bytes, on_.streams[stream]};
      // The slot was read by the host: what used it before has finished.
      on_.require(on_.driver.copy(work).has_value(), "copy of a live object");
      into.expected.assign(model_.begin() + static_cast<std::ptrdiff_t>(where.begin),
                           model_.begin() + static_cast<std::ptrdiff_t>(where.end));
      into.done = on_.mark(stream);
    }
    flights_.push_back({on_.mark(stream), where.begin, where.end, writes});
    on_.order(stream, home_);
  }
  void put(std::uint64_t begin, std::span<const std::byte> bytes) {
    if (model_.size() < begin + bytes.size()) model_.resize(begin + bytes.size(), not_known);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      model_[begin + i] = std::to_integer<std::uint16_t>(bytes[i]);
  }
  void wait_for_own(std::uint64_t begin, std::uint64_t end, bool writes) {
    on_.wait(flights_, {{}, begin, end, writes});
  }

  bench& on_;
  std::size_t home_;
  std::vector<std::uint16_t> model_;
  std::vector<flight> flights_;
};

[[nodiscard]] std::vector<std::byte> some_bytes(byte_source& input, std::uint64_t count) {
  std::vector<std::byte> bytes(count);
  const std::uint32_t seed = 1 + input.byte();
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(seed * 37 + i * 11);
  return bytes;
}

/// A block of the manager.
class managed_block : public byte_object {
 public:
  using byte_object::byte_object;

  [[nodiscard]] bool allocate(byte_source& input) {
    // Few sizes, so that one block's memory serves the next.
    const std::uint32_t shape = input.byte();
    const std::uint64_t size_bytes = (1 + shape % 3) * granule_bytes - (shape >= 192 ? 1000 : 0);
    const std::uint64_t growth_bytes = input.byte() % 4 == 0 ? 2 * granule_bytes : 0;
    const vmm::allocate_request request{size_bytes, growth_bytes, 0, on_.streams[home_]};
    const auto made = on_.call([&] { return on_.managed->allocate(request); });
    if (!on_.succeeded(made)) return false;
    base_ = *made;
    model_.assign(size_bytes, not_known);
    return true;
  }
  void act(byte_source& input) override {
    const std::uint32_t what = input.byte() % 8;
    if (given_up_) return;
    if (what < 2) return write(input);
    if (what == 2) return read(input);
    if (what < 5 && may_write()) return device_write(input);
    if (what < 7) return use_on_device(input, base_, false);
    resize(input);
  }
  void check() override {
    if (given_up_ || !synchronize()) return;
    wait_for_own(0, model_.size(), false);
    compare_all();
  }
  /// True when the block is gone.
  [[nodiscard]] bool free(byte_source& input) {
    const std::uint32_t how = input.byte();
    const std::size_t last = how / 4 % stream_count;
    vmm::status freed;
    if (how % 4 == 0) {
      wait_for_own(0, ~std::uint64_t{0}, true);
      freed = on_.call([&] { return on_.managed->free_idle(base_); });
    } else if (how % 4 == 1) {
      on_.order(home_, last);
      freed = on_.call([&] { return on_.managed->free(base_, on_.streams[last]); });
    } else {
      freed = on_.call([&] { return on_.managed->free(base_); });
    }
    if (!on_.succeeded(freed)) return false;
    leave_group();
    return true;
  }
  void copy_from(managed_block& source, byte_source& input) {
    if (!may_write() || source.given_up_ || source.model_.size() > model_.size()) return;
    const std::uint32_t how = input.byte();
    const auto mode = static_cast<vmm::copy_mode>(how % 3);
    const std::size_t stream = how / 4 % stream_count;
    if (mode == vmm::copy_mode::move && source.group_ != nullptr) return;
    wait_for_group(home_);
    on_.order(home_, stream);
    on_.order(source.home_, stream);
    const std::uint64_t size_bytes = source.model_.size();
    const vmm::copy_request request{base_, source.base_, size_bytes, on_.streams[stream]};
    const vmm::status copied = on_.call([&] { return on_.managed->copy(request, mode); });
    flights_.push_back({on_.mark(stream), 0, size_bytes, true});
    source.flights_.push_back({on_.mark(stream), 0, size_bytes, false});
    on_.order(stream, home_);
    on_.order(stream, source.home_);
    if (!on_.succeeded(copied)) {
      give_up_if_lost();
      source.give_up_if_lost();
      return;
    }
    std::copy(source.model_.begin(), source.model_.end(), model_.begin());
    if (mode == vmm::copy_mode::copy) return;
    std::fill(model_.begin() + static_cast<std::ptrdiff_t>(size_bytes), model_.end(), not_known);
    if (mode == vmm::copy_mode::move) {
      source.given_up_ = true;
    } else {
      join_group(source);
    }
  }

 private:
  // Blocks that may alias one memory: no write while two of them exist, nor before the work of the
  // freed ones has finished.
  struct group {
    std::size_t count = 0;
    std::vector<vmm::event_handle> left;
  };

  void join_group(managed_block& source) {
    leave_group();
    if (source.group_ == nullptr) {
      source.group_ = std::make_shared<group>();
      source.group_->count = 1;
    }
    group_ = source.group_;
    ++group_->count;
  }
  void leave_group() {
    if (group_ == nullptr) return;
    --group_->count;
    group_->left.push_back(on_.mark(home_));
    group_ = nullptr;
  }
  [[nodiscard]] bool may_write() const {
    return !given_up_ && (group_ == nullptr || group_->count == 1);
  }
  void wait_for_group(std::size_t stream) {
    if (group_ == nullptr) return;
    for (const vmm::event_handle each : group_->left)
      on_.require(on_.honest.wait_event(on_.streams[stream], each).has_value(), "wait_event");
  }
  [[nodiscard]] bool synchronize() {
    return on_.succeeded(on_.call([&] { return on_.managed->synchronize(base_); }));
  }
  void device_write(byte_source& input) {
    wait_for_group(home_);
    use_on_device(input, base_, true);
  }
  void write(byte_source& input) {
    if (!may_write()) return;
    const auto where = some_part(input, 2 * granule_bytes);
    const std::vector<std::byte> bytes = some_bytes(input, where.end - where.begin);
    if (!synchronize()) return;
    if (group_ != nullptr)
      for (const vmm::event_handle each : group_->left) on_.wait(each);
    wait_for_own(where.begin, where.end, true);
    on_.require(on_.driver.write(base_ + where.begin, bytes).has_value(), "write to a live block");
    put(where.begin, bytes);
  }
  void read(byte_source& input) {
    const auto where = some_part(input, 2 * granule_bytes);
    if (!synchronize()) return;
    wait_for_own(where.begin, where.end, false);
    std::vector<std::byte> seen(where.end - where.begin);
    on_.require(on_.driver.read(seen, base_ + where.begin).has_value(), "read of a live block");
    compare(seen, where.begin, "a block holds what was not written");
  }
  void compare_all() {
    std::vector<std::byte> seen(model_.size());
    on_.require(on_.driver.read(seen, base_).has_value(), "read of a live block");
    compare(seen, 0, "a block holds what was not written, at the end");
  }
  // A driver that would not put things back: the block can only be freed from now on.
  void give_up_if_lost() {
    const auto info = on_.managed->find(base_);
    on_.require(info.has_value(), "a live block is not found");
    if (info && info->sizes.user_bytes == 0) given_up_ = on_.struck;
  }
  void resize(byte_source& input) {
    const std::uint64_t size_bytes = 1 + input.below(6 * granule_bytes);
    const bool may_move = input.byte() % 4 != 0;
    const vmm::resize_request request{base_, size_bytes, 0, may_move};
    const auto at = on_.call([&] { return on_.managed->resize(request); });
    if (!at && !may_move && at.error().code == vmm::errc::out_of_addresses) return;
    if (!on_.succeeded(at)) return give_up_if_lost();
    base_ = *at;
    model_.resize(size_bytes, not_known);
  }

  vmm::address base_{};
  bool given_up_ = false;
  std::shared_ptr<group> group_;
};

/// A vector of elements that are bytes to the device.
template <class T>
class byte_vector : public byte_object {
  using vector = vmm::vector<T>;

 public:
  byte_vector(bench& on, std::size_t home, std::uint64_t growth_count)
      : byte_object(on, home),
        growth_count_(growth_count),
        tested_(*on.managed, growth_count, on.streams[home]) {}

  void act(byte_source& input) override {
    switch (input.byte() % 16) {
      case 0:
      case 1:
      case 2: return append(input, 2 * granule_bytes / sizeof(T));
      case 3: return append(input, 8);
      case 4:
      case 5: return resize(input.below(4 * granule_bytes / sizeof(T)));
      case 6: return resize(tested_.size() / 2);
      case 7: return read(input);
      case 8: return use_on_device(input, tested_.data_address(), false);
      case 9:
      case 10: return use_on_device(input, tested_.data_address(), true);
      case 11: return shrink();
      case 12: return reserve(input);
      case 13: return begin_again(input);
      case 14: return pass_on();
      default: return take_off();
    }
  }
  void check() override {
    on_.require(tested_.size() * sizeof(T) == model_.size(), "a vector of another size");
    if (tested_.empty()) return;
    wait_for_own(0, model_.size(), false);
    std::vector<T> seen(tested_.size());
    if (!on_.succeeded(on_.call([&] { return tested_.read(0, seen); }))) return;
    compare(std::as_bytes(std::span<const T>(seen)), 0, "a vector holds something else");
  }

 private:
  void append(byte_source& input, std::uint64_t count_max) {
    const std::uint64_t count = 1 + input.below(65536) % std::max<std::uint64_t>(count_max, 1);
    const std::vector<std::byte> bytes = some_bytes(input, count * sizeof(T));
    std::vector<T> elements(count);
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span<T>(elements)).begin());
    wait_for_own(model_.size(), model_.size() + bytes.size(), true);
    const auto done = on_.call([&] { return tested_.append(elements); });
    if (on_.succeeded(done)) put(model_.size(), bytes);
  }
  void resize(std::uint64_t count) {
    const std::uint64_t size_bytes = count * sizeof(T);
    wait_for_own(model_.size(), std::max<std::uint64_t>(model_.size(), size_bytes), true);
    const auto done = on_.call([&] { return tested_.resize(count); });
    if (!on_.succeeded(done)) return;
    const T fresh{};
    const auto bytes = std::as_bytes(std::span<const T>(&fresh, 1));
    while (model_.size() < size_bytes) put(model_.size(), bytes);
    model_.resize(size_bytes);
  }
  void read(byte_source& input) {
    const std::uint64_t first = input.below(65536) % (tested_.size() + 1);
    const std::uint64_t left = tested_.size() - first;
    std::vector<T> seen(std::min<std::uint64_t>(left, 1 + input.below(4096)));
    wait_for_own(first * sizeof(T), (first + seen.size()) * sizeof(T), false);
    if (!on_.succeeded(on_.call([&] { return tested_.read(first, seen); }))) return;
    compare(std::as_bytes(std::span<const T>(seen)), first * sizeof(T),
            "a vector reads as something else");
  }
  void reserve(byte_source& input) {
    const std::uint64_t count = input.below(6 * granule_bytes / sizeof(T));
    (void)on_.succeeded(on_.call([&] { return tested_.reserve(count); }));
  }
  void shrink() {
    (void)on_.succeeded(on_.call([&] { return tested_.shrink_to_fit(); }));
  }
  void take_off() {
    if (tested_.empty()) return;
    tested_.pop_back();
    model_.resize(model_.size() - sizeof(T));
  }
  void pass_on() {
    vector other = std::move(tested_);
    on_.require(tested_.empty() && !tested_.data_address(),
                "a vector that was moved from is empty");
    tested_ = std::move(other);
  }
  void begin_again(byte_source& input) {
    home_ = input.byte() % stream_count;
    tested_ = vector(*on_.managed, growth_count_, on_.streams[home_]);
    model_.clear();
    flights_.clear();
  }

  std::uint64_t growth_count_;
  vector tested_;
};

struct large {
  std::uint8_t bytes[3000] = {};
};
struct nonzero {
  std::uint8_t bytes[24] = {165, 1, 2};
};

/// Elements that the host builds in place. `copies_until_throw` counts down to a throw.
struct countdown {
  static inline int copies_until_throw = -1;
  static void copy() {
    if (copies_until_throw >= 0 && copies_until_throw-- == 0) throw std::runtime_error("planned");
  }
};
template <std::size_t PaddingBytes>
struct element {
  explicit element(int v = 0) : value(v) {}
  ~element() { self = nullptr; }
  int value;
  const element* self = this;
  char padding[PaddingBytes] = {};
};
struct movable : element<48> {
  using element::element;
  movable(movable&& other) noexcept : element(std::exchange(other.value, -1)) {}
};
struct copied : element<5000> {
  using element::element;
  copied(const copied& other) noexcept : element(other.value) {}
};
struct throwing : element<240> {
  using element::element;
  throwing(const throwing& other) : element(other.value) { countdown::copy(); }
};

/// A vector of elements that know where they are, on memory that the host reaches.
template <class T>
class object_vector : public byte_object {
 public:
  object_vector(bench& on, std::size_t home)
      : byte_object(on, home), tested_(*on.managed, 0, on.streams[home]) {}

  void act(byte_source& input) override {
    const std::uint32_t what = input.byte();
    if (what >= 128) countdown::copies_until_throw = static_cast<int>(what % 64);
    try {
      step(what % 8, input);
    } catch (const std::runtime_error&) {
      // As before the call: check() says so.
    }
    countdown::copies_until_throw = -1;
    check();
  }
  void check() override {
    on_.require(tested_.size() == values_.size(), "a vector of another size");
    if (!on_.failure.empty() || values_.empty()) return;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const T& found = tested_[i];
      on_.require(found.self == &found && found.value == values_[i],
                  "an element was overwritten or moved without its constructor");
    }
  }

 private:
  void step(std::uint32_t what, byte_source& input) {
    if (what < 3) return emplace(1 + input.byte() % 64);
    if (what == 3) return append(input);
    if (what == 4) return resize(input.byte() * granule_bytes / 64 / sizeof(T));
    if (what == 5) return resize(values_.size() / 2);
    if (what == 6) {
      (void)on_.succeeded(tested_.shrink_to_fit());
    } else {
      vmm::vector<T> other = std::move(tested_);
      tested_ = std::move(other);
    }
  }
  void emplace(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const int value = ++next_;
      if (!on_.succeeded(tested_.emplace_back(value))) return;
      values_.push_back(value);
    }
  }
  void append(byte_source& input) {
    if constexpr (std::is_copy_constructible_v<T>) {
      const std::size_t own_count = std::min<std::size_t>(values_.size(), 1 + input.byte() % 32);
      if (own_count == 0) return;
      const std::span<const T> own(tested_.data(), own_count);
      if (!on_.succeeded(tested_.append(own))) return;
      const std::vector<int> first(values_.begin(),
                                   values_.begin() + static_cast<std::ptrdiff_t>(own_count));
      values_.insert(values_.end(), first.begin(), first.end());
    } else {
      emplace(1 + input.byte() % 64);
    }
  }
  void resize(std::size_t count) {
    if (on_.succeeded(tested_.resize(count))) values_.resize(count, 0);
  }

  vmm::vector<T> tested_;
  std::vector<int> values_;
  int next_ = 0;
};

/// One program.
class contents_program {
 public:
  [[nodiscard]] static std::string run(const program_options& options,
                                       std::span<const std::uint8_t> bytes) {
    byte_source input(bytes);
    contents_program program(options, input);
    program.go(input);
    return program.on_.failure;
  }

 private:
  static constexpr std::size_t steps_max = 96;

  contents_program(const program_options& tested, byte_source& input)
      : options_(tested),
        on_(tested.make(input.byte() % 4 == 0 ? vmm::alias_level::none
                                              : vmm::alias_level::coherent)) {
    vmm::manager_options options;
    const std::uint32_t rules = input.byte();
    if (rules % 3 == 1) options.policy = vmm::manager_policy::keep_mapped();
    if (rules % 3 == 2) {
      options.policy = vmm::manager_policy::virtual_caching();
      options.policy.chunk_bytes = 2 * granule_bytes;
    }
    // Few objects leave streams without any, and their memory is served again sooner.
    blocks_max_ = (rules & 32) != 0 ? 2 : 5;
    vectors_max_ = (rules & 32) != 0 ? 1 : 4;
    if ((rules & 64) != 0) options.reservation_bytes = 32 * granule_bytes;
    if ((rules & 128) != 0) options.budget_bytes = 48 * granule_bytes;
    on_.managed = std::make_unique<vmm::manager>(on_.made->reference(), options);
  }

  void go(byte_source& input) {
    for (std::size_t i = 0; i < steps_max && !input.empty() && on_.failure.empty(); ++i) {
      step(input);
      on_.verify_finished();
      on_.check_misuse();
    }
    on_.planned.reset();
    for (const auto& each : vectors_) each->check();
    for (const auto& each : blocks_) each->check();
    on_.require(on_.made->finish_all().has_value(), "finish_all");
    for (auto& each : on_.sinks)
      if (!each.expected.empty()) on_.verify(each);
    for (const auto& each : vectors_) each->check();
    for (const auto& each : blocks_) each->check();
    on_.check_misuse();
    on_.require(on_.managed->validate().has_value(), "the manager's validators");
    vectors_.clear();
    blocks_.clear();  // the manager frees them
    on_.close();
  }

  void step(byte_source& input) {
    const std::uint32_t what = input.byte() % 16;
    if (what < 2) return add_block(input);
    if (what == 2) return add_vector(input);
    if (what == 3) return free_block(input);
    if (what == 4) return remove_vector(input);
    if (what == 5) return copy(input);
    if (what == 6) return trim(input);
    if (what == 7) return plan_fault(input);
    if (what < 10) return finish_some(input);
    if (what < 13) return act_on_any(vectors_, input);
    act_on_any(blocks_, input);
  }
  static void act_on_any(const auto& objects, byte_source& input) {
    if (!objects.empty()) objects[input.byte() % objects.size()]->act(input);
  }
  void add_block(byte_source& input) {
    if (blocks_.size() >= blocks_max_) return;
    auto made = std::make_unique<managed_block>(on_, input.byte() % stream_count);
    if (made->allocate(input)) blocks_.push_back(std::move(made));
  }
  void free_block(byte_source& input) {
    if (blocks_.empty()) return;
    const std::size_t index = input.byte() % blocks_.size();
    if (blocks_[index]->free(input))
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  template <class T>
  [[nodiscard]] std::unique_ptr<byte_object> bytes(std::size_t home, std::uint64_t growth_count) {
    return std::make_unique<byte_vector<T>>(on_, home, growth_count);
  }
  template <class T>
  [[nodiscard]] std::unique_ptr<byte_object> objects(std::size_t home) {
    return std::make_unique<object_vector<T>>(on_, home);
  }
  void add_vector(byte_source& input) {
    if (vectors_.size() >= vectors_max_) return;
    const std::uint32_t what = input.byte();
    const std::size_t home = what / 8 % stream_count;
    const std::uint64_t growth_count = what >= 128 ? 4 * granule_bytes : 0;
    if (on_.fake == nullptr) {
      if (what % 8 == 5) return vectors_.push_back(objects<movable>(home));
      if (what % 8 == 6) return vectors_.push_back(objects<copied>(home));
      if (what % 8 == 7) return vectors_.push_back(objects<throwing>(home));
    }
    if (what % 4 == 0) return vectors_.push_back(bytes<std::uint8_t>(home, growth_count));
    if (what % 4 == 1) return vectors_.push_back(bytes<std::uint64_t>(home, growth_count / 8));
    if (what % 4 == 2) return vectors_.push_back(bytes<large>(home, growth_count / 3000));
    vectors_.push_back(bytes<nonzero>(home, growth_count / 24));
  }
  void remove_vector(byte_source& input) {
    if (vectors_.empty()) return;
    const std::size_t index = input.byte() % vectors_.size();
    vectors_.erase(vectors_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void trim(byte_source& input) {
    const std::uint32_t how = input.byte();
    if (how < 96) return (void)on_.managed->trim(how % 8 * granule_bytes);
    replace_stream(1 + how % (stream_count - 1), input);
  }
  // Another stream in the place of one, whose objects go first; its work may be unfinished.
  void replace_stream(std::size_t index, byte_source& input) {
    const auto has_it = [&](const auto& each) { return each->home() == index; };
    std::erase_if(vectors_, has_it);
    std::erase_if(blocks_, [&](const auto& each) { return has_it(each) && each->free(input); });
    if (std::any_of(blocks_.begin(), blocks_.end(), has_it)) return;
    if (!options_.skips_forget) on_.managed->forget(on_.streams[index]);
    on_.require(on_.driver.destroy_stream(on_.streams[index]).has_value(), "destroy_stream");
    on_.streams[index] = on_.driver.create_stream().value();
  }
  void copy(byte_source& input) {
    if (blocks_.size() < 2) return;
    const std::size_t target = input.byte() % blocks_.size();
    const std::size_t source = input.byte() % blocks_.size();
    if (target != source) blocks_[target]->copy_from(*blocks_[source], input);
  }
  // Only on the fake, and no fault that loses contents where memory is mapped once.
  void plan_fault(byte_source& input) {
    using vmm::call;
    static constexpr std::array kinds{
        call::create,     call::fill,        call::record_event, call::synchronize_event,
        call::wait_event, call::query_event, call::write,        call::create_event,
        call::map,        call::set_access,  call::unmap,
    };
    const std::uint32_t which = input.byte();
    const std::uint32_t nth = 1 + input.byte() % 4;
    if (on_.fake == nullptr) return;
    const bool is_safe = on_.driver.feature_set().alias != vmm::alias_level::none;
    const std::size_t count = is_safe ? kinds.size() : 8;
    const call where = kinds[which % count];
    const auto errors = on_.fake->possible_errors(where);
    if (errors.empty()) return;
    on_.planned = vmm::fake::fault{where, nth, which >= 128, errors[which / 16 % errors.size()]};
  }
  void finish_some(byte_source& input) {
    for (std::uint32_t left = 1 + input.byte() % 4; left > 0; --left) {
      const std::size_t count = on_.made->ready_count();
      if (count == 0) return;
      on_.require(on_.made->finish_ready(input.byte() % count).has_value(), "finish_ready");
    }
  }

  const program_options& options_;
  bench on_;
  std::size_t blocks_max_ = 0;
  std::size_t vectors_max_ = 0;
  std::vector<std::unique_ptr<managed_block>> blocks_;
  std::vector<std::unique_ptr<byte_object>> vectors_;
};

}  // namespace

std::string run_program(const program_options& options, std::span<const std::uint8_t> bytes) {
  return contents_program::run(options, bytes);
}

}  // namespace contents
