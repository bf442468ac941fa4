#pragma once
// Axolotl's YAML: its keys (axolotl_keys.cpp), and the same run in ours.
//
// What Axolotl does that has no key in LLaMA-Factory is a setting of ours under troupe
// (troupe.datasets, troupe.sample_packing, troupe.step_rules, …), which the translation gives
// and train/data and derived.h implement: nothing is done here that a run would not say in its own
// configuration.

#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "train/config/foreign_keys.h"
#include "train/config/problems.h"
#include "train/config/source.h"
#include "train/config/translation.h"

namespace troupe::train {

// The tables that say what becomes of every key, and of every key of a data set.
const ForeignKeys& axolotl_keys();
const ForeignKeys& axolotl_dataset_keys();

// Axolotl's own DeepSpeed files, by the path that its users write ("deepspeed_configs/zero2.json");
// null: there is no such file.
json::Value axolotl_deepspeed(std::string_view path);

// `problems` is about `theirs`. What is refused is left out of the document.
Translation translate_axolotl(const SourceDocument& theirs, const TranslationContext& context,
                              Problems& problems);

}  // namespace troupe::train
