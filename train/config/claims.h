#pragma once
// Several keys, files and variables may say the same thing; where they do not agree, that is an
// error which names two of them.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "train/config/problems.h"

namespace troupe::train {

struct Claim {
  std::string key;    // as a user finds it: "deepspeed.zero_optimization.stage", "FSDP_VERSION"
  json::Value value;  // what is compared
  std::string shown;  // as it is written there
};

class Claims {
 public:
  // `subject` stands in messages: "the strategy".
  void add(const std::string& subject, Claim claim);
  // The first claim about a subject, or null. One that differs from it becomes a problem.
  const Claim* settle(const std::string& subject, Problems& problems) const;

 private:
  std::map<std::string, std::vector<Claim>> claims_;
};

}  // namespace troupe::train
