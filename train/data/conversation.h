#pragma once
// From a row of a data file to the turns of a conversation.

#include <optional>
#include <string>
#include <string_view>
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
  std::string tools;                // JSON
  std::optional<Message> rejected;  // ranking data: the answer that the last message is better than
  std::optional<bool> desirable;  // data with a kto_tag: whether the last message is a good answer
  // Why the row is no valid sample; empty: it is one. It takes part in mixing, splitting and
  // batches as LLaMA-Factory's do, and is left out when rows are encoded.
  std::string fault;
};

// What formatting openai adds to a system text that says nothing of thinking, as in LLaMA-Factory.
inline constexpr std::string_view kThinkingOff = "detailed thinking off";

// Follows LLaMA-Factory's converters. `needs_answer`: a row without one has a fault. A column of
// the wrong type is a failure that names it.
Result<Conversation> convert_record(const Record& record, const DatasetAttributes& attributes,
                                    bool needs_answer);

}  // namespace troupe::train
