#pragma once
// Errors as values: Code, Status, Result<T>.
//
// Expected failures travel as Status or Result<T>. A Status is a value: copyable, comparable by
// code, and it crosses the wire unchanged. Thread rules: like any value, no sharing of one object
// without a lock.

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

// What kind of failure it was. Callers branch on the code, never on the words. The numbers are part
// of the wire format: append only.
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,     // the caller's input is wrong, whatever the state of the system
  kNotFound = 2,            // a named thing (file, actor, node, key) does not exist
  kAlreadyExists = 3,       // a name or port is taken
  kFailedPrecondition = 4,  // the system is not in a state in which this can be done
  kUnauthenticated = 5,     // no or wrong token
  kPermissionDenied = 6,    // the operating system refused
  kResourceExhausted = 7,   // disk, descriptors, ports, quota: something ran out
  kOutOfMemory = 8,         // memory ran out
  kDeadlineExceeded = 9,    // the wait ended before the event
  kCancelled = 10,          // the caller or its owner took the request back
  kUnavailable = 11,        // the other side cannot be reached now; trying again may help
  kAborted = 12,            // given up together with others (a communicator's generation, a group)
  kDataLoss = 13,           // stored bytes are damaged or incomplete
  kUnsupported = 14,        // understood, and not something Troupe does
  kActorDied = 15,          // the actor is gone and will not come back
  kActorError = 16,         // the actor's own code threw
  kOverloaded = 17,         // a bounded queue is full
  kInternal = 18,           // a bug of ours that could be contained
  kProtocol = 19,           // the peer sent something that is not of the protocol or its version
  kObjectLost = 20,         // no copy of the object is left, or nobody held it any more
};

// "InvalidArgument", … The inverse of code_from_name.
std::string_view code_name(Code code);
// The sentence that says when a code occurs, for manuals and `troupe why`.
std::string_view code_meaning(Code code);
// Codes from a peer: a number that this version does not know becomes kInternal.
Code code_from_number(int number);
// The process exit code that a command ends with for this failure: 0 ok, 2 bad input, 3 not found
// or unreachable, 4 authentication, 5 resources, 6 deadline, 7 the work failed, 70 internal.
int exit_code(Code code);

class [[nodiscard]] Status {
 public:
  using Context = std::vector<std::pair<std::string, std::string>>;

  Status() = default;  // ok
  Status(Code code, std::string message);
  Status(Code code, const char* message);  // without a string made at each place that fails
  Status(const Status& other)
      : code_(other.code_),
        details_(other.details_ == nullptr ? nullptr : copy_of(*other.details_)) {}
  Status(Status&& other) noexcept
      : code_(other.code_), details_(std::exchange(other.details_, nullptr)) {}
  Status& operator=(const Status& other);
  Status& operator=(Status&& other) noexcept {
    Details* const taken = std::exchange(other.details_, nullptr);
    if (details_ != nullptr) destroy(details_);
    code_ = other.code_;
    details_ = taken;
    return *this;
  }
  ~Status() {
    if (details_ != nullptr) destroy(details_);
  }

  static Status ok_status() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  // What was wrong and the way out, without the context.
  const std::string& message() const { return details().message; }
  // Where it happened: (key, value) pairs such as ("actor", "trainer-1"), innermost first.
  const Context& context() const { return details().context; }
  // The value of a context key, or nothing.
  std::optional<std::string_view> context(std::string_view key) const;

  // Adds where it happened, once per key: the innermost value wins. No effect on an ok status.
  // Values: texts, integers, and what has a to_string(), as ids.
  template <typename V>
  Status& with(std::string_view key, const V& value) & {
    if (ok()) return *this;
    if constexpr (std::is_convertible_v<const V&, std::string_view>) {
      add_context(key, std::string_view(value));
    } else if constexpr (std::is_unsigned_v<V>) {
      add_count(key, value);
    } else if constexpr (std::is_integral_v<V>) {
      add_number(key, value);
    } else {
      add_context(key, value.to_string());
    }
    return *this;
  }
  template <typename V>
  Status with(std::string_view key, const V& value) && {
    with(key, value);
    return std::move(*this);
  }
  // Puts "prefix: " before the message, for layers that know what was being attempted.
  Status prefixed(std::string_view prefix) const;

  // "message (key=value, key=value)" — what a person reads.
  std::string to_string() const;

  friend bool operator==(const Status& a, const Status& b);

