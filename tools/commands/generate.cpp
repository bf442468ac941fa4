#include "tools/commands/generate.h"

#include <memory>
#include <thread>

#include "tools/commands/hub_names.h"
#include "train/trainer/loaded_model.h"

namespace troupe::tools {
namespace {

struct GenerateOptions {
  std::string model;
  std::vector<std::string> adapters;
  std::string prompt;
  std::uint64_t tokens = 128;
  std::uint64_t seed = 42;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::uint64_t top_k = 0;
  std::uint64_t threads = 0;
};

Status generate(const GenerateOptions& options, CommandContext& context) {
  if (options.model.empty()) {
    return error(Code::kInvalidArgument, "give the model's folder: --model DIR");
  }
  const train::SamplingOptions sampling{.temperature = options.temperature.value_or(0.0),
                                        .top_k = static_cast<std::int64_t>(options.top_k),
                                        .top_p = options.top_p.value_or(1.0)};
  TROUPE_RETURN_IF_ERROR(train::check_sampling(sampling));
  const int threads = options.threads > 0
                          ? static_cast<int>(std::min<std::uint64_t>(options.threads, 1024))
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  auto names = hub_names(context, true);
  const auto folder = TROUPE_TRY(names.model_folder(options.model, {}));
  std::vector<std::string> adapters;
  for (const auto& adapter : options.adapters)
    adapters.push_back(TROUPE_TRY(names.model_folder(adapter, {})));
  auto model = TROUPE_TRY(train::LoadedModel::open(context.files, folder, threads, adapters));
  context.out << options.prompt << std::flush;
  const auto end = TROUPE_TRY(model->generate(
      options.prompt, sampling,
      static_cast<std::int64_t>(std::min<std::uint64_t>(options.tokens, 1u << 20)), options.seed,
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
  Command(app, context, "generate", "Continues a text with a model.")
      .option("--model", options->model, "DIR",
              "folder with config.json, weights and tokenizer, or a name on a hub")
      .repeated("--adapter", options->adapters, "DIR",
                "adapter in PEFT's form, merged in memory; several times: in this order")
      .option("--prompt", options->prompt, "TEXT", "the text to continue")
      .option("--max-tokens", options->tokens, "N", "at most N new tokens (default 128)")
      .option("--temperature", options->temperature, "T",
              "temperature of the random choices (default 0: always the likeliest token)")
      .option("--top-k", options->top_k, "K",
              "choose among the K likeliest tokens (default 0: among all)")
      .option(
          "--top-p", options->top_p, "P",
          "choose among the likeliest tokens whose probabilities sum to P (default 1: among all)")
      .option("--seed", options->seed, "N", "seed of the random choices (default 42)")
      .option("--threads", options->threads, "N",
              "threads to compute with (default: one for each core)")
      .example("troupe generate --model build/runs/pretrain_tiny --prompt 'In the beginning'")
      .example("troupe generate --model BASE --adapter runs/lora --prompt 'In the beginning'")
      .run([options, &context] { return generate(*options, context); });
}

}  // namespace troupe::tools
