// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.std - the names of the standard library that vmm uses, read once.
//
// A unit that includes standard headers carries their declarations, and importing several such
// units makes the compiler merge the copies, which takes most of a build. Units import this module
// instead. A name that is missing here is added here. The `import std` of C++23 takes its place
// where the toolchains of docs/support.md have it.
//
// Macros do not pass: a unit that needs errno, stderr, PRIu64 or va_start includes that C header.
// Not for users: nothing re-exports it.
module;
#include <algorithm>
#include <any>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <compare>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <ostream>
#include <ratio>
#include <set>
#include <shared_mutex>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

export module vmm.std;

export using ::operator new;
export using ::operator delete;
export using ::operator new[];
export using ::operator delete[];

export namespace std {

using std::abort;
using std::accumulate;
using std::addressof;
using std::adjacent_find;
using std::align_val_t;
using std::all_of;
using std::allocator;
using std::any_of;
using std::array;
using std::as_bytes;
using std::as_const;
using std::as_writable_bytes;
using std::atexit;
using std::atomic;
using std::atomic_flag;
using std::atomic_thread_fence;
using std::bad_alloc;
using std::basic_string;
using std::basic_string_view;
using std::begin;
using std::bit_cast;
using std::bit_ceil;
using std::bit_floor;
using std::bit_width;
using std::byte;
using std::calloc;
using std::ceil;
using std::char_traits;
using std::clamp;
using std::common_comparison_category_t;
using std::condition_variable;
using std::conditional_t;
using std::construct_at;
using std::convertible_to;
using std::copy;
using std::copy_n;
using std::count;
using std::count_if;
using std::countl_one;
using std::countl_zero;
using std::countr_zero;
using std::cref;
using std::data;
using std::decay_t;
using std::declval;
using std::default_delete;
using std::deque;
using std::derived_from;
using std::destroy;
using std::destroy_at;
using std::enable_if_t;
using std::end;
using std::endian;
using std::equal;
using std::equal_to;
using std::erase;
using std::erase_if;
using std::errc;
using std::exception;
using std::exchange;
using std::fill;
using std::fill_n;
using std::find;
using std::find_if;
using std::floor;
using std::for_each;
using std::forward;
using std::forward_as_tuple;
using std::forward_iterator_tag;
using std::free;
using std::from_chars;
using std::function;
using std::get;
using std::get_if;
using std::getenv;
using std::greater;
using std::has_single_bit;
using std::hash;
using std::ignore;
using std::in_place;
using std::initializer_list;
using std::input_iterator_tag;
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::intptr_t;
using std::iota;
using std::is_copy_constructible_v;
using std::is_nothrow_destructible_v;
using std::is_nothrow_move_assignable_v;
using std::is_nothrow_move_constructible_v;
using std::is_pointer_v;
using std::is_same_v;
using std::is_trivially_copyable_v;
using std::is_trivially_destructible_v;
using std::isfinite;
using std::isnan;
using std::iterator_traits;
using std::launder;
using std::length_error;
using std::less;
using std::llround;
using std::lock_guard;
using std::log2;
using std::lower_bound;
using std::make_exception_ptr;
using std::make_pair;
using std::make_shared;
using std::make_unique;
using std::make_unique_for_overwrite;
using std::malloc;
using std::map;
using std::max;
using std::max_align_t;
using std::max_element;
using std::memcmp;
using std::memcpy;
using std::memmove;
using std::memory_order;
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_consume;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;
using std::memset;
using std::micro;
using std::min;
using std::min_element;
using std::minmax;
using std::monostate;
using std::move;
using std::move_backward;
using std::move_if_noexcept;
using std::multimap;
using std::mutex;
using std::nano;
using std::next;
using std::none_of;
using std::nothrow;
using std::nullopt;
using std::nullptr_t;
using std::numeric_limits;
using std::optional;
using std::ostream;
using std::pair;
using std::partial_ordering;
using std::partition;
using std::pop_heap;
using std::popcount;
using std::pow;
using std::prev;
using std::ptrdiff_t;
using std::push_heap;
using std::realloc;
using std::recursive_mutex;
using std::ref;
using std::remove_const_t;
using std::remove_cvref_t;
using std::remove_reference_t;
using std::replace_if;
using std::reverse;
using std::rotate;
using std::rotl;
using std::rotr;
using std::round;
using std::runtime_error;
using std::same_as;
using std::shared_lock;
using std::shared_mutex;
using std::shared_ptr;
using std::size;
using std::size_t;
using std::sort;
using std::source_location;
using std::span;
using std::ssize;
using std::stable_sort;
using std::strcmp;
using std::strerror;
using std::string;
using std::string_view;
using std::strlen;
using std::strncmp;
using std::strncpy;
using std::strong_ordering;
using std::strtoull;
using std::swap;
using std::thread;
using std::tie;
using std::to_array;
using std::to_chars;
using std::to_integer;
using std::to_string;
using std::transform;
using std::tuple;
using std::tuple_element;
using std::tuple_size;
using std::type_info;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
using std::uintptr_t;
using std::uninitialized_copy;
using std::uninitialized_fill;
using std::uninitialized_move;
using std::uninitialized_value_construct;
using std::unique;
using std::unique_lock;
using std::unique_ptr;
using std::unordered_map;
using std::unordered_set;
using std::upper_bound;
using std::variant;
using std::vector;
using std::visit;
using std::weak_ordering;

using std::operator==;
using std::operator<=>;
using std::operator!=;
using std::operator<;
using std::operator-;
using std::operator+;
using std::operator|;
using std::operator&;
using std::operator^;
using std::operator~;

namespace pmr {
using std::pmr::map;
using std::pmr::memory_resource;
using std::pmr::polymorphic_allocator;
using std::pmr::set;
using std::pmr::unordered_map;
using std::pmr::unsynchronized_pool_resource;
}  // namespace pmr

namespace ranges {
using std::ranges::find;
using std::ranges::find_if;
using std::ranges::min_element;
using std::ranges::sort;
}  // namespace ranges

namespace chrono {
using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using std::chrono::time_point;
using std::chrono::operator-;
}  // namespace chrono

namespace this_thread {
using std::this_thread::get_id;
using std::this_thread::sleep_for;
using std::this_thread::yield;
}  // namespace this_thread

}  // namespace std

// libstdc++'s iterators of span and vector are compared and moved by operators of this namespace,
// which the compiler finds only where they are exported.
#ifdef __GLIBCXX__
export namespace __gnu_cxx {
using __gnu_cxx::operator==;
using __gnu_cxx::operator<=>;
using __gnu_cxx::operator-;
using __gnu_cxx::operator+;
}  // namespace __gnu_cxx
#endif
