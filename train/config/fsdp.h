#pragma once
// FSDP's settings, from the keys fsdp and fsdp_config (transformers), accelerate's files (keys with
// fsdp_ before them) and its variables (FSDP_…).
//
// Sources: transformers' TrainingArguments (fsdp, fsdp_config), accelerate's
// FullyShardedDataParallelPlugin (0.34 to 1.x).

#include <optional>
#include <string>
#include <vector>

#include "train/config/claims.h"
#include "train/config/foreign_keys.h"
#include "train/config/train_config.h"

namespace troupe::train {

struct FsdpSettings {
  Claim strategy;  // value: a name of troupe.strategy
  // SHARDED_STATE_DICT or FULL_STATE_DICT, where it is given.
  std::optional<Claim> checkpoint_format;
  std::string activation_checkpointing_key;  // by which it is asked for; else empty
  std::optional<Claim> offload;              // where it is asked for: value "parameters"
};

// The words of the key `fsdp`: true, a list, or a text of words between spaces. Nothing where FSDP
// is not asked for (false, "", null). Errors: a word that is none, two strategies.
struct FsdpWords {
  std::string strategy;  // "full_shard", …; empty: by fsdp_config
  bool offload = false;
};
Result<std::optional<FsdpWords>> read_fsdp_words(const json::Value& value);

// Settings whose keys may begin with fsdp_. `words` are those of the key fsdp, where that is the
// source; then a strategy of FSDP1 needs no version. Facts for `--explain` go to `facts`.
struct FsdpSource {
  ShownName shown;     // from "sharding_strategy" to the name the user finds
  std::string origin;  // for facts
  std::optional<FsdpWords> words;
  // accelerate's launcher writes FSDP1's strategy and FSDP2's reshard_after_forward whatever the
  // version, so that the one of the other version says nothing.
  bool from_environment = false;
};
Result<FsdpSettings> read_fsdp(const json::Object& settings, const FsdpSource& source,
                               std::vector<KeyFact>& facts);

// What becomes of every setting.
const ForeignKeys& fsdp_keys();

}  // namespace troupe::train
