#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe tokenizer FILE… --out DIR --vocab-size N`: trains a byte-level BPE tokenizer.
void add_tokenizer_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools
