#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "train/model/model_config.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/grown_vocabulary.h"
#include "train/trainer/trained_part.h"

namespace troupe::train {

// What a run begins with, as far as it can be read at once and without changing anything.
struct RunContents {
  // The small files of the model's folder, by name.
  std::map<std::string, std::string> companions;
  std::optional<ModelConfig> model;
  TrainedPart trained;                   // of the model
  std::optional<Tokenizer> tokenizer;    // nothing: one is trained
  std::optional<GrownVocabulary> grown;  // the model has rows that its folder lacks
  std::string resume_path;               // empty: from the beginning
  std::vector<std::string> notes;        // of the search for it
};
struct ContentProblem {
  std::string key;  // of the configuration
  Status status;
  bool of_settings = false;  // settings contradict each other, whatever the files hold
};

}  // namespace troupe::train
