#include "train/config/explain.h"

#include <algorithm>

namespace troupe::train {
namespace {

// Longer values are cut in the table; the JSON form has them whole.
constexpr std::size_t kShownMax = 40;

std::string origin_text(const LoadedConfig& loaded, const KeySpec& key, bool& given) {
  for (const auto& [path, origin] : loaded.source.origins) {
    if (canonical_key(path) == key.name) {
      given = true;
      return origin.key.empty() ? origin.to_string() : origin.to_string() + " " + origin.key;
    }
  }
  const auto above = loaded.source.origin_of(key.name);
  given = above.kind != OriginKind::kDefault && key.name.starts_with("troupe.") &&
          json::find(loaded.source.values.at("troupe"), key.name.substr(7)) != nullptr;
  return given ? above.to_string() : Origin().to_string();
}

void add_fact(std::vector<ExplainRow>& rows, std::string key, std::string value, std::string origin,
              std::string note) {
  rows.push_back({std::move(key), std::move(value), std::move(origin), Treatment::kImplemented,
                  std::move(note), true});
}

void add_environment(std::vector<ExplainRow>& rows, const LoadedConfig& loaded) {
  const auto& launch = loaded.launch;
  const auto add = [&](const char* name, const auto& value, const char* note) {
    if (!value) return;
    const auto from = loaded.resolved_from.find(name);
    add_fact(rows, name, fmt::format("{}", *value),
             from == loaded.resolved_from.end() ? "environment" : from->second, note);
  };
  add("NNODES", launch.nnodes, "nodes of the run");
  if (launch.nnodes) add("NODE_RANK", std::optional(launch.node_rank), "this node");
  add("NPROC_PER_NODE", launch.nproc_per_node, "trainers of each node");
  add("MASTER_ADDR", launch.master_addr, "address of node 0");
  add("MASTER_PORT", launch.master_port, "port of node 0");
  add("MAX_RESTARTS", launch.max_restarts, "restart budget, unless troupe.max_restarts is given");
  add("TROUPE_ADDRESS", launch.address, "a running head, unless troupe.address is given");
}

std::string cut(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() <= kShownMax) return text;
  std::size_t end = kShownMax - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// Characters on a terminal: bytes that begin one.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

void pad(std::string& out, const std::string& text, std::size_t width) {
  out += text;
  out.append(width - std::min(width, width_of(text)) + 2, ' ');
}

}  // namespace

std::vector<ExplainRow> explain(const LoadedConfig& loaded) {
  std::vector<ExplainRow> rows;
  const auto resolved = to_json(loaded.config);
  for (const auto& key : key_table()) {
    ExplainRow row;
    row.key = key.name;
    row.origin = origin_text(loaded, key, row.given);
    if (const auto from = loaded.resolved_from.find(key.name);
        !row.given && from != loaded.resolved_from.end()) {
      row.given = true;
      row.origin = from->second;
    }
    const bool ours = key.name.starts_with("troupe.");
    const auto* value = ours ? json::find(*json::find(resolved, "troupe"), key.name.substr(7))
                             : json::find(resolved, key.name);
    const json::Value used = value ? *value : key.default_value;
    row.value = key.secret ? (row.given ? "(hidden)" : "null") : value_text(used);
    auto verdict = verdict_of(key, used);
    if (verdict.treatment == Treatment::kImplemented && key.counts && !key.counts(loaded.config))
      verdict = {Treatment::kInert, key.idle_reason};
    row.treatment = verdict.treatment;
    row.note =
        verdict.treatment == Treatment::kInert ? key.meaning + " — " + verdict.note : verdict.note;
    if (const auto found = loaded.located.find(key.name); found != loaded.located.end())
      row.note += " — " + found->second;
    rows.push_back(std::move(row));
  }
  add_fact(rows, "(world size)", std::to_string(loaded.world_size.value), loaded.world_size.from,
           "trainers of this run");
  add_fact(
      rows, "(effective batch)",
      std::to_string(loaded.config.training.per_device_train_batch_size *
                     loaded.config.training.gradient_accumulation_steps * loaded.world_size.value),
      "derived",
      "sequences of one step: per_device_train_batch_size × gradient_accumulation_steps × world "
      "size");
  add_environment(rows, loaded);
  for (const auto& fact : loaded.facts) {
    // A key or variable whose value stands there already, as it is used.
    const auto there = std::find_if(rows.begin(), rows.end(),
                                    [&](const auto& row) { return row.key == fact.key; });
    const ExplainRow row{fact.key, fact.value, fact.origin, fact.treatment, fact.note, true};
    if (there == rows.end()) {
      rows.push_back(row);
    } else if (fact.treatment == Treatment::kInert) {
      // Another tool's key of the same name, which has no effect in its file.
      *there = row;
    }
  }
  return rows;
}

std::vector<ExplainRow> explain_refused(const LoadedConfig& loaded, const Problems& problems) {
  std::vector<ExplainRow> rows = explain(loaded);
  const json::Value given(loaded.source.values);
  const json::Value* const troupe = json::find(given, "troupe");
  for (ExplainRow& row : rows) {
    if (!problems.has(row.key)) continue;
    row.treatment = Treatment::kRefused;
    row.note = "wrong as it is: the message tells why";
    const KeySpec* key = find_key(row.key);
    const bool ours = row.key.starts_with("troupe.");
    const json::Value* value = ours && troupe ? json::find(*troupe, row.key.substr(7))
                               : ours         ? nullptr
                                              : json::find(given, row.key);
    if (!value || !key || key->secret) continue;
    row.given = true;
    row.value = value_text(*value);
  }
  // Values that are derived from keys which may be wrong are not known.
  std::erase_if(rows, [](const ExplainRow& row) { return row.key.starts_with('('); });
  return rows;
}

std::string explain_table(const std::vector<ExplainRow>& rows, bool all) {
  std::size_t key_width = 3;
  std::size_t value_width = 5;
  std::size_t origin_width = 4;
  for (const auto& row : rows) {
    if (!all && !row.given) continue;
    key_width = std::max(key_width, width_of(row.key));
    value_width = std::max(value_width, width_of(cut(row.value)));
    origin_width = std::max(origin_width, width_of(row.origin));
  }
  std::string out;
  const auto line = [&](const std::string& key, const std::string& value, const std::string& origin,
                        const std::string& treatment, const std::string& note) {
    pad(out, key, key_width);
    pad(out, value, value_width);
    pad(out, origin, origin_width);
    pad(out, treatment, 11);
    out += note + "\n";
  };
  line("key", "value", "from", "treatment", "note");
  for (const auto& row : rows) {
    if (!all && !row.given) continue;
    line(row.key, cut(row.value), row.origin, std::string(treatment_name(row.treatment)), row.note);
  }
  return out;
}

json::Value explain_json(const std::vector<ExplainRow>& rows) {
  json::Array out;
  for (const auto& row : rows) {
    json::Object entry;
    entry["key"] = row.key;
    entry["value"] = row.value;
    entry["origin"] = row.origin;
    entry["treatment"] = std::string(treatment_name(row.treatment));
    entry["note"] = row.note;
    entry["given"] = row.given;
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace troupe::train
