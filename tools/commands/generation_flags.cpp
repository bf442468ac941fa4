#include "tools/commands/generation_flags.h"

#include <thread>

#include "tools/commands/hub_names.h"

namespace troupe::tools {

Result<train::SamplingOptions> GenerationFlags::sampling() const {
  const train::SamplingOptions options{.repetition_penalty = repetition_penalty.value_or(1.0),
                                       .temperature = temperature.value_or(0.0),
                                       .top_k = static_cast<std::int64_t>(top_k),
                                       .top_p = top_p.value_or(1.0)};
  TROUPE_RETURN_IF_ERROR(train::check_sampling(options));
  return options;
}

std::int64_t GenerationFlags::tokens_max() const {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(tokens, 1u << 20));
}

Result<std::unique_ptr<train::LoadedModel>> GenerationFlags::open_model(
    CommandContext& context) const {
  if (model.empty()) return error(Code::kInvalidArgument, "give the model's folder: --model DIR");
  auto names = hub_names(context, true);
  const auto folder = TROUPE_TRY(names.model_folder(model, {}));
  std::vector<std::string> adapter_folders;
  for (const auto& adapter : adapters)
    adapter_folders.push_back(TROUPE_TRY(names.model_folder(adapter, {})));
  const int count = threads > 0
                        ? static_cast<int>(std::min<std::uint64_t>(threads, 1024))
                        : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return train::LoadedModel::open(context.files, folder, count, adapter_folders);
}

void add_model_flags(Command& command, GenerationFlags& flags) {
  command
      .option("--model", flags.model, "DIR",
              "folder with config.json, weights and tokenizer, or a name on a hub")
      .repeated("--adapter", flags.adapters, "DIR",
                "adapter in PEFT's form, merged in memory; several times: in this order");
}

void add_sampling_flags(Command& command, GenerationFlags& flags) {
  command
      .option("--max-tokens", flags.tokens, "N",
              fmt::format("at most N new tokens (default {})", flags.tokens))
      .option("--temperature", flags.temperature, "T",
              "temperature of the random choices (default 0: always the likeliest token)")
      .option("--repetition-penalty", flags.repetition_penalty, "P",
              "divide the logits of tokens that were there by P (default 1: not)")
      .option("--top-k", flags.top_k, "K",
              "choose among the K likeliest tokens (default 0: among all)")
      .option(
          "--top-p", flags.top_p, "P",
          "choose among the likeliest tokens whose probabilities sum to P (default 1: among all)")
      .option("--seed", flags.seed, "N", "seed of the random choices (default 42)")
      .option("--threads", flags.threads, "N",
              "threads to compute with (default: one for each core)");
}

}  // namespace troupe::tools
