#include "train/data/prompts.h"

#include <algorithm>
#include <optional>

#include "train/data/dataset_info.h"
#include "train/data/load_conversations.h"
#include "train/data/row_threads.h"

namespace troupe::train {
namespace {

Result<PromptRow> encode_row(Conversation conversation, const DataOptions& options,
                             const ChatTemplate& chat, const Tokenizer& tokenizer) {
  if (conversation.messages.size() % 2 == 1)
    conversation.messages.push_back({Role::kAssistant, ""});
  auto turn = TROUPE_TRY(encode_last_answer(chat, tokenizer, conversation,
                                            {.default_system = options.default_system,
                                             .enable_thinking = options.enable_thinking,
                                             .preserve_thinking = options.preserve_thinking}));
  if (chat.efficient_eos) turn.target.push_back(*tokenizer.eos_id());
  const auto [prompt, expected] =
      infer_lengths(std::ssize(turn.source), std::ssize(turn.target), options.cutoff_len);
  turn.source.resize(static_cast<std::size_t>(prompt));
  turn.target.resize(static_cast<std::size_t>(expected));
  return PromptRow{std::move(turn.source), std::move(turn.target)};
}

// num_samples of a data set that is trained on draws before that of one which is predicted on, from
// the same generator.
Status draw_for_training(FileSystem& files, const DataOptions& options, NumpyGlobal& random) {
  const auto draws = [](const DatasetAttributes& set) { return set.num_samples.has_value(); };
  const auto any = [&](const std::vector<std::string>& names) -> Result<bool> {
    return std::ranges::any_of(
        TROUPE_TRY(read_dataset_info(files, options.dataset_dir, names, options.hub_files)), draws);
  };
  if (options.dataset.empty() || !TROUPE_TRY(any(options.eval_dataset)) ||
      !TROUPE_TRY(any(options.dataset)))
    return {};
  EncodeReport unused;
  return load_conversations(files, options, options.dataset, random, unused).status();
}

}  // namespace

Result<PromptModule> build_prompts(FileSystem& files, DataOptions options,
                                   const Tokenizer& tokenizer) {
  auto chat = TROUPE_TRY(choose_template(options.template_name, tokenizer));
  if (options.tool_format) TROUPE_RETURN_IF_ERROR(set_tool_format(chat, *options.tool_format));
  PromptModule out{.rows = {}, .report = {}, .tokenizer = tokenizer, .stop_ids = {}, .notes = {}};
  TROUPE_RETURN_IF_ERROR(fix_special_tokens(chat, out.tokenizer, out.notes));
  out.stop_ids.push_back(*out.tokenizer.eos_id());
  for (const std::string& word : chat.stop_words)
    if (const auto id = out.tokenizer.token_id(word)) out.stop_ids.push_back(*id);
  NumpyGlobal random(options.seed);
  TROUPE_RETURN_IF_ERROR(draw_for_training(files, options, random));
  options.answers_optional = true;
  auto conversations =
      TROUPE_TRY(load_conversations(files, options, options.eval_dataset, random, out.report));
  std::erase_if(conversations, [](const Conversation& row) { return !row.fault.empty(); });
  std::vector<std::optional<Result<PromptRow>>> made(conversations.size());
  for_each_row(made.size(), [&](std::size_t i) {
    made[i] = encode_row(std::move(conversations[i]), options, chat, out.tokenizer);
  });
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!made[i]->ok()) return made[i]->status().prefixed(fmt::format("sample {}", i));
    out.rows.push_back(std::move(**made[i]));
  }
  if (out.report.records_dropped > 0) {
    out.notes.push_back(fmt::format("{} of {} rows were dropped as invalid",
                                    out.report.records_dropped, out.report.records));
  }
  for (const auto& warning : out.report.warnings) out.notes.push_back(warning);
  return out;
}

}  // namespace troupe::train
