#include "tools/ranks/failure_report.h"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <charconv>

#include "runtime/base/json.h"
#include "runtime/base/suggest.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kRowWidth = 60;

std::optional<std::int64_t> seconds_of(const json::Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) return value->get_int64();
  if (!value->is_string()) return std::nullopt;
  const auto& text = value->get_string();
  std::int64_t seconds = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return failed == std::errc() ? std::optional(seconds) : std::nullopt;
}

std::string local_time(std::int64_t unix_s) {
  const time_t time = static_cast<time_t>(unix_s);
  struct tm parts {};
  if (::localtime_r(&time, &parts) == nullptr) return "<N/A>";
  char text[32];
  return std::string(text, ::strftime(text, sizeof text, "%Y-%m-%d_%H:%M:%S", &parts));
}

std::string block(std::size_t number, const FailedRank& rank) {
  std::string traceback = rank.traceback;
  if (traceback.empty() && rank.signal != 0) {
    traceback =
        fmt::format("Signal {} (SIG{}) received by PID {}", rank.signal,
                    ::sigabbrev_np(rank.signal) ? ::sigabbrev_np(rank.signal) : "?", rank.pid);
  }
  if (traceback.empty()) traceback = rank.death;
  if (traceback.empty()) {
    traceback = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
  }
  return fmt::format(
      "[{}]:\n  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {})\n"
      "  exitcode  : {} (pid: {})\n  error_file: {}\n  traceback : {}\n",
      number, local_time(rank.unix_s), rank.host, rank.rank, rank.local_rank,
      rank.shown_exit_code(), rank.pid, rank.error_file.empty() ? "<N/A>" : rank.error_file,
      traceback);
}

// Standard error without the traceback that the error file holds, too. Python prints it with the
// frames that called the recording function above its own, so what is compared stands below the
// first line of the file's; where the last lines begin within it, all of them up to its end.
std::string without_traceback(const std::string& lines, const std::string& traceback) {
  constexpr std::string_view kHeader = "Traceback (most recent call last):\n";
  if (!traceback.starts_with(kHeader)) return lines;
  std::string body = traceback.substr(kHeader.size());
  while (body.ends_with('\n')) body.pop_back();
  body += '\n';
  std::string whole = lines;
  if (!whole.empty() && !whole.ends_with('\n')) whole += '\n';
  if (const std::size_t at = whole.find(body); at != std::string::npos) {
    const std::size_t header = whole.rfind(kHeader, at);
    const std::size_t from = header == std::string::npos ? 0 : header;
    return whole.substr(0, from) + whole.substr(at + body.size());
  }
  return body.ends_with(whole) ? std::string() : lines;
}

}  // namespace

std::optional<RecordedError> parse_error_file(std::string_view text) {
  const auto parsed = json::parse(text, "error.json");
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const json::Object& top = parsed->get_object();
  const json::Value* message = top.if_contains("message");
  if (message == nullptr) return std::nullopt;
  RecordedError error;
  error.timestamp_s = seconds_of(top.if_contains("timestamp"));
  if (message->is_string()) {
    error.message = message->get_string();
    return error;
  }
  if (!message->is_object()) return std::nullopt;
  const json::Object& inner = message->get_object();
  if (const auto* said = inner.if_contains("message"); said != nullptr && said->is_string()) {
    error.message = said->get_string();
  }
  if (const auto* extra = inner.if_contains("extraInfo"); extra != nullptr && extra->is_object()) {
    const json::Object& info = extra->get_object();
    if (!error.timestamp_s) error.timestamp_s = seconds_of(info.if_contains("timestamp"));
    const auto* stack = info.if_contains("py_callstack");
    if (stack != nullptr && stack->is_string()) error.message = stack->get_string();
  }
  return error;
}

std::size_t root_cause(const std::vector<FailedRank>& failed) {
  std::size_t first = 0;
  for (std::size_t i = 1; i < failed.size(); ++i) {
    const bool recorded = !failed[i].error_file.empty();
    const bool first_recorded = !failed[first].error_file.empty();
    if (recorded && first_recorded && failed[i].unix_s < failed[first].unix_s) first = i;
  }
  return first;
}

std::optional<std::string> start_failure(const std::vector<FailedRank>& failed) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const FailedRank& rank : failed) {
    if (rank.started) return std::nullopt;
    const auto known = std::find_if(by_reason.begin(), by_reason.end(),
                                    [&](const auto& entry) { return entry.first == rank.death; });
    auto& ranks = known != by_reason.end()
                      ? known->second
                      : by_reason.emplace_back(rank.death, std::vector<std::string>()).second;
    ranks.push_back(std::to_string(rank.rank));
  }
  std::string text;
  for (const auto& [reason, ranks] : by_reason) {
    text += fmt::format("{}rank{} {} could not be started: {}", text.empty() ? "" : "; ",
                        ranks.size() == 1 ? "" : "s", join_words(ranks), reason);
  }
  return text.empty() ? std::nullopt : std::optional(text);
}

std::string failure_report(const std::string& name, const std::vector<FailedRank>& failed) {
  if (failed.empty()) return {};
  const std::size_t root = root_cause(failed);
  const std::string line(kRowWidth, '-');
  const std::string double_line(kRowWidth, '=');
  std::string text;
  const std::string lines = without_traceback(failed[root].last_lines, failed[root].traceback);
  if (!lines.empty()) {
    text +=
        fmt::format("The last lines of rank {}'s standard error:\n{}", failed[root].rank, lines);
  }
  text += fmt::format("{}\n{} FAILED\n{}\nFailures:\n", double_line, name, line);
  std::size_t number = 0;
  for (std::size_t i = 0; i < failed.size(); ++i) {
    if (i != root) text += block(++number, failed[i]);
  }
  if (number == 0) text += "  <NO_OTHER_FAILURES>\n";
  text += fmt::format("{}\nRoot Cause (first observed failure):\n{}{}\n", line,
                      block(0, failed[root]), double_line);
  return text;
}

}  // namespace troupe::tools
