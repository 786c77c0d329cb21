// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the adaptors forward every call and every result unchanged, and have their own effects:
// any_backend refuses calls that its driver lacks, observers see each call once, a planned failure
// does not reach the driver.
// Method: a driver that records its calls and returns values made from them; one with all the
// refinements and one with none. Each of the calls goes through each adaptor.
#include "../support/test.h"

import vmm.backend;
import vmm.observe;

namespace {

using vmm::access, vmm::address, vmm::address_range, vmm::call, vmm::errc, vmm::status;

struct notes {
  std::vector<call> asked;
  std::vector<std::uint64_t> values;
  bool failing = false;
  bool destroyed = false;
  int contexts = 0;  // pushed and not popped
};

// Records the call and its arguments; returns `value`, or the same error every time.
class bare_driver {
 public:
  explicit bare_driver(notes& record) : record_(&record) {}
  bare_driver(bare_driver&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  ~bare_driver() {
    if (record_ != nullptr) record_->destroyed = true;
  }

  std::string_view name() const { return "bare"; }
  const vmm::features& feature_set() const { return can_; }
  vmm::location home() const { return vmm::device(3); }
  vmm::result<vmm::granularity> query_granularity(const vmm::physical_request& r) {
    return note<vmm::granularity>(call::query_granularity,
                                  {.minimum_bytes = 4, .recommended_bytes = 8}, r.size_bytes);
  }
  vmm::result<vmm::memory_info> query_memory(vmm::location grantee) {
    return note<vmm::memory_info>(call::memory_info, {5, 6}, number(grantee));
  }
  vmm::result<address_range> reserve(const vmm::reserve_request& r) {
    return note<address_range>(call::reserve, {{0x1000}, r.size_bytes}, r.size_bytes,
                               r.alignment_bytes, r.hint.value);
  }
  status free_reservation(address_range range) {
    return note(call::free_reservation, range.base.value, range.size_bytes);
  }
  vmm::result<vmm::physical_handle> create(const vmm::physical_request& r) {
    return note(call::create, vmm::physical_handle{77}, r.size_bytes, number(r.where));
  }
  status release(vmm::physical_handle h) { return note(call::release, number(h)); }
  status map(const vmm::map_request& r) {
    return note(call::map, r.at.value, r.size_bytes, number(r.memory), r.offset_bytes);
  }
  status unmap(address_range range) {
    return note(call::unmap, range.base.value, range.size_bytes);
  }
  status set_access(address_range range, std::span<const vmm::access_grant> grants) {
    return note(call::set_access, range.base.value, range.size_bytes, grants.size(),
                number(grants.front().rights));
  }
  vmm::result<access> get_access(address at, vmm::location grantee) {
    return note(call::get_access, access::read, at.value, number(grantee));
  }

 protected:
  static std::uint64_t number(std::uint64_t value) { return value; }
  static std::uint64_t number(vmm::location grantee) {
    return static_cast<std::uint64_t>(grantee.kind) * 100 +
           static_cast<std::uint64_t>(grantee.ordinal);
  }
  template <class Enum>
    requires std::is_enum_v<Enum>
  static std::uint64_t number(Enum value) {
    return static_cast<std::uint64_t>(value);
  }

  template <class Answer, class... Values>
    requires(!std::is_integral_v<Answer>)
  vmm::result<Answer> note(call kind, Answer answer, Values... values) {
    if (const status written = note(kind, static_cast<std::uint64_t>(values)...); !written)
      return written.error();
    return answer;
  }
  template <class... Values>
  status note(call kind, Values... values) {
    record_->asked.push_back(kind);
    (record_->values.push_back(values), ...);
    if (record_->failing)
      return vmm::error{errc::foreign_error, kind, 719, "LAUNCH_FAILED",
                        "an earlier kernel failed"};
    return {};
  }

  notes* record_;

 private:
  vmm::features can_{.host_accessible = true, .max_mapping_count = 12};
};

struct full_driver : bare_driver {
  using bare_driver::bare_driver;

