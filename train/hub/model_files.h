#pragma once
// Which files of a model's repository a training or an export needs.

#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::train::hub {

struct ModelFiles {
  bool weights = true;  // false: configuration and tokenizer alone
  std::string folder;   // within the repository: of an adapter that lies deeper
};

// Configuration, tokenizer and, in safetensors, weights: of several sets of weights (whole, and as
// the maker's own `consolidated` files) transformers' one. kNotFound where the repository has none
// in safetensors, naming what it has.
Result<std::vector<std::string>> model_files(const std::vector<std::string>& all,
                                             const ModelFiles& wanted);

}  // namespace troupe::train::hub
