#include "train/chaos/fault.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

// More in one run helps nobody and would slow every step.
constexpr std::size_t kFaultsMax = 1000;
constexpr std::int64_t kNumberMax = 1'000'000'000'000;

constexpr std::array<std::string_view, kFaultKindCount> kFaultNames = {"kill",
                                                                       "stop",
                                                                       "exit",
                                                                       "exception",
                                                                       "slow",
                                                                       "nan",
                                                                       "disk_full",
                                                                       "fail_write",
                                                                       "torn_write",
                                                                       "fail_fsync",
                                                                       "cut",
                                                                       "delay",
                                                                       "stall",
                                                                       "kill_keeper",
                                                                       "kill_daemon",
                                                                       "kill_head",
                                                                       "kill_controller",
                                                                       "kill_node",
                                                                       "leave_node",
                                                                       "join_node",
                                                                       "record"};
static_assert(kFaultNames.back() == "record");

constexpr std::array<PointKind, 7> kPointKinds = {
    PointKind::kStage,      PointKind::kUnit,  PointKind::kGradient, PointKind::kOperator,
    PointKind::kCollective, PointKind::kChunk, PointKind::kFile};

bool any_of(FaultKind kind, std::initializer_list<FaultKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}
// Struck in its own process, at points or from outside.
bool strikes_trainer(FaultKind kind) {
  return kind < FaultKind::kCut || kind == FaultKind::kRecord;
}
bool may_strike_from_outside(FaultKind kind) {
  return any_of(kind, {FaultKind::kKill, FaultKind::kStop, FaultKind::kSlow});
}
bool strikes_file(FaultKind kind) {
  return any_of(kind, {FaultKind::kDiskFull, FaultKind::kFailWrite, FaultKind::kTornWrite,
                       FaultKind::kFailFsync});
}
bool strikes_connection(FaultKind kind) {
  return any_of(kind, {FaultKind::kCut, FaultKind::kDelay, FaultKind::kStall});
}
bool strikes_node(FaultKind kind) {
  return strikes_connection(kind) ||
         any_of(kind, {FaultKind::kKillKeeper, FaultKind::kKillDaemon, FaultKind::kKillNode,
                       FaultKind::kLeaveNode, FaultKind::kJoinNode});
}
bool has_schedule(const Fault& fault) {
  return fault.at_s > 0 || fault.every_s > 0 || fault.rate_per_min > 0;
}

Result<std::int64_t> whole(std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || ec != std::errc() || end != text.data() + text.size()) {
    return error(Code::kInvalidArgument, "'{}' is no whole number", text);
  }
  if (value < least) {
    return error(Code::kInvalidArgument, "{} is below the least value, {}", value, least);
  }
  if (value > kNumberMax) {
    return error(Code::kInvalidArgument, "{} is beyond the greatest value, {}", value, kNumberMax);
  }
  return value;
}

Result<double> positive(std::string_view text) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || ec != std::errc() || end != text.data() + text.size()) {
    return error(Code::kInvalidArgument, "'{}' is no number", text);
  }
  if (!(value > 0) || !std::isfinite(value) || value > 1e9) {
    return error(Code::kInvalidArgument, "{} is not between 0 and 1e9", text);
  }
  return value;
}

// The index of `text` among `names`.
Result<std::size_t> one_of(std::string_view text, const std::vector<std::string>& names,
                           std::string_view what) {
  const auto it = std::find(names.begin(), names.end(), text);
  if (it != names.end()) return static_cast<std::size_t>(it - names.begin());
  return error(Code::kInvalidArgument, "'{}' is no {}; one of {}{}", text, what, join_words(names),
               did_you_mean(text, names));
}

std::vector<std::string> stage_names() {
  std::vector<std::string> names;
  for (int i = 0; i < kStageCount; ++i) names.emplace_back(stage_name(static_cast<Stage>(i)));
  return names;
}

std::vector<std::string> point_names() {
  std::vector<std::string> names;
  for (const PointKind kind : kPointKinds) names.emplace_back(point_kind_name(kind));
  return names;
}

