#include "tools/commands/generation_flags.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "tools/commands/hub_names.h"
#include "tools/commands/plan.h"

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
  const std::uint64_t most = tokens != kNotGiven ? tokens : tokens_default;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(most, 1u << 20));
}

namespace {

// The model that the adapter in `folder` was trained over; nothing where it is no adapter's folder,
// or does not say.
std::optional<std::string> model_of_adapter(FileSystem& files, const std::string& folder) {
  if (files.exists(join_path(folder, "config.json"))) return {};
  const auto text = files.read(join_path(folder, "adapter_config.json"), limits::kJsonFileBytesMax);
  if (!text.ok()) return {};
  const auto config = json::parse(*text, "adapter_config.json");
  if (!config.ok()) return {};
  auto name = json::find_string(*config, "base_model_name_or_path");
  if (!name || name->empty()) return {};
  return std::string(*name);
}

}  // namespace

Result<GenerationFlags::Opened> GenerationFlags::open_model(CommandContext& context) const {
  if (model.empty()) return error(Code::kInvalidArgument, "give the model's folder: --model DIR");
  auto names = hub_names(context, true);
  std::string base = model;
  std::vector<std::string> adapter_folders;
  if (const auto below = model_of_adapter(context.files, model)) {
    context.err << fmt::format(
        "notice: {} is an adapter: over {}, as its adapter_config.json has it\n", model, *below);
    base = *below;
    adapter_folders.push_back(model);
  }
  const auto folder = TROUPE_TRY(names.model_folder(base, {}));
  for (const auto& adapter : adapters) {
    auto adapter_folder = names.model_folder(adapter, {});
    if (!adapter_folder.ok()) return adapter_folder.status().prefixed("adapter");
    adapter_folders.push_back(std::move(*adapter_folder));
  }
  const int count = threads > 0 ? static_cast<int>(std::min<std::uint64_t>(threads, 1024))
                                : cores_here(context.files);
  auto opened = TROUPE_TRY(train::LoadedModel::open(context.files, folder, count, adapter_folders));
  return Opened{std::move(opened), std::move(adapter_folders)};
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
              fmt::format("at most N new tokens (default {})", flags.tokens_default))
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
