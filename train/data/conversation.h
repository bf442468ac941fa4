#pragma once
// From a row of a data file to the turns of a conversation.

#include <string>
#include <variant>
#include <vector>

#include "train/data/dataset_info.h"
#include "train/data/records.h"

namespace troupe::train {

enum class Role { kUser, kAssistant, kObservation, kFunction };

struct Message {
  Role role = Role::kUser;
  std::string content;
};

// The turns in order. Fit for SFT: an even number, user or observation first, then assistant or
// function, alternating. For pre-training only the first one's content counts.
struct Conversation {
  std::vector<Message> messages;
  std::string system;
  std::string tools;
};

// A row that LLaMA-Factory drops with a warning, and why.
struct Dropped {
  std::string reason;
};

// Follows LLaMA-Factory's converters. `for_sft`: a row without an answer is dropped. A column of
// the wrong type is a failure that names it.
Result<std::variant<Conversation, Dropped>> convert_record(const Record& record,
                                                           const DatasetAttributes& attributes,
                                                           bool for_sft);

}  // namespace troupe::train
