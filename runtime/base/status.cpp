#include "runtime/base/status.h"

#include <array>

#include "runtime/base/check.h"

namespace troupe {
namespace {

struct CodeRow {
  Code code;
  std::string_view name;
  std::string_view meaning;
  int exit_code;
};

constexpr std::array kCodes = {
    CodeRow{Code::kOk, "Ok", "It worked.", 0},
    CodeRow{Code::kInvalidArgument, "InvalidArgument", "The input is wrong.", 2},
    CodeRow{Code::kNotFound, "NotFound", "A named thing does not exist.", 3},
    CodeRow{Code::kAlreadyExists, "AlreadyExists", "A name or port is taken.", 2},
    CodeRow{Code::kFailedPrecondition, "FailedPrecondition", "Not possible in this state.", 7},
    CodeRow{Code::kUnauthenticated, "Unauthenticated", "No token or a wrong one.", 4},
    CodeRow{Code::kPermissionDenied, "PermissionDenied", "The operating system refused.", 4},
    CodeRow{Code::kResourceExhausted, "ResourceExhausted", "Something ran out.", 5},
    CodeRow{Code::kOutOfMemory, "OutOfMemory", "Memory ran out.", 5},
    CodeRow{Code::kDeadlineExceeded, "DeadlineExceeded", "The wait ended before the event.", 6},
    CodeRow{Code::kCancelled, "Cancelled", "The request was taken back.", 7},
    CodeRow{Code::kUnavailable, "Unavailable", "The other side cannot be reached now.", 3},
    CodeRow{Code::kAborted, "Aborted", "Given up together with others.", 7},
    CodeRow{Code::kDataLoss, "DataLoss", "Stored bytes are damaged or incomplete.", 7},
    CodeRow{Code::kUnsupported, "Unsupported", "Not something Troupe does.", 2},
    CodeRow{Code::kActorDied, "ActorDied", "The actor is gone for good.", 7},
    CodeRow{Code::kActorError, "ActorError", "The actor's own code threw.", 7},
    CodeRow{Code::kOverloaded, "Overloaded", "A bounded queue is full.", 5},
    CodeRow{Code::kInternal, "Internal", "A bug in Troupe.", 70},
    CodeRow{Code::kProtocol, "Protocol", "The peer does not speak this protocol.", 3},
    CodeRow{Code::kObjectLost, "ObjectLost", "No copy of the object is left.", 7},
};

const CodeRow& row(Code code) {
  const auto index = static_cast<std::size_t>(code);
  TROUPE_CHECK(index < kCodes.size() && kCodes[index].code == code, "unknown code {}", index);
  return kCodes[index];
}

}  // namespace

std::string_view code_name(Code code) { return row(code).name; }
std::string_view code_meaning(Code code) { return row(code).meaning; }
int exit_code(Code code) { return row(code).exit_code; }

Code code_from_number(int number) {
  if (number < 0 || number >= static_cast<int>(kCodes.size())) return Code::kInternal;
  return static_cast<Code>(number);
}

Status::Status(Code code, std::string message) : code_(code) {
  if (!message.empty()) own_details().message = std::move(message);
}

Status::Status(Code code, const char* message) : Status(code, std::string(message)) {}

Status& Status::operator=(const Status& other) { return *this = Status(other); }

const Status::Details& Status::no_details() {
  static const Details none;
  return none;
}

Status::Details* Status::copy_of(const Details& details) { return new Details(details); }

void Status::destroy(Details* details) noexcept { delete details; }

Status::Details& Status::own_details() {
  if (details_ == nullptr) details_ = new Details;
  return *details_;
}

std::optional<std::string_view> Status::context(std::string_view key) const {
  for (const auto& [k, v] : context()) {
    if (k == key) return v;
  }
  return std::nullopt;
}

void Status::add_context(std::string_view key, std::string_view value) {
  if (!context(key)) own_details().context.emplace_back(key, value);
}

void Status::add_number(std::string_view key, std::int64_t value) {
  add_context(key, std::to_string(value));
}

void Status::add_count(std::string_view key, std::uint64_t value) {
  add_context(key, std::to_string(value));
}

Status Status::prefixed(std::string_view prefix) const {
  Status copy = *this;
  if (!ok()) copy.own_details().message = fmt::format("{}: {}", prefix, message());
  return copy;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = message();
  std::string_view before = " (";
  for (const auto& [key, value] : context()) {
    text += fmt::format("{}{}={}", std::exchange(before, ", "), key, value);
  }
  if (!context().empty()) text += ')';
  return text;
}

bool operator==(const Status& a, const Status& b) {
  return a.code() == b.code() && a.message() == b.message() && a.context() == b.context();
}

StatusError::StatusError(Status status)
    : std::runtime_error(status.to_string()), status_(std::move(status)) {}

namespace detail {
Status format_error(Code code, fmt::string_view format, fmt::format_args args) {
  return Status(code, fmt::vformat(format, args));
}

void throw_status_error(const Status& status) { throw StatusError(status); }

void result_misuse(const char* what, const Status& status) {
  TROUPE_CHECK(false, "Result {}: {}", what, status.to_string());
  std::abort();
}
}  // namespace detail

}  // namespace troupe
