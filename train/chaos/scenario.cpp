#include "train/chaos/scenario.h"

#include <algorithm>

#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kNodesMax = 16;

Result<std::vector<Fault>> scenario_entry(const json::Value& value) {
  if (value.is_string()) return parse_faults(std::string_view(value.get_string()));
  return std::vector<Fault>{TROUPE_TRY(fault_from_json(value))};
}

Result<std::int64_t> whole_key(const json::Value& value, std::string_view key, std::int64_t least,
                               std::int64_t most) {
  if (!value.is_int64() || value.get_int64() < least || value.get_int64() > most) {
    return error(Code::kInvalidArgument, "{}: a whole number from {} to {} is wanted, not {}", key,
                 least, most, json::write(value));
  }
  return value.get_int64();
}

}  // namespace

Result<Scenario> scenario_from_json(const json::Value& document, std::vector<Fault> more) {
  if (!document.is_object()) {
    return error(Code::kInvalidArgument, "a scenario is a mapping with the key 'faults'");
  }
  Scenario scenario;
  bool embedded = false;
  const std::vector<std::string> keys = {"seed", "faults", "cluster", "nodes"};
  for (const auto& member : document.get_object()) {
    const std::string key(member.key());
    const json::Value& value = member.value();
    if (key == "seed") {
      scenario.seed =
          static_cast<std::uint64_t>(TROUPE_TRY(whole_key(value, key, 0, 1'000'000'000'000)));
    } else if (key == "nodes") {
      scenario.nodes = TROUPE_TRY(whole_key(value, key, 1, kNodesMax));
      scenario.loopback = true;
    } else if (key == "cluster") {
      if (value != "embedded" && value != "loopback") {
        return error(Code::kInvalidArgument, "cluster: {} is neither embedded nor loopback",
                     json::write(value));
      }
      embedded = value == "embedded";
      scenario.loopback = scenario.loopback || !embedded;
    } else if (key == "faults") {
      if (!value.is_array()) {
        return error(Code::kInvalidArgument, "faults: a list is wanted, not {}",
                     json::write(value));
      }
      for (std::size_t i = 0; i < value.get_array().size(); ++i) {
        auto faults = scenario_entry(value.get_array()[i]);
        if (!faults.ok()) return faults.status().prefixed(fmt::format("faults[{}]", i));
        for (auto& fault : *faults) scenario.faults.push_back(std::move(fault));
      }
    } else {
      return error(Code::kInvalidArgument, "unknown key '{}'; one of {}{}", key, join_words(keys),
                   did_you_mean(key, keys));
    }
  }
  for (auto& fault : more) scenario.faults.push_back(std::move(fault));
  if (scenario.faults.empty()) {
    return error(Code::kInvalidArgument, "a scenario without faults strikes nothing");
  }
  for (const Fault& fault : scenario.faults) {
    if (!needs_cluster(fault)) continue;
    scenario.loopback = true;
    if (embedded) {
      return error(Code::kInvalidArgument,
                   "{}: an embedded cluster has no such part; cluster: loopback",
                   fault_text(fault));
    }
    if (fault.node >= scenario.nodes) {
      return error(Code::kInvalidArgument, "{}: there are {} nodes, counted from 0",
                   fault_text(fault), scenario.nodes);
    }
  }
  if (embedded && scenario.loopback) {
    return error(Code::kInvalidArgument, "nodes belongs to cluster: loopback");
  }
  return scenario;
}

}  // namespace troupe::train
