#pragma once
// A tokenizer whose ids are known without computing them, and data sets in temporary folders.

#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "train/data/build_dataset.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {

// Bytes only, no merges: the i-th special token has id i, a byte b has the id special count + b.
inline Tokenizer byte_tokenizer(std::vector<std::string> special, const std::string& config) {
  TrainedBpe trained;
  trained.special_tokens = std::move(special);
  return Tokenizer::from_text(tokenizer_json_of(trained), config, "", "t").value();
}

inline std::vector<TokenId> byte_ids(const std::string& text, TokenId special_count) {
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(special_count + static_cast<unsigned char>(c));
  return out;
}

// Ids of literal pieces and single ids joined.
inline std::vector<TokenId> join(const std::vector<std::vector<TokenId>>& parts) {
  std::vector<TokenId> out;
  for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

inline std::vector<TokenId> ids_of(const TokenDataset& dataset, std::int64_t sample) {
  const auto ids = dataset.ids(sample);
  return {ids.begin(), ids.end()};
}

inline std::vector<TokenId> labels_of(const TokenDataset& dataset, std::int64_t sample) {
  const auto labels = dataset.labels(sample);
  return {labels.begin(), labels.end()};
}

struct DataFolder {
  tests::TemporaryDirectory directory;
  PosixFileSystem files;
  DataFolder& write(const std::string& name, const std::string& content) {
    std::ofstream(directory.file(name), std::ios::binary) << content;  // no need to sync it
    return *this;
  }
  DataOptions options(DataOptions::Stage stage, std::vector<std::string> names) const {
    DataOptions out;
    out.stage = stage;
    out.dataset = std::move(names);
    out.dataset_dir = directory.path();
    out.template_name = "empty";
    return out;
  }
};

}  // namespace troupe::train
