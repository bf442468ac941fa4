#pragma once
// Errors as values: Code, Status, Result<T>.
//
// Expected failures travel as Status or Result<T>; bugs hit TROUPE_CHECK (check.h) and abort.
// A Status is a value: copyable, comparable by code, and it crosses the wire unchanged
// (runtime/wire). Thread rules: like any value, no sharing of one object without a lock.

#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
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
  Status() = default;  // ok
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  // What was wrong and the way out, without the context.
  const std::string& message() const { return message_; }
  // Where it happened: (key, value) pairs such as ("actor", "trainer-1"), innermost first.
  const std::vector<std::pair<std::string, std::string>>& context() const { return context_; }
  // The value of a context key, or nothing.
  std::optional<std::string_view> context(std::string_view key) const;

  // Adds where it happened, once per key: the innermost value wins. No effect on an ok status.
  template <typename V>
  Status& with(std::string_view key, const V& value) & {
    if (!ok() && !context(key)) context_.emplace_back(std::string(key), fmt::format("{}", value));
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

  friend bool operator==(const Status& a, const Status& b) = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
  std::vector<std::pair<std::string, std::string>> context_;
};

// An error Status from a format string: error(Code::kNotFound, "no file {}", path).
template <typename... Args>
Status error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

// Thrown by Result::value() only: for callers who prefer exceptions (examples, tests).
class StatusError : public std::runtime_error {
 public:
  explicit StatusError(Status status)
      : std::runtime_error(status.to_string()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

namespace detail {
[[noreturn]] void result_misuse(const char* what, const Status& status);
}

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T>, "Result of a reference: return a pointer");
  static_assert(!std::is_same_v<T, Status>, "Result<Status> is Status");

 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    if (std::get<1>(state_).ok()) detail::result_misuse("made from an ok status", {});
  }
  Result(Code code, std::string message) : Result(Status(code, std::move(message))) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // The failure, or an ok status.
  Status status() const& { return ok() ? Status() : std::get<1>(state_); }

  // The value; throws StatusError where there is none.
  T& value() & { return ok() ? std::get<0>(state_) : throw StatusError(status()); }
  const T& value() const& { return ok() ? std::get<0>(state_) : throw StatusError(status()); }
  // By value, so that `for (x : f().value())` does not iterate over what is gone.
  T value() && { return ok() ? std::get<0>(std::move(state_)) : throw StatusError(status()); }
  T value_or(T fallback) && { return ok() ? std::get<0>(std::move(state_)) : std::move(fallback); }

  // The value where ok() is known; a failed check otherwise.
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->checked(); }

  // Adds context to a failure (see Status::with).
  template <typename V>
  Result with(std::string_view key, const V& value) && {
    if (!ok()) std::get<1>(state_).with(key, value);
    return std::move(*this);
  }

 private:
  T& checked() {
    if (!ok()) detail::result_misuse("value taken of a failure", std::get<1>(state_));
    return std::get<0>(state_);
  }
  std::variant<T, Status> state_;
};

namespace detail {
inline Status status_of(Status s) { return s; }
template <typename T>
Status status_of(const Result<T>& r) {
  return r.status();
}
}  // namespace detail

// auto x = TROUPE_TRY(f()): the value of a Result, or return of its failure. A statement expression
// (GCC and Clang).
#define TROUPE_TRY(expression)                                \
  ({                                                          \
    auto troupe_result_ = (expression);                       \
    if (!troupe_result_.ok()) return troupe_result_.status(); \
    std::move(*troupe_result_);                               \
  })

// TROUPE_RETURN_IF_ERROR(f()): returns the failure of a Status or Result.
#define TROUPE_RETURN_IF_ERROR(expression)                           \
  do {                                                               \
    auto troupe_status_ = ::troupe::detail::status_of((expression)); \
    if (!troupe_status_.ok()) return troupe_status_;                 \
  } while (false)

}  // namespace troupe
