// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:result - errors as values.
//
// Operating errors are values: every call that can fail while running returns result<T>, which
// holds a value or an error. A programmer's mistake is an assertion and ends the process.
//
// I1  A result holds a value or an error, never both and never neither.
// I2  An error owns nothing: its texts have static storage, so it can be made and copied when no
//     memory is left.
//
// Thread safety: values only. Cost: no allocation anywhere in this unit but in describe().
export module vmm.backend:result;

import vmm.base;
import vmm.std;

namespace vmm {

/// The error codes, as a closed list. `error` also has the backend's own code and name.
export enum class errc : std::uint8_t {
  none,                // no error; the code of a default-constructed `error` only
  invalid_argument,    // a value that the call does not accept
  bad_option,          // an option or environment variable with a value it cannot have
  out_of_memory,       // the backend has no physical memory left for the request
  out_of_host_memory,  // operator new failed inside vmm
  out_of_addresses,    // no address range of the requested size is left
  out_of_mappings,     // a limit of the process or system: mappings, open files, size of a file
  over_budget,         // vmm's own byte budget would be exceeded
  unknown_address,     // not an address of this pool or manager
  not_allocated,       // inside a managed range, but free: freed before, or never handed out
  overlap,             // the range overlaps one that is already recorded or mapped
  in_use,         // the object is still mapped, pinned, shared, or being changed by another thread
  not_supported,  // the backend or the device cannot do this
  not_permitted,  // this process may not: it lacks the right, or is a forked child
  unavailable,    // no driver, no device, or a missing library
  device_lost,    // the device or its context no longer works
  foreign_error,  // an earlier failure of other work, reported by this call
  internal,       // a code without an equivalent in vmm; see error::native_name
};

/// Whether an error means that memory was short: releasing retained memory, or a smaller request,
/// may help.
export [[nodiscard]] constexpr bool is_shortage(errc code) noexcept {
  return code == errc::out_of_memory || code == errc::over_budget || code == errc::out_of_mappings;
}

/// Whether an error means that the call named a wrong address: one that was freed before, lies
/// inside a block, or was never allocated here. A programmer's mistake: a retry does not help.
export [[nodiscard]] constexpr bool is_wrong_address(errc code) noexcept {
  return code == errc::unknown_address || code == errc::not_allocated ||
         code == errc::invalid_argument;
}

/// The kinds of a backend's calls: the keys of logs, counters and fault plans.
export enum class call : std::uint8_t {
  none,
  query_granularity,
  memory_info,
  reserve,
  free_reservation,
  create,
  release,
  map,
  unmap,
  set_access,
  get_access,
  retain,
  create_stream,
  destroy_stream,
  synchronize_stream,
  create_event,
  destroy_event,
  record_event,
  query_event,
  wait_event,
  synchronize_event,
  copy,
  fill,
  write,
  read,
  export_handle,
  import_handle,
  create_multicast,
  add_multicast_device,
  bind_multicast,
  unbind_multicast,
  get_properties,
  query_capture,
  record_all,
  query_peer,
  export_range,
  synchronize_all,
};
/// The number of values of `call`.
export inline constexpr std::size_t call_count =
    static_cast<std::size_t>(call::synchronize_all) + 1;

/// The figures of a shortage, in bytes.
export struct shortage_figures {
  std::uint64_t requested_bytes = 0;     ///< 0: no figure is known
  std::uint64_t used_bytes = 0;          ///< of the limit
  std::uint64_t limit_bytes = 0;         ///< the budget, the device's memory, or the addresses that
                                         ///< are reserved; 0: not known
  std::uint64_t largest_free_bytes = 0;  ///< the largest free block of the allocator
  std::uint64_t held_bytes = 0;          ///< of the allocator: live and retained memory
  bool is_growth = false;                ///< the request adds memory to a live block
};

/// One failure. All texts have static storage duration.
export struct error {
  errc code = errc::none;
  call where =
      call::none;  ///< the backend call that failed; none when vmm refused before making one
  std::int64_t native = 0;  ///< the backend's own number (a CUresult, an errno, a ze_result_t)
  const char* native_name =
      "";                      ///< the backend's own name for it, such as CUDA_ERROR_INVALID_VALUE
  const char* detail = "";     ///< the cause and a remedy
  shortage_figures figures{};  ///< of requests that failed for lack of memory or addresses
};

/// Names of the enumerators, static storage.
export [[nodiscard]] const char* name_of(errc code) noexcept;
export [[nodiscard]] const char* name_of(call where) noexcept;

/// The figures of a shortage as a sentence, such as "request of 512 MiB exceeds the budget: 8.98 of
/// 9 GiB in use, largest free block 12 MiB. "; empty without figures. Writes at most out.size()
/// bytes, with a null at the end; returns the length. Allocates nothing.
export std::size_t write_figures(const error& failure, std::span<char> out) noexcept;

/// One readable line: code, failing call, the backend's name and number, the figures of a
/// shortage and the advice. Allocates.
export [[nodiscard]] std::string describe(const error& failure);

/// An error that vmm itself raises, before or without a backend call.
export [[nodiscard]] constexpr error refuse(errc code, const char* detail) noexcept {
  check(code != errc::none, "an error has no code");
  check(detail != nullptr, "an error is made without a text");
  return error{code, call::none, 0, "", detail};
}

/// The error of every call on an object of another process.
export [[nodiscard]] constexpr error refuse_forked(call where = call::none) noexcept {
  return error{errc::not_permitted, where, 0, "",
               "this object was created before the process forked: open a driver in the child, and "
               "leave its parent's objects alone"};
}

// Storage of an error. Success writes no part of it: a warm call reads and writes only the start of
// its result, on one cache line.
union error_room {
  constexpr error_room() noexcept {}
  constexpr error_room(const error& of) noexcept : failure(of) {}
  error failure;
};
static_assert(std::is_trivially_copyable_v<error> && std::is_trivially_destructible_v<error>,
              "I2: an error owns memory");

/// A value or an error. Shaped like std::expected<T, error>, which needs C++23.
export template <class T>
class [[nodiscard]] result {
 public:
  using value_type = T;

