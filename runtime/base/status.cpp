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

std::optional<std::string_view> Status::context(std::string_view key) const {
  for (const auto& [k, v] : context_) {
    if (k == key) return v;
  }
  return std::nullopt;
}

Status Status::prefixed(std::string_view prefix) const {
  Status copy = *this;
  if (!copy.ok()) copy.message_ = fmt::format("{}: {}", prefix, message_);
  return copy;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = message_;
  for (std::size_t i = 0; i < context_.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? " (" : ", ", context_[i].first, context_[i].second);
  }
  if (!context_.empty()) text += ')';
  return text;
}

namespace detail {
void result_misuse(const char* what, const Status& status) {
  TROUPE_CHECK(false, "Result {}: {}", what, status.to_string());
  std::abort();
}
}  // namespace detail

}  // namespace troupe
