#include "train/trainer/saved_stop.h"

#include <charconv>
#include <string_view>

namespace troupe::train {
namespace {

constexpr std::string_view kBeforeStep = "stopped at step ";
constexpr std::string_view kAfterStep = " after saving";

}  // namespace

Status saved_stop(std::int64_t step) {
  return error(Code::kCancelled, "{}{}{}", kBeforeStep, step, kAfterStep);
}

std::optional<std::int64_t> saved_step_of(const Status& status) {
  const std::string_view message = status.message();
  const auto at = message.find(kBeforeStep);
  if (status.code() != Code::kCancelled || at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = message.substr(at + kBeforeStep.size());
  std::int64_t step = 0;
  const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), step);
  if (failure != std::errc() ||
      !std::string_view(end, rest.data() + rest.size()).starts_with(kAfterStep))
    return std::nullopt;
  return step;
}

}  // namespace troupe::train