  /// Success.
  constexpr result(T value) : value_(std::move(value)) {}
  /// Failure. Requires: an error with a code, else the process ends.
  constexpr result(vmm::error failure) : error_(failure) {
    check(failure.code != errc::none, "a result is made from an error without a code");
  }

  /// Whether it is success; the same as a condition.
  [[nodiscard]] constexpr bool has_value() const noexcept { return value_.has_value(); }
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return value_.has_value(); }

  /// The value, also as `*r` and `r->`. Requires: success, else the process ends.
  [[nodiscard]] constexpr T& value() & {
    check(has_value(), "I1: value() of a result that holds an error");
    return *value_;
  }
  [[nodiscard]] constexpr const T& value() const& {
    check(has_value(), "I1: value() of a result that holds an error");
    return *value_;
  }
  [[nodiscard]] constexpr T&& value() && {
    check(has_value(), "I1: value() of a result that holds an error");
    return std::move(*value_);
  }
  [[nodiscard]] constexpr T& operator*() & { return value(); }
  [[nodiscard]] constexpr const T& operator*() const& { return value(); }
  [[nodiscard]] constexpr T&& operator*() && { return std::move(*this).value(); }
  [[nodiscard]] constexpr T* operator->() { return &value(); }
  [[nodiscard]] constexpr const T* operator->() const { return &value(); }

  /// The error. Requires: failure, else the process ends.
  [[nodiscard]] constexpr const vmm::error& error() const {
    check(!has_value(), "error() of a result that holds a value");
    return error_.failure;
  }
  /// The value, or `otherwise` of a failure.
  [[nodiscard]] constexpr T value_or(T otherwise) const& {
    return has_value() ? *value_ : std::move(otherwise);
  }

 private:
  std::optional<T> value_;
  error_room error_;
};

/// Success, or an error.
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;

  /// Success. A defaulted constructor would clear the storage of the error.
  constexpr result() noexcept {}
  /// Failure. Requires: an error with a code, else the process ends.
  constexpr result(vmm::error failure) : has_failed_(true), error_(failure) {
    check(failure.code != errc::none, "a result is made from an error without a code");
  }

  [[nodiscard]] constexpr bool has_value() const noexcept { return !has_failed_; }
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] constexpr const vmm::error& error() const {
    check(!has_value(), "error() of a result that holds a value");
    return error_.failure;
  }

 private:
  bool has_failed_ = false;
  error_room error_;
};

/// The result of a call without a value: success, or an error.
export using status = result<void>;

}  // namespace vmm
