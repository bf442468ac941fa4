#include "train/config/chaos.h"

#include <array>
#include <charconv>

#include "train/config/suggest.h"

namespace troupe::train {
namespace {

constexpr std::array<std::string_view, 6> kPhases = {"begin",         "forward",   "backward",
                                                     "communication", "optimizer", "checkpoint"};
// More in one run helps nobody and would slow every step.
constexpr std::size_t kFaultsMax = 1000;

Result<std::int64_t> whole_number(std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || ec != std::errc() || end != text.data() + text.size()) {
    return error(Code::kInvalidArgument, "'{}' is no whole number", text);
  }
  if (value < least) {
    return error(Code::kInvalidArgument, "{} is below the least value, {}", value, least);
  }
  return value;
}

Result<ChaosPhase> phase_of(std::string_view text) {
  std::vector<std::string> names(kPhases.begin(), kPhases.end());
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    if (kPhases[i] == text) return static_cast<ChaosPhase>(i);
  }
  return error(Code::kInvalidArgument, "'{}' is no phase; one of {}{}", text, join_words(names),
               did_you_mean(text, names));
}

Status set_field(ChaosFault& fault, std::string_view key, std::string_view value) {
  const std::vector<std::string> keys = {"step", "rank", "phase", "generation"};
  if (key == "step") {
    fault.step = TROUPE_TRY(whole_number(value, 1));
  } else if (key == "rank") {
    fault.rank = TROUPE_TRY(whole_number(value, 0));
  } else if (key == "generation") {
    fault.generation = TROUPE_TRY(whole_number(value, 1));
  } else if (key == "phase") {
    fault.phase = TROUPE_TRY(phase_of(value));
  } else {
    return error(Code::kInvalidArgument, "unknown key; one of {}{}", join_words(keys),
                 did_you_mean(key, keys));
  }
  return {};
}

Result<ChaosFault> parse_fault(std::string_view text) {
  const auto at = text.find('@');
  ChaosFault fault;
  fault.fault = std::string(trim(text.substr(0, at)));
  if (fault.fault != "kill") {
    return error(Code::kUnsupported, "'{}': the fault '{}' is not supported; use kill@step=N", text,
                 fault.fault);
  }
  std::vector<std::string> seen;
  const auto fields = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  for (const auto& field : split_words(fields, ',')) {
    const auto equals = field.find('=');
    if (equals == std::string::npos) {
      return error(Code::kInvalidArgument, "'{}': '{}' is not of the form key=value", text, field);
    }
    const std::string key(trim(std::string_view(field).substr(0, equals)));
    for (const auto& before : seen) {
      if (before == key) {
        return error(Code::kInvalidArgument, "'{}': {} stands twice", text, key);
      }
    }
    seen.push_back(key);
    const auto set = set_field(fault, key, trim(std::string_view(field).substr(equals + 1)));
    if (!set.ok()) return set.prefixed(fmt::format("'{}': {}", text, key));
  }
  if (fault.step == 0) {
    return error(Code::kInvalidArgument, "'{}': a step is missing, as in kill@step=40", text);
  }
  return fault;
}

}  // namespace

std::string_view chaos_phase_name(ChaosPhase phase) {
  return kPhases[static_cast<std::size_t>(phase)];
}

Result<std::vector<ChaosFault>> parse_chaos(std::string_view text) {
  std::vector<ChaosFault> faults;
  for (const auto& piece : split_words(text, ';')) {
    const auto trimmed = trim(piece);
    if (trimmed.empty()) continue;
    faults.push_back(TROUPE_TRY(parse_fault(trimmed)));
    if (faults.size() > kFaultsMax) {
      return error(Code::kInvalidArgument, "more than {} faults", kFaultsMax);
    }
  }
  return faults;
}

std::string chaos_text(const std::vector<ChaosFault>& faults) {
  std::string out;
  for (const auto& fault : faults) {
    if (!out.empty()) out += ';';
    out += fmt::format("{}@step={},rank={},phase={}", fault.fault, fault.step, fault.rank,
                       chaos_phase_name(fault.phase));
    if (fault.generation != 0) out += fmt::format(",generation={}", fault.generation);
  }
  return out;
}

bool strikes(const ChaosFault& fault, std::int64_t step, std::int64_t rank, ChaosPhase phase,
             std::int64_t generation) {
  return fault.step == step && fault.rank == rank && fault.phase == phase &&
         (fault.generation == 0 || fault.generation == generation);
}

}  // namespace troupe::train