  vmm::result<vmm::stream_handle> create_stream() {
    return note(call::create_stream, vmm::stream_handle{21});
  }
  status destroy_stream(vmm::stream_handle s) { return note(call::destroy_stream, number(s)); }
  status synchronize_stream(vmm::stream_handle s) {
    return note(call::synchronize_stream, number(s));
  }
  vmm::result<vmm::event_handle> create_event() {
    return note(call::create_event, vmm::event_handle{31});
  }
  status destroy_event(vmm::event_handle e) { return note(call::destroy_event, number(e)); }
  status record_event(vmm::event_handle e, vmm::stream_handle s) {
    return note(call::record_event, number(e), number(s));
  }
  status record_all(vmm::event_handle e) { return note(call::record_all, number(e)); }
  status synchronize_all() { return note(call::synchronize_all); }
  vmm::result<bool> query_event(vmm::event_handle e) {
    if (const status written = note(call::query_event, number(e)); !written) return written.error();
    return true;
  }
  status wait_event(vmm::stream_handle s, vmm::event_handle e) {
    return note(call::wait_event, number(s), number(e));
  }
  status synchronize_event(vmm::event_handle e) { return note(call::synchronize_event, number(e)); }
  vmm::result<vmm::capture_info> query_capture(vmm::stream_handle s) {
    return note(call::query_capture, vmm::capture_info{vmm::capture_state::active, 45}, number(s));
  }
  vmm::capture_mode exchange_capture_mode(vmm::capture_mode) { return vmm::capture_mode::relaxed; }
  std::uint64_t stream_identity(vmm::stream_handle s) noexcept { return number(s) + 1000; }
  bool is_uncaptured(vmm::stream_handle s) noexcept { return number(s) == 160; }
  bool push_context() {
    ++record_->contexts;
    return true;
  }
  void pop_context() { --record_->contexts; }
  status copy(const vmm::copy_request& r) {
    return note(call::copy, r.target.value, r.source.value, r.size_bytes, number(r.stream));
  }
  status fill(const vmm::fill_request& r) {
    return note(call::fill, r.target.base.value, r.target.size_bytes, std::uint64_t{r.value},
                number(r.stream));
  }
  status write(address at, std::span<const std::byte> source) {
    return note(call::write, at.value, source.size());
  }
  status read(std::span<std::byte> target, address at) {
    return note(call::read, target.size(), at.value);
  }
  vmm::result<vmm::physical_handle> retain(address at) {
    return note(call::retain, vmm::physical_handle{78}, at.value);
  }
  vmm::result<vmm::physical_properties> get_properties(vmm::physical_handle h) {
    return note(call::get_properties, vmm::physical_properties{.where = vmm::host_node(1)},
                number(h));
  }
  vmm::result<vmm::shared_handle> export_handle(vmm::physical_handle h, vmm::share_kind kind) {
    return note(call::export_handle, vmm::shared_handle{.kind = kind, .descriptor = 9}, number(h),
                number(kind));
  }
  vmm::result<vmm::physical_handle> import_handle(const vmm::shared_handle& s) {
    return note(call::import_handle, vmm::physical_handle{79}, s.size_bytes);
  }
  vmm::result<vmm::granularity> query_multicast_granularity(const vmm::multicast_request& r) {
    return note(call::query_granularity, vmm::granularity{16, 32}, r.size_bytes, r.device_count);
  }
  vmm::result<vmm::multicast_handle> create_multicast(const vmm::multicast_request& r) {
    return note(call::create_multicast, vmm::multicast_handle{41}, r.size_bytes);
  }
  status add_multicast_device(vmm::multicast_handle team, vmm::location grantee) {
    return note(call::add_multicast_device, number(team), number(grantee));
  }
  status bind_multicast(const vmm::multicast_binding& b) {
    return note(call::bind_multicast, number(b.team));
  }
  status bind_multicast_address(const vmm::multicast_address_binding& b) {
    return note(call::bind_multicast, number(b.team), b.memory.base.value, b.memory.size_bytes);
  }
  vmm::result<vmm::peer_info> query_peer(const vmm::peer_query& q) {
    return note(call::query_peer, vmm::peer_info{vmm::link_kind::peer, true, 46}, number(q.from),
                number(q.to));
  }
  vmm::result<vmm::dma_buf> export_range(address_range r) {
    return note(call::export_range, vmm::dma_buf{47, r.size_bytes}, r.base.value, r.size_bytes);
  }
  status unbind_multicast(const vmm::multicast_binding& b) {
    return note(call::unbind_multicast, number(b.team));
  }
};

template <class B>
concept every_refinement =
    vmm::stream_backend<B> && vmm::copy_backend<B> && vmm::retain_backend<B> &&
    vmm::property_backend<B> && vmm::sharing_backend<B> && vmm::multicast_backend<B> &&
    vmm::context_backend<B> && vmm::all_work_backend<B> && vmm::all_wait_backend<B> &&
    vmm::quick_capture_backend<B> && vmm::stream_identity_backend<B> && vmm::peer_backend<B> &&
    vmm::range_export_backend<B>;
template <class B>
concept no_refinement =
    vmm::backend<B> && !vmm::stream_backend<B> && !vmm::copy_backend<B> &&
    !vmm::retain_backend<B> && !vmm::property_backend<B> && !vmm::sharing_backend<B> &&
    !vmm::multicast_backend<B> && !vmm::context_backend<B> && !vmm::all_work_backend<B> &&
    !vmm::peer_backend<B> && !vmm::range_export_backend<B>;

static_assert(no_refinement<bare_driver>);
static_assert(every_refinement<full_driver>);
static_assert(every_refinement<vmm::any_backend>);
static_assert(every_refinement<vmm::observed_backend<full_driver, vmm::call_counter>>);
static_assert(!std::is_copy_constructible_v<vmm::any_backend>);
static_assert(!std::is_abstract_v<vmm::forwarding_driver>, "a call is not passed on");

// The results of the calls: one number for each result, or the error's own number.
using answers = std::vector<std::uint64_t>;

struct answer_list {
  answers given;

