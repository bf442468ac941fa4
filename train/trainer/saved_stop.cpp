#include "train/trainer/saved_stop.h"

#include <charconv>
#include <string_view>

namespace troupe::train {
namespace {

constexpr std::string_view kBeforeStep = "stopped at step ";
constexpr std::string_view kAfterStep = " after saving";
constexpr std::string_view kPaused = "paused after step ";

std::optional<std::int64_t> number_between(std::string_view text, std::string_view before,
                                           std::string_view after) {
  const auto at = text.find(before);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + before.size());
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  const std::string_view behind(end, rest.data() + rest.size());
  if (failure != std::errc() || !behind.starts_with(after)) return std::nullopt;
  return number;
}

}  // namespace

Status saved_stop(std::int64_t step) {
  return error(Code::kCancelled, "{}{}{}", kBeforeStep, step, kAfterStep);
}

std::optional<std::int64_t> saved_step_of(const Status& status) {
  if (status.code() != Code::kCancelled) return std::nullopt;
  return number_between(status.message(), kBeforeStep, kAfterStep);
}

Status paused_after(std::int64_t step) { return error(Code::kAborted, "{}{}", kPaused, step); }

std::optional<std::int64_t> paused_step_of(const Status& status) {
  if (status.code() != Code::kAborted) return std::nullopt;
  return number_between(status.message(), kPaused, "");
}

}  // namespace troupe::train