 private:
  // Apart from the code, so that what every function returns is small, and what it costs to
  // compile, too: a third of the code of a caller would be the destruction of texts that are not
  // there.
  struct Details {
    std::string message;
    Context context;
  };
  static const Details& no_details();
  static Details* copy_of(const Details& details);
  static void destroy(Details* details) noexcept;
  const Details& details() const { return details_ == nullptr ? no_details() : *details_; }
  Details& own_details();
  void add_context(std::string_view key, std::string_view value);
  void add_number(std::string_view key, std::int64_t value);
  void add_count(std::string_view key, std::uint64_t value);

  Code code_ = Code::kOk;
  Details* details_ = nullptr;  // owned; none: no message and no context
};

namespace detail {
[[noreturn]] void result_misuse(const char* what, const Status& status);
[[noreturn]] void throw_status_error(const Status& status);
}  // namespace detail

// Thrown by Result::value() only: for callers who prefer exceptions (examples, tests).
class StatusError : public std::runtime_error {
 public:
  explicit StatusError(Status status);
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// A value or the reason why there is none. Not a std::variant, which takes the compiler several
// times as long: nearly every function here returns one.
template <typename T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T>, "Result of a reference: return a pointer");
  static_assert(!std::is_same_v<T, Status>, "Result<Status> is Status");

 public:
  using value_type = T;
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (ok()) detail::result_misuse("made from an ok status", {});
  }
  Result(Code code, std::string message) : Result(Status(code, std::move(message))) {}
  Result(Code code, const char* message) : Result(Status(code, message)) {}
  Result(const Result& other) requires std::is_copy_constructible_v<T> : status_(other.status_) {
    if (ok()) std::construct_at(&value_, other.value_);
  }
  Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>)
      : status_(std::move(other.status_)) {
    if (ok()) std::construct_at(&value_, std::move(other.value_));
  }
  Result& operator=(const Result& other) requires std::is_copy_constructible_v<T> {
    return *this = Result(other);
  }
  Result& operator=(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) {
    if (this == &other) return *this;
    if (ok()) value_.~T();
    // A failure, should the value's move throw.
    status_ = Status(Code::kInternal, std::string());
    if (other.ok()) std::construct_at(&value_, std::move(other.value_));
    status_ = std::move(other.status_);
    return *this;
  }
  ~Result() {
    if (ok()) value_.~T();
  }

  bool ok() const { return status_.ok(); }
  explicit operator bool() const { return ok(); }
  // The failure, or an ok status.
  Status status() const& { return status_; }
  Status status() && { return std::move(status_); }

  // The value; throws StatusError where there is none.
  T& value() & {
    if (!ok()) detail::throw_status_error(status_);
    return value_;
  }
  const T& value() const& { return const_cast<Result*>(this)->value(); }
  // By value, so that `for (x : f().value())` does not iterate over what is gone.
  T value() && { return std::move(value()); }
  T value_or(T fallback) const& { return ok() ? value_ : std::move(fallback); }
  T value_or(T fallback) && { return ok() ? std::move(value_) : std::move(fallback); }

  // The value where ok() is known; a failed check otherwise.
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->checked(); }

  // Adds context to a failure (see Status::with).
  template <typename V>
  Result with(std::string_view key, const V& value) && {
    status_.with(key, value);
    return std::move(*this);
  }

 private:
  T& checked() {
    if (!ok()) detail::result_misuse("value taken of a failure", status_);
    return value_;
  }
  Status status_;
  union {
    T value_;  // alive where status_ is ok
  };
};

namespace detail {
inline Status status_of(Status s) { return s; }
template <typename T>
Status status_of(const Result<T>& r) {
  return r.status();
}
template <typename T>
Status status_of(Result<T>&& r) {
  return std::move(r).status();
}
}  // namespace detail

// auto x = TROUPE_TRY(f()): the value of a Result, or return of its failure. A statement expression
// (GCC and Clang).
#define TROUPE_TRY(expression)                                           \
  __extension__({                                                        \
    auto troupe_result_ = (expression);                                  \
    if (!troupe_result_.ok()) return std::move(troupe_result_).status(); \
    std::move(*troupe_result_);                                          \
  })

// TROUPE_RETURN_IF_ERROR(f()): returns the failure of a Status or Result.
#define TROUPE_RETURN_IF_ERROR(expression)                           \
  do {                                                               \
    auto troupe_status_ = ::troupe::detail::status_of((expression)); \
    if (!troupe_status_.ok()) return troupe_status_;                 \
  } while (false)

}  // namespace troupe
