#include "tools/commands/generate.h"

#include <memory>

#include "tools/commands/generation_flags.h"

namespace troupe::tools {
namespace {

struct GenerateOptions {
  GenerationFlags flags;
  std::string prompt;
};

Status generate(const GenerateOptions& options, CommandContext& context) {
  const auto sampling = TROUPE_TRY(options.flags.sampling());
  const auto model = TROUPE_TRY(options.flags.open_model(context)).model;
  context.out << options.prompt << std::flush;
  const auto end = TROUPE_TRY(
      model->generate(options.prompt, sampling, options.flags.tokens_max(), options.flags.seed,
                      [&](const std::string& text) { context.out << text << std::flush; }));
  context.out << "\n";
  if (end == train::LoadedModel::GenerationEnd::kContext) {
    context.err << fmt::format(
        "notice: the text ends where the model's context does, at {} tokens with the prompt's\n",
        model->config().max_position_embeddings);
  }
  return {};
}

}  // namespace

void add_generate_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<GenerateOptions>();
  Command command(app, context, "generate", "Continues a text with a model.");
  add_model_flags(command, options->flags);
  command.option("--prompt", options->prompt, "TEXT", "the text to continue");
  add_sampling_flags(command, options->flags);
  command.example("troupe generate --model build/runs/pretrain_tiny --prompt 'In the beginning'")
      .example("troupe generate --model BASE --adapter runs/lora --prompt 'In the beginning'")
      .run([options, &context] { return generate(*options, context); });
}

}  // namespace troupe::tools