// The keys that a kind of fault understands.
std::vector<std::string> keys_of(FaultKind kind) {
  if (kind == FaultKind::kRecord) return {"rank", "file"};
  std::vector<std::string> keys;
  const auto add = [&](std::initializer_list<const char*> more) {
    keys.insert(keys.end(), more.begin(), more.end());
  };
  add({"step", "times"});
  if (strikes_trainer(kind)) add({"rank", "phase", "unit", "hit", "generation"});
  if (strikes_trainer(kind) && !strikes_file(kind) && kind != FaultKind::kNan) {
    add({"point", "number"});
  }
  if (strikes_trainer(kind) && kind != FaultKind::kNan) add({"operation"});
  if (!strikes_trainer(kind) || may_strike_from_outside(kind)) add({"at", "every", "rate", "seed"});
  if (strikes_node(kind)) add({"node"});
  if (kind == FaultKind::kExit) add({"code"});
  if (kind == FaultKind::kSlow) add({"factor", "steps", "for_ms"});
  if (any_of(kind, {FaultKind::kDiskFull, FaultKind::kDelay, FaultKind::kStall})) add({"for_ms"});
  if (kind == FaultKind::kDelay) add({"delay_ms", "jitter_ms"});
  if (kind == FaultKind::kTornWrite) add({"then"});
  if (strikes_file(kind)) add({"file"});
  return keys;
}

Status set_field(Fault& fault, std::string_view key, std::string_view value) {
  const auto whole_into = [&](std::int64_t& field, std::int64_t least) -> Status {
    field = TROUPE_TRY(whole(value, least));
    return {};
  };
  const auto positive_into = [&](double& field) -> Status {
    field = TROUPE_TRY(positive(value));
    return {};
  };
  if (key == "step") return whole_into(fault.step, 1);
  if (key == "unit") return whole_into(fault.unit, 0);
  if (key == "number") return whole_into(fault.number, 0);
  if (key == "hit") return whole_into(fault.hit, 1);
  if (key == "generation") return whole_into(fault.generation, 1);
  if (key == "times") return whole_into(fault.times, 1);
  if (key == "node") return whole_into(fault.node, 0);
  if (key == "seed") return whole_into(fault.seed, 0);
  if (key == "steps") return whole_into(fault.steps, 1);
  if (key == "for_ms") return whole_into(fault.for_ms, 1);
  if (key == "delay_ms") return whole_into(fault.delay_ms, 0);
  if (key == "jitter_ms") return whole_into(fault.jitter_ms, 0);
  if (key == "at") return positive_into(fault.at_s);
  if (key == "every") return positive_into(fault.every_s);
  if (key == "rate") return positive_into(fault.rate_per_min);
  if (key == "rank") {
    fault.rank = value == "any" ? -1 : TROUPE_TRY(whole(value, 0));
    return {};
  }
  if (key == "phase") {
    fault.stage = static_cast<Stage>(TROUPE_TRY(one_of(value, stage_names(), "phase")));
    return {};
  }
  if (key == "point") {
    fault.point = kPointKinds[TROUPE_TRY(one_of(value, point_names(), "point"))];
    return {};
  }
  if (key == "code") {
    fault.code = TROUPE_TRY(whole(value, 0));
    if (fault.code > 255) return error(Code::kInvalidArgument, "exit codes end at 255");
    return {};
  }
  if (key == "factor") {
    fault.factor = TROUPE_TRY(positive(value));
    if (fault.factor <= 1 || fault.factor > 1000) {
      return error(Code::kInvalidArgument, "{} is not above 1 and at most 1000", value);
    }
    return {};
  }
  if (key == "then") {
    fault.then_fail = TROUPE_TRY(one_of(value, {"kill", "fail"}, "end of a torn write")) == 1;
    return {};
  }
  if (value.empty()) return error(Code::kInvalidArgument, "the value is missing");
  (key == "file" ? fault.file : fault.operation) = std::string(value);
  return {};
}

using Fields = std::vector<std::pair<std::string, std::string>>;

