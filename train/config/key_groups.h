#pragma once
// The table of keys by subject, as help texts show it.

#include <string>
#include <vector>

#include "train/config/keys.h"

namespace troupe::train {

struct KeyGroup {
  std::string title;  // "Model", "Training"
  std::vector<KeySpec> keys;
};
// All rows of key_table(), in its order.
std::vector<KeyGroup> key_groups();
// Whether a training obeys the key: keys of `troupe export` alone, and those that have no effect or
// are refused, are not for its help.
bool acts_in_training(const KeySpec& key);

}  // namespace troupe::train
