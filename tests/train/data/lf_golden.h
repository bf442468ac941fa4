#pragma once
// LLaMA-Factory's golden values (lf_data_golden): lines of JSON, and the tokenizers they were made
// with.

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "runtime/base/json.h"
#include "tests/train/data/support.h"
#include "train/data/file_text.h"

namespace troupe::train {

// The lines of `name`.jsonl.gz; none where the golden values are absent.
inline std::vector<json::Value> golden_lines(const std::string& name) {
  std::vector<json::Value> out;
  const auto path = tests::test_data("lf_data_golden/" + name + ".jsonl.gz");
  if (!path) return out;
  PosixFileSystem files;
  const auto text = FileText::open(files, *path).value().rest(64 << 20).value();
  json::ParseOptions options;
  options.bytes_max = 64 << 20;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    out.push_back(json::parse(std::string_view(text).substr(at, end - at), name, options).value());
    at = end + 1;
  }
  return out;
}

inline json::Value golden_json(const std::string& name) {
  const auto path = tests::test_data("lf_data_golden/" + name);
  if (!path) return {};
  json::ParseOptions options;
  options.bytes_max = 64 << 20;
  return json::parse(PosixFileSystem().read(*path, 64 << 20).value(), name, options).value();
}

inline std::string text_of(const json::Value& value, std::string_view key) {
  return json::find_string(value, key).value_or("");
}

inline std::vector<TokenId> ints_of(const json::Value& list) {
  std::vector<TokenId> out;
  for (const auto& item : list.as_array())
    out.push_back(static_cast<TokenId>(item.to_number<std::int64_t>()));
  return out;
}

// A record's labels: equal to the ids in the ranges `train`, as `other` says elsewhere.
inline std::vector<TokenId> labels_of(const json::Value& record, const std::vector<TokenId>& ids,
                                      const std::string& prefix = "") {
  std::vector<TokenId> out(ids.size(), -100);
  for (const auto& range : record.at(prefix + "train").as_array()) {
    const auto ends = ints_of(range);
    for (auto i = ends[0]; i < ends[1]; ++i) out[i] = ids[i];
  }
  if (const auto* other = json::find(record, prefix + "other")) {
    for (const auto& one : other->as_array()) {
      const auto pair = ints_of(one);
      out[pair[0]] = pair[1];
    }
  }
  return out;
}

// The tokenizers by name, with tokens that LLaMA-Factory had added to them.
class GoldenTokenizers {
 public:
  // Nothing where its files are absent.
  const Tokenizer* get(const std::string& name, const std::map<TokenId, std::string>& added = {}) {
    const auto key = std::pair(name, added);
    if (const auto known = made_.find(key); known != made_.end()) return &known->second;
    const bool own = !name.starts_with("tok_");  // whether it came with its configuration
    const auto main = tests::test_data(name == "stories260K" ? "stories260K/hf" : name);
    const auto config = own ? main : tests::test_data("lf_data_golden/tokenizers/" + name);
    if (!main || !config) return nullptr;
    PosixFileSystem files;
    auto text = files.read(*main + "/tokenizer.json", 64 << 20).value();
    if (!added.empty()) {
      // In front of the others: the list's order does not matter.
      std::string list;
      for (const auto& [id, token] : added) {
        list += fmt::format(R"({{"id": {}, "content": {}, "single_word": false, "lstrip": false,
          "rstrip": false, "normalized": false, "special": true}},)",
                            id, json::write(json::Value(token)));
      }
      const auto at = text.find('[', text.find("\"added_tokens\""));
      if (text.find_first_not_of(" \n", at + 1) == text.find(']', at)) list.pop_back();
      text.insert(at + 1, list);
    }
    auto tokenizer = Tokenizer::from_text(
        text, files.read(*config + "/tokenizer_config.json", 1 << 20).value(), "", name);
    REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().to_string());
    return &made_.emplace(key, std::move(*tokenizer)).first->second;
  }

 private:
  std::map<std::pair<std::string, std::map<TokenId, std::string>>, Tokenizer> made_;
};

}  // namespace troupe::train