// What was left out, and what does not go together.
Status complete(Fault& fault, const std::vector<std::string>& given) {
  const auto is_given = [&](std::string_view key) {
    return std::find(given.begin(), given.end(), key) != given.end();
  };
  const int schedules = is_given("at") + is_given("every") + is_given("rate");
  if (schedules > 1) {
    return error(Code::kInvalidArgument, "at, every and rate exclude each other");
  }
  if (is_given("seed") && !is_given("rate")) {
    return error(Code::kInvalidArgument, "seed belongs to rate");
  }
  if (schedules == 1) {
    for (const char* key :
         {"step", "phase", "unit", "point", "operation", "number", "hit", "generation", "steps"}) {
      if (is_given(key)) {
        return error(Code::kInvalidArgument, "{} says where and {} says when: one of them", key,
                     is_given("at")      ? "at"
                     : is_given("every") ? "every"
                                         : "rate");
      }
    }
    if (!is_given("rank")) fault.rank = -1;
    if (!is_given("times") && !is_given("at")) fault.times = 0;
    return {};
  }
  if (fault.kind == FaultKind::kRecord) {
    if (fault.file.empty()) return error(Code::kInvalidArgument, "a file is missing");
    if (!is_given("rank")) fault.rank = -1;
    return {};
  }
  if (!strikes_trainer(fault.kind)) {
    if (fault.step > 0) return {};
    return error(
        Code::kInvalidArgument,
        "when it strikes is missing: at=SECONDS, every=SECONDS, rate=PER_MINUTE or step=N");
  }
  if (fault.kind == FaultKind::kSlow && is_given("for_ms")) {
    return error(Code::kInvalidArgument, "for_ms belongs to at, every and rate; use steps=N");
  }
  if (strikes_file(fault.kind)) {
    fault.point = PointKind::kFile;
    return {};
  }
  const bool placed =
      fault.step > 0 || fault.stage || fault.unit >= 0 || fault.point || !fault.operation.empty();
  if (!placed) {
    return error(Code::kInvalidArgument, "a step is missing, as in {}@step=40",
                 fault_kind_name(fault.kind));
  }
  if (fault.kind == FaultKind::kNan) {
    fault.point = PointKind::kGradient;
  } else if (!fault.point && fault.operation.empty()) {
    fault.point = fault.unit >= 0 ? PointKind::kUnit : PointKind::kStage;
    if (fault.unit < 0 && !fault.stage) fault.stage = Stage::kForward;
  }
  return {};
}

Result<Fault> make_fault(std::string_view kind, const Fields& fields) {
  Fault fault;
  {
    const std::vector<std::string> names(kFaultNames.begin(), kFaultNames.end());
    const auto it = std::find(names.begin(), names.end(), kind);
    if (it == names.end()) {
      return error(Code::kUnsupported, "the fault '{}' is not known; one of {}{}", kind,
                   join_words(names), did_you_mean(kind, names));
    }
    fault.kind = static_cast<FaultKind>(it - names.begin());
  }
  const auto keys = keys_of(fault.kind);
  std::vector<std::string> given;
  for (const auto& [key, value] : fields) {
    if (std::find(given.begin(), given.end(), key) != given.end()) {
      return error(Code::kInvalidArgument, "{} stands twice", key);
    }
    given.push_back(key);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return error(Code::kInvalidArgument, "{}: unknown key of {}; one of {}{}", key, kind,
                   join_words(keys), did_you_mean(key, keys));
    }
    const auto set = set_field(fault, key, value);
    if (!set.ok()) return set.prefixed(key);
  }
  TROUPE_RETURN_IF_ERROR(complete(fault, given));
  return fault;
}

Result<Fault> parse_fault(std::string_view text) {
  const auto at = text.find('@');
  Fields fields;
  const auto rest = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  for (const auto& field : split_words(rest, ',')) {
    const auto equals = field.find('=');
    if (equals == std::string::npos) {
      return error(Code::kInvalidArgument, "'{}' is not of the form key=value", field);
    }
    fields.emplace_back(trim(std::string_view(field).substr(0, equals)),
                        trim(std::string_view(field).substr(equals + 1)));
  }
  return make_fault(trim(text.substr(0, at)), fields);
}

// The value as the text form writes it.
Result<std::string> scalar_text(const json::Value& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_int64() || value.is_uint64() || value.is_double()) return json::write(value);
  return error(Code::kInvalidArgument, "a number or a text is wanted, not {}", json::write(value));
}

}  // namespace

std::string_view fault_kind_name(FaultKind kind) {
  return kFaultNames[static_cast<std::size_t>(kind)];
}

bool strikes_at_point(const Fault& fault) {
  return strikes_trainer(fault.kind) && !has_schedule(fault);
}

bool needs_cluster(const Fault& fault) {
  return strikes_node(fault.kind) || fault.kind == FaultKind::kKillHead;
}

Result<std::vector<Fault>> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  for (const auto& piece : split_words(text, ';')) {
    const auto trimmed = trim(piece);
    if (trimmed.empty()) continue;
    auto fault = parse_fault(trimmed);
    if (!fault.ok()) return fault.status().prefixed(fmt::format("'{}'", trimmed));
    faults.push_back(std::move(*fault));
    if (faults.size() > kFaultsMax) {
      return error(Code::kInvalidArgument, "more than {} faults", kFaultsMax);
    }
  }
  return faults;
}

