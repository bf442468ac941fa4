#include "train/model/model_family.h"

namespace troupe::train {

// Gemma 3 of 4, 12 and 27 billion parameters, which sees pictures, too.
const ModelFamily& gemma3_family() {
  static const ModelFamily kGemma3{.model_type = "gemma3",
                                   .architecture = "Gemma3ForConditionalGeneration",
                                   .text_type = "gemma3_text"};
  return kGemma3;
}

}  // namespace troupe::train
