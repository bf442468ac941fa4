#pragma once
// AITraining (autotrain): its YAML, and the flags of `aitraining llm --train …`. Both are the
// fields of its LLMTrainingParams under other names, so that they become one flat document first.

#include <span>
#include <string>

#include "train/config/foreign_keys.h"
#include "train/config/load.h"
#include "train/config/problems.h"
#include "train/config/source.h"
#include "train/config/translation.h"

namespace troupe::train {

// The table that says what becomes of every field (model, lr, …).
const ForeignKeys& aitraining_keys();

// Whether a name is one of the YAML's outermost keys or a field.
bool is_aitraining_key(const std::string& name);

// The fields of a YAML document (task, base_model, data.path, params.lr, …), each with its place
// and its name there. What is unknown or missing becomes a problem of `yaml`.
SourceDocument aitraining_fields(const SourceDocument& yaml, Problems& problems);

// The fields that the flags after `aitraining llm` give: `--train --model M --data-path D …`,
// kebab or snake case, `--flag value` or `--flag=value`, booleans bare. kInvalidArgument names
// every argument that is wrong; kUnsupported: --deploy, --inference, --interactive.
Result<SourceDocument> aitraining_flags(std::span<const std::string> arguments);

// A document of ours from fields.
Translation translate_aitraining(const SourceDocument& fields, const TranslationContext& context,
                                 Problems& problems);

// A run from the arguments of `aitraining`: `--config FILE.yaml [overrides]`, or
// `llm --train FLAGS`. Other commands (chat, tui, api, app, setup, tasks that train no language
// model) are kUnsupported by name.
Result<LoadedConfig> load_aitraining(std::span<const std::string> arguments,
                                     const Environment& environment, FileSystem& files,
                                     const LoadOptions& options = {});

}  // namespace troupe::train