  void add(const status& s) {
    given.push_back(s ? 1 : static_cast<std::uint64_t>(s.error().native));
  }
  template <class T, class Number>
  void add(const vmm::result<T>& r, Number number) {
    given.push_back(r ? static_cast<std::uint64_t>(number(*r))
                      : static_cast<std::uint64_t>(r.error().native));
  }
};

constexpr auto as_number = [](auto value) { return value; };

// Every call once, each argument with a value of its own.
template <class B>
void call_base(B& b, answer_list& list) {
  list.add(b.query_granularity({.size_bytes = 101}),
           [](auto g) { return g.minimum_bytes * 100 + g.recommended_bytes; });
  list.add(b.query_memory(vmm::device(102)),
           [](auto m) { return m.free_bytes * 100 + m.total_bytes; });
  list.add(b.reserve({103, 104, {105}}), [](auto r) { return r.base.value + r.size_bytes; });
  list.add(b.free_reservation({{106}, 107}));
  list.add(b.create({.size_bytes = 108, .where = vmm::host_node(2)}), as_number);
  list.add(b.release(vmm::physical_handle{109}));
  list.add(b.map({{110}, 111, vmm::physical_handle{112}, 113}));
  list.add(b.unmap({{114}, 115}));
  const vmm::access_grant grant{vmm::host(), access::read};
  list.add(b.set_access({{116}, 117}, {&grant, 1}));
  list.add(b.get_access({118}, vmm::device(119)), as_number);
}

template <class B>
void call_refinements(B& b, answer_list& list) {
  list.add(b.create_stream(), as_number);
  list.add(b.destroy_stream(vmm::stream_handle{120}));
  list.add(b.synchronize_stream(vmm::stream_handle{121}));
  list.add(b.create_event(), as_number);
  list.add(b.destroy_event(vmm::event_handle{122}));
  list.add(b.record_event(vmm::event_handle{123}, vmm::stream_handle{124}));
  list.add(b.record_all(vmm::event_handle{151}));
  list.add(b.synchronize_all());
  list.add(b.query_event(vmm::event_handle{125}), as_number);
  list.add(b.wait_event(vmm::stream_handle{126}, vmm::event_handle{127}));
  list.add(b.synchronize_event(vmm::event_handle{128}));
  list.add(b.query_capture(vmm::stream_handle{150}), [](auto c) { return c.id; });
  std::byte bytes[3] = {};
  list.add(b.copy({{129}, {130}, 131, vmm::stream_handle{132}}));
  list.add(b.fill({{{133}, 134}, 135, vmm::stream_handle{136}}));
  list.add(b.write({137}, bytes));
  list.add(b.read(bytes, {138}));
  list.add(b.retain({139}), as_number);
  list.add(b.get_properties(vmm::physical_handle{140}), [](auto p) { return p.where.ordinal; });
  list.add(b.export_handle(vmm::physical_handle{141}, vmm::share_kind::fabric),
           [](auto s) { return s.descriptor; });
  list.add(b.import_handle({.size_bytes = 142}), as_number);
  list.add(b.query_multicast_granularity({143, 144}), [](auto g) { return g.recommended_bytes; });
  list.add(b.create_multicast({.size_bytes = 145}), as_number);
  list.add(b.add_multicast_device(vmm::multicast_handle{146}, vmm::device(147)));
  list.add(b.bind_multicast({.team = vmm::multicast_handle{148}}));
  list.add(b.bind_multicast_address({vmm::multicast_handle{152}, {{153}, 154}, 155}));
  list.add(b.unbind_multicast({.team = vmm::multicast_handle{149}}));
  list.add(b.query_peer({vmm::device(156), vmm::device(157)}), [](auto p) { return p.rank; });
  list.add(b.export_range({{158}, 159}), [](auto d) { return d.descriptor; });
  list.given.push_back(b.stream_identity(vmm::stream_handle{161}));
  list.given.push_back(static_cast<std::uint64_t>(b.exchange_capture_mode({})));
}

template <class B>
answers call_everything(B& b) {
  answer_list list;
  call_base(b, list);
  call_refinements(b, list);
  return list.given;
}

// The adaptor makes the same driver calls as a direct caller, and returns the same.
template <class B>
void expect_transparent(B& adapted, notes& record) {
  for (const bool failing : {false, true}) {
    notes plain_record;
    full_driver plain(plain_record);
    plain_record.failing = record.failing = failing;
    record.asked.clear();
    record.values.clear();
    EXPECT_EQ(call_everything(adapted), call_everything(plain));
    EXPECT_EQ(record.asked, plain_record.asked);
    EXPECT_EQ(record.values, plain_record.values);
  }
  EXPECT_EQ(adapted.name(), "bare");
  EXPECT_EQ(adapted.home(), vmm::device(3));
  EXPECT_TRUE(adapted.feature_set().host_accessible);
  EXPECT_EQ(adapted.feature_set().max_mapping_count, 12u);
}

TEST(AnyBackend, IsTransparent) {
  notes record;
  auto any = *vmm::any_backend::own(full_driver(record));
  expect_transparent(any, record);
}

TEST(AnyBackend, RefusesWhatItsDriverLacks) {
  notes record;
  auto any = *vmm::any_backend::own(bare_driver(record));
  answer_list list;
  call_base(any, list);
  EXPECT_EQ(record.asked.size(), 10u);
  record.asked.clear();
  call_refinements(any, list);
  EXPECT_TRUE(record.asked.empty());
  const auto refused = any.wait_event(vmm::stream_handle{1}, vmm::event_handle{2});
  EXPECT_EQ(refused.error().code, errc::not_supported);
  EXPECT_EQ(refused.error().where, call::wait_event);
  EXPECT_EQ(any.import_handle({}).error().code, errc::not_supported);
  EXPECT_EQ(any.create_multicast({}).error().where, call::create_multicast);
}

TEST(AnyBackend, OwnsItsDriver) {
  notes record;
  {
    auto any = *vmm::any_backend::own(full_driver(record));
    EXPECT_NE(any.get_if<full_driver>(), nullptr);
    EXPECT_EQ(any.get_if<bare_driver>(), nullptr);
    vmm::any_backend moved = std::move(any);
    EXPECT_TRUE(moved.unmap({}));
    EXPECT_FALSE(record.destroyed);
  }
  EXPECT_TRUE(record.destroyed);
}

struct fixed_driver : full_driver {
  using full_driver::full_driver;
  fixed_driver(const fixed_driver&) = delete;
};
static_assert(!std::is_move_constructible_v<fixed_driver>);

TEST(AnyBackend, OwnsADriverThatCannotMove) {
  notes record;
  {
    auto any = *vmm::any_backend::own(std::make_unique<fixed_driver>(record));
    EXPECT_NE(any.get_if<fixed_driver>(), nullptr);
    expect_transparent(any, record);
  }
  EXPECT_TRUE(record.destroyed);
  EXPECT_EQ(vmm::any_backend::own(std::unique_ptr<fixed_driver>{}).error().code,
            errc::out_of_host_memory);
}

TEST(ForwardingDriver, IsTransparent) {
  notes record;
  auto any = *vmm::any_backend::own(full_driver(record));
  vmm::forwarding_driver forwarding(any);
  expect_transparent(forwarding, record);
  EXPECT_TRUE(forwarding.is_uncaptured(vmm::stream_handle{160}));
  EXPECT_FALSE(forwarding.is_uncaptured(vmm::stream_handle{161}));
  EXPECT_TRUE(forwarding.push_context());
  EXPECT_EQ(record.contexts, 1);
  forwarding.pop_context();
  EXPECT_EQ(record.contexts, 0);
}

TEST(CallCounter, IsTransparentAndCountsByKind) {
  notes record;
  auto counter = std::make_shared<vmm::call_counter>();
  vmm::observed_backend observed(full_driver(record), counter);
  expect_transparent(observed, record);
  for (std::size_t i = 1; i < vmm::call_count; ++i) {
    const call kind = static_cast<call>(i);
    // Of memory and of multicast objects; by a handle and by an address.
    const bool has_two = kind == call::query_granularity || kind == call::bind_multicast;
    const std::uint64_t times = has_two ? 2 : 1;
    EXPECT_EQ(counter->calls(kind), 2 * times) << vmm::name_of(kind);
    EXPECT_EQ(counter->failures(kind), times) << vmm::name_of(kind);
  }
  EXPECT_EQ(counter->calls(), 2 * (vmm::call_count + 1)) << "two kinds have two, and none has none";
  EXPECT_EQ(counter->failures(), vmm::call_count + 1);
  counter->reset();
  EXPECT_EQ(counter->calls() + counter->failures(), 0u);
}

TEST(Observed, CanStandInsideAnAnyBackend) {
  notes record;
  auto counter = std::make_shared<vmm::call_counter>();
  auto any = *vmm::any_backend::own(vmm::observed_backend(full_driver(record), counter));
  expect_transparent(any, record);
  auto again = *vmm::any_backend::own(vmm::observed_backend(std::move(any), counter));
  counter->reset();
  EXPECT_TRUE(again.unmap({}).has_value() || record.failing);
  EXPECT_EQ(counter->calls(call::unmap), 2u) << "seen by both";
}

// A tool's calls go between the two, whatever stands before the driver.
TEST(Adaptors, PassAContextOn) {
  notes record;
  auto counter = std::make_shared<vmm::call_counter>();
  auto any = *vmm::any_backend::own(vmm::observed_backend(full_driver(record), counter));
  EXPECT_TRUE(any.push_context());
  EXPECT_EQ(record.contexts, 1);
  any.pop_context();
  EXPECT_EQ(record.contexts, 0);
  EXPECT_EQ(counter->calls(), 0u) << "no call on a device";
  auto bare = *vmm::any_backend::own(bare_driver(record));
  EXPECT_FALSE(bare.push_context()) << "it has none";
  bare.pop_context();
  EXPECT_EQ(record.contexts, 0);
}

std::vector<std::string> lines_of(std::FILE* file) {
  std::rewind(file);
  std::vector<std::string> lines(1);
  for (int each = std::fgetc(file); each != EOF; each = std::fgetc(file)) {
    if (each == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += static_cast<char>(each);
    }
  }
  lines.pop_back();
  return lines;
}

TEST(CallLog, IsTransparent) {
  notes record;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> sink{std::tmpfile(), &std::fclose};
  vmm::observed_backend observed(full_driver(record), std::make_shared<vmm::call_log>(*sink));
  expect_transparent(observed, record);
  EXPECT_EQ(lines_of(sink.get()).size(), 2 * (vmm::call_count + 1)) << "a line a call";
}

TEST(CallLog, ShowsArgumentsAndResults) {
  notes record;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> sink{std::tmpfile(), &std::fclose};
  vmm::observed_backend observed(full_driver(record), std::make_shared<vmm::call_log>(*sink));
  (void)observed.reserve({.size_bytes = 4096, .alignment_bytes = 64});
  (void)observed.create({.size_bytes = 8192, .where = vmm::device(2)});
  (void)observed.map({{0xABC000}, 4096, vmm::physical_handle{77}, 2048});
  const vmm::access_grant grant{vmm::device(2), access::read_write};
  (void)observed.set_access({{0xABC000}, 4096}, {&grant, 1});
  (void)observed.copy({{0x10}, {0x20}, 30, vmm::stream_handle{4}});
  (void)observed.wait_event(vmm::stream_handle{4}, vmm::event_handle{5});
  record.failing = true;
  (void)observed.get_access({0xABC000}, vmm::host());
  const std::vector<std::string> expected{
      "1 reserve size=4096 limit=64 -> ok at=0x1000 size=4096",
      "2 create size=8192 where=device:2 -> ok handle=0x4d",
      "3 map at=0xabc000 size=4096 offset=2048 handle=0x4d -> ok",
      "4 set_access at=0xabc000 size=4096 where=device:2 rights=read_write value=1 -> ok",
      "5 copy at=0x10 source=0x20 size=30 stream=0x4 -> ok",
      "6 wait_event stream=0x4 event=0x5 -> ok",
      "7 get_access at=0xabc000 where=host:0 -> foreign error (LAUNCH_FAILED 719): an earlier "
      "kernel failed"};
  EXPECT_EQ(lines_of(sink.get()), expected);
}

TEST(CallLog, OpensItsDestination) {
  const auto path = std::filesystem::path(testing::TempDir()) /
                    ("vmm_call_log_test" + std::to_string(::getpid()));
  std::filesystem::remove(path);
  for (int i = 0; i < 2; ++i) {
    auto log = *vmm::call_log::open(path.string());
    log->after({.kind = call::unmap});
  }
  std::ifstream file(path);
  std::string first;
  std::string second;
  std::getline(file, first);
  std::getline(file, second);
  EXPECT_EQ(first, "1 unmap -> ok");
  EXPECT_EQ(second, "1 unmap -> ok") << "a second log is added behind the first";
  std::filesystem::remove(path);
  EXPECT_TRUE(vmm::call_log::open("stderr"));
  EXPECT_EQ(vmm::call_log::open("/nowhere/at/all").error().code, errc::bad_option);
}

vmm::error failure_of(errc code) { return {code, call::none, 2, "PLANNED", "planned"}; }

TEST(FailPlan, FailsTheChosenCallsBeforeTheyReachTheDriver) {
  notes record;
  auto plan = std::make_shared<vmm::fail_plan>();
  vmm::observed_backend observed(full_driver(record), plan);
  expect_transparent(observed, record);
  record.failing = false;
  record.asked.clear();
  plan->add(
      {.kind = call::map, .nth = 2, .times = 2, .failure = failure_of(errc::out_of_mappings)});
  std::string outcome;
  for (int i = 0; i < 5; ++i) {
    const auto mapped = observed.map({});
    outcome += mapped ? '.' : 'x';
    if (!mapped) {
      EXPECT_EQ(mapped.error().code, errc::out_of_mappings);
      EXPECT_EQ(mapped.error().where, call::map);
      EXPECT_STREQ(mapped.error().native_name, "PLANNED");
    }
    EXPECT_TRUE(observed.unmap({}));
  }
  EXPECT_EQ(outcome, ".xx..");
  EXPECT_EQ(plan->struck(), 2u);
  EXPECT_EQ(record.asked.size(), 8u);
}

TEST(FailPlan, ForeverAnyKindAndClear) {
  notes record;
  auto plan = std::make_shared<vmm::fail_plan>();
  auto counter = std::make_shared<vmm::call_counter>();
  vmm::observed_backend observed(vmm::observed_backend(full_driver(record), plan), counter);
  plan->add({.nth = 3, .times = 0, .failure = failure_of(errc::device_lost)});
  plan->add({.kind = call::unmap, .failure = failure_of(errc::internal)});
  EXPECT_EQ(observed.unmap({}).error().code, errc::internal);
  EXPECT_TRUE(observed.unmap({}));
  EXPECT_EQ(observed.unmap({}).error().code, errc::device_lost);
  EXPECT_EQ(observed.create({}).error().code, errc::device_lost);
  plan->clear();
  EXPECT_TRUE(observed.create({}));
  EXPECT_EQ(plan->struck(), 3u);
  EXPECT_EQ(counter->calls(), 5u);
  EXPECT_EQ(counter->failures(), 3u);
}

TEST(FailPlanDeathTest, RefusesPlansThatMeanNothing) {
  vmm::fail_plan plan;
  EXPECT_DEATH(plan.add({.kind = call::map}), "needs a code");
  EXPECT_DEATH(plan.add({.nth = 0, .failure = failure_of(errc::internal)}), "counts calls from 1");
}

}  // namespace