Result<Fault> fault_from_json(const json::Value& value) {
  if (!value.is_object()) {
    return error(Code::kInvalidArgument, "a fault is an object, as {{fault: kill, step: 4}}");
  }
  std::string kind;
  Fields fields;
  for (const auto& member : value.get_object()) {
    auto text = scalar_text(member.value());
    if (!text.ok()) return text.status().prefixed(std::string(member.key()));
    if (member.key() == "fault") {
      kind = std::move(*text);
    } else {
      fields.emplace_back(member.key(), std::move(*text));
    }
  }
  if (kind.empty()) return error(Code::kInvalidArgument, "the key fault is missing");
  return make_fault(kind, fields);
}

std::string fault_text(const Fault& fault) {
  static const Fault kPlain;
  std::string fields;
  const auto add = [&](std::string_view key, const auto& value) {
    fields += fmt::format("{}{}={}", fields.empty() ? "" : ",", key, value);
  };
  const auto keys = keys_of(fault.kind);
  const auto understands = [&](std::string_view key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  const bool timed = has_schedule(fault);
  if (fault.step != 0) add("step", fault.step);
  const bool any_by_itself = timed || fault.kind == FaultKind::kRecord;
  if (strikes_trainer(fault.kind) && (!any_by_itself || fault.rank >= 0)) {
    add("rank", fault.rank < 0 ? std::string("any") : std::to_string(fault.rank));
  }
  if (fault.stage) add("phase", stage_name(*fault.stage));
  if (fault.point && understands("point")) add("point", point_kind_name(*fault.point));
  if (fault.unit != kPlain.unit) add("unit", fault.unit);
  if (!fault.operation.empty()) add("operation", fault.operation);
  if (fault.number != kPlain.number) add("number", fault.number);
  if (fault.hit != kPlain.hit) add("hit", fault.hit);
  if (fault.generation != 0) add("generation", fault.generation);
  if (fault.node >= 0) add("node", fault.node);
  if (fault.at_s > 0) add("at", fault.at_s);
  if (fault.every_s > 0) add("every", fault.every_s);
  if (fault.rate_per_min > 0) add("rate", fault.rate_per_min);
  if (fault.seed != 0) add("seed", fault.seed);
  if (fault.times > 1 || (fault.times == 1 && timed && fault.at_s == 0)) add("times", fault.times);
  if (fault.code != kPlain.code) add("code", fault.code);
  if (fault.factor != kPlain.factor) add("factor", fault.factor);
  if (fault.steps != kPlain.steps) add("steps", fault.steps);
  if (fault.for_ms != kPlain.for_ms) add("for_ms", fault.for_ms);
  if (fault.delay_ms != kPlain.delay_ms) add("delay_ms", fault.delay_ms);
  if (fault.jitter_ms != kPlain.jitter_ms) add("jitter_ms", fault.jitter_ms);
  if (fault.then_fail) add("then", "fail");
  if (!fault.file.empty()) add("file", fault.file);
  return std::string(fault_kind_name(fault.kind)) + (fields.empty() ? "" : "@" + fields);
}

std::string faults_text(const std::vector<Fault>& faults) {
  std::string out;
  for (const auto& fault : faults) {
    if (!out.empty()) out += ';';
    out += fault_text(fault);
  }
  return out;
}

Status check_ranks(const std::vector<Fault>& faults, std::int64_t world_size) {
  for (const Fault& fault : faults) {
    if (fault.rank < world_size) continue;
    return error(Code::kInvalidArgument, "{}: the training has {} ranks, counted from 0",
                 fault_text(fault), world_size);
  }
  return {};
}

std::vector<std::string> never_struck(const std::vector<Fault>& faults,
                                      const std::vector<std::string>& struck) {
  std::multiset<std::string> left(struck.begin(), struck.end());
  std::vector<std::string> out;
  for (const Fault& fault : faults) {
    std::string text = fault_text(fault);
    // A fault that is given twice has to strike twice.
    if (const auto strike = left.find(text); strike != left.end()) {
      left.erase(strike);
    } else if (fault.kind != FaultKind::kRecord) {
      out.push_back(std::move(text));
    }
  }
  return out;
}

}  // namespace troupe::train
