#include "tools/commands/chat.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "tools/commands/generation_flags.h"
#include "tools/commands/hub_names.h"
#include "tools/commands/noted_signals.h"
#include "tools/commands/trained_before.h"
#include "train/config/load.h"
#include "train/data/chat_template.h"

namespace troupe::tools {
namespace {

struct ChatOptions {
  GenerationFlags flags{.tokens_default = 1024};
  std::optional<std::string> template_name;
  std::string system;
  std::vector<std::string> config;  // a file of LLaMA-Factory's, and settings
  train::EncodeOptions encode;
};

// The keys that count, or name how LLaMA-Factory would compute the same.
constexpr std::string_view kChatKeys[] = {"adapter_folder",
                                          "adapter_name_or_path",
                                          "cache_dir",
                                          "default_system",
                                          "do_sample",
                                          "enable_thinking",
                                          "finetuning_type",
                                          "hf_hub_token",
                                          "infer_backend",
                                          "length_penalty",
                                          "max_length",
                                          "max_new_tokens",
                                          "model_name_or_path",
                                          "model_revision",
                                          "num_beams",
                                          "quantization_bit",
                                          "repetition_penalty",
                                          "seed",
                                          "skip_special_tokens",
                                          "temperature",
                                          "template",
                                          "top_k",
                                          "top_p",
                                          "trust_remote_code"};

// What `llamafactory-cli chat` takes from its file: model, adapters, template, and how answers are
// drawn (hparams/generating_args.py of 0.9.5 has these defaults). Flags are stronger.
Status take_config(ChatOptions& options, CommandContext& context) {
  if (!options.flags.model.empty())
    return error(Code::kInvalidArgument,
                 "--model and the file {} both name a model; leave one of them out",
                 options.config.front());
  auto names = hub_names(context, true);
  const auto loaded = TROUPE_TRY(
      train::load_train_config(options.config, context.environment, context.files,
                               {.purpose = train::LoadPurpose::kChat, .locate = locating(names)}));
  for (const std::string& warning : loaded.warnings) context.err << "warning: " << warning << "\n";
  const train::TrainConfig& config = loaded.config;
  options.flags.model = config.model.model_name_or_path;
  options.flags.adapters = config.finetuning.adapter_name_or_path;
  if (!options.template_name) options.template_name = config.data.template_name;
  options.encode.default_system = config.data.default_system;
  options.encode.enable_thinking = config.data.enable_thinking;
  const train::PredictionSection& wanted = config.prediction;
  const std::pair<const char*, bool> refused[] = {
      {"num_beams", wanted.num_beams > 1},
      {"max_length", wanted.max_new_tokens <= 0},
      {"skip_special_tokens", !wanted.skip_special_tokens},
      {"quantization_bit", config.model.quantization_bit.has_value()}};
  for (const auto& [key, is_wanted] : refused) {
    if (is_wanted)
      return error(Code::kUnsupported, "{} is not supported by chat; leave the key out", key);
  }
  if (!options.flags.temperature)
    options.flags.temperature = wanted.do_sample ? wanted.temperature : 0.0;
  if (!options.flags.top_p) options.flags.top_p = wanted.top_p;
  if (options.flags.top_k == 0)
    options.flags.top_k = static_cast<std::uint64_t>(std::max<std::int64_t>(0, wanted.top_k));
  if (!options.flags.repetition_penalty)
    options.flags.repetition_penalty = wanted.repetition_penalty;
  options.flags.tokens_default = static_cast<std::uint64_t>(wanted.max_new_tokens);
  if (const auto seed = json::find_integer(json::Value(loaded.source.values), "seed");
      seed && *seed >= 0 && options.flags.seed == GenerationFlags::kSeed)
    options.flags.seed = static_cast<std::uint64_t>(*seed);
  std::string unused;
  for (const auto& member : loaded.source.values) {
    const std::string_view key = member.key();
    if (std::ranges::find(kChatKeys, key) == std::end(kChatKeys))
      unused += fmt::format("{}{}", unused.empty() ? "" : ", ", key);
  }
  if (!unused.empty()) context.err << "notice: of no effect on a chat: " << unused << "\n";
  // The file of a training, perhaps: it is the untrained model that answers.
  context.err << trained_before(context.files, loaded);
  return {};
}

// A conversation with a model, as its template writes one.
class Chat {
 public:
  static Result<Chat> start(const GenerationFlags::Opened& opened, const ChatOptions& options,
                            CommandContext& context) {
    Chat chat(*opened.model, options, TROUPE_TRY(options.flags.sampling()), context);
    TROUPE_RETURN_IF_ERROR(chat.take_template(opened.adapter_folders));
    std::vector<std::string> notes;  // of a training
    TROUPE_RETURN_IF_ERROR(train::fix_special_tokens(chat.template_, chat.tokenizer_, notes));
    chat.conversation_.system = options.system;
    if (const auto end = chat.tokenizer_.eos_id()) chat.stop_ids_.push_back(*end);
    for (const auto& word : chat.template_.stop_words)
      if (const auto id = chat.tokenizer_.token_id(word)) chat.stop_ids_.push_back(*id);
    return chat;
  }

  void clear() { conversation_.messages.clear(); }

  // Writes the answer as it comes, until a signal stops it. What fails leaves the conversation as
  // it was.
  Status answer(const std::string& message, NotedSignals& stop) {
    train::Conversation asked = conversation_;
    asked.messages.push_back({train::Role::kUser, message});
    // The answer that is to come stands for itself: what is before it is the prompt.
    asked.messages.push_back({train::Role::kAssistant, ""});
    const auto turns =
        TROUPE_TRY(train::encode_conversation(template_, tokenizer_, asked, options_.encode));
    std::vector<train::TokenId> prompt;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      prompt.insert(prompt.end(), turns[i].source.begin(), turns[i].source.end());
      if (i + 1 < turns.size())
        prompt.insert(prompt.end(), turns[i].target.begin(), turns[i].target.end());
    }
    std::string& text = asked.messages.back().content;
    stop.forget();
    const auto end = TROUPE_TRY(model_.generate({.prompt = std::move(prompt),
                                                 .stop_ids = stop_ids_,
                                                 .sampling = sampling_,
                                                 .tokens_max = options_.flags.tokens_max(),
                                                 .seed = options_.flags.seed,
                                                 .is_stopped = [&] { return stop.last() != 0; }},
                                                [&](const std::string& piece) {
                                                  text += piece;
                                                  context_.out << piece << std::flush;
                                                }));
    context_.out << "\n" << std::flush;
    if (end == train::LoadedModel::GenerationEnd::kContext)
      context_.err << "notice: the model's context is full; /clear begins anew\n";
    conversation_ = std::move(asked);
    return {};
  }

 private:
  // The named one, else what the tokenizer's chat_template says.
  Status take_template(const std::vector<std::string>& adapter_folders) {
    if (options_.template_name) {
      template_ = TROUPE_TRY(train::chat_template(*options_.template_name));
      return {};
    }
    const std::string of_adapter = TROUPE_TRY(take_text_of(adapter_folders));
    auto trained = train::template_behind_jinja(tokenizer_);
    if (trained) {
      context_.err << "notice: turns are written by template " << trained->name << ", as "
                   << (of_adapter.empty() ? "the model's chat_template" : of_adapter)
                   << " says; --template NAME takes another\n";
      template_ = std::move(*trained);
      return {};
    }
    if (!of_adapter.empty())
      context_.err << "notice: turns are written by " << of_adapter
                   << "; --template NAME takes another\n";
    if (!tokenizer_.chat_template())
      context_.err << "notice: the tokenizer has no template, and none is given: turns follow each "
                      "other without marks; --template NAME takes one\n";
    template_ = TROUPE_TRY(train::choose_template(std::nullopt, tokenizer_));
    return {};
  }

  // An adapter answers as it was trained to be asked: the text beside the last of them that has
  // one is stronger than the model's. Its path; empty where none has one.
  Result<std::string> take_text_of(const std::vector<std::string>& adapter_folders) {
    for (auto folder = adapter_folders.rbegin(); folder != adapter_folders.rend(); ++folder) {
      std::string path = join_path(*folder, "chat_template.jinja");
      auto text = context_.files.read(path, limits::kJsonFileBytesMax);
      if (text.status().code() == Code::kNotFound) continue;
      tokenizer_.set_chat_template(TROUPE_TRY(std::move(text)));
      return path;
    }
    return std::string();
  }

  Chat(train::LoadedModel& model, const ChatOptions& options, train::SamplingOptions sampling,
       CommandContext& context)
      : model_(model),
        options_(options),
        sampling_(sampling),
        context_(context),
        tokenizer_(model.tokenizer()) {}

  train::LoadedModel& model_;
  const ChatOptions& options_;
  train::SamplingOptions sampling_;
  CommandContext& context_;
  train::Tokenizer tokenizer_;
  train::ChatTemplate template_;
  train::Conversation conversation_;
  std::vector<train::TokenId> stop_ids_;
};

Status chat(ChatOptions& options, CommandContext& context) {
  // `troupe chat DIR` can only mean that model.
  if (!options.config.empty() && options.flags.model.empty() &&
      context.files.list(options.config.front()).ok()) {
    if (options.config.size() == 1) {
      options.flags.model = options.config.front();
      options.config.clear();
    } else {
      options.config.front().insert(0, "model_name_or_path=");
    }
  }
  if (!options.config.empty()) TROUPE_RETURN_IF_ERROR(take_config(options, context));
  const auto opened = TROUPE_TRY(options.flags.open_model(context));
  auto conversation = TROUPE_TRY(Chat::start(opened, options, context));
  const bool talks = context.out_is_terminal && ::isatty(STDIN_FILENO) == 1;
  // Ctrl-C stops an answer. What waits for a line goes on waiting.
  NotedSignals stop({SIGINT});
  if (talks)
    context.out
        << "/clear (or clear) forgets the conversation, /exit (or exit) or Ctrl-D ends it.\n";
  Status failed;  // of a script, whose next answers would be others: until it begins anew
  for (std::string line;;) {
    if (talks) context.out << "> " << std::flush;
    if (!std::getline(context.in, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    // (The words without a stroke are those of `llamafactory-cli chat`.)
    if (line == "/exit" || line == "exit") break;
    if (line == "/clear" || line == "clear") {
      conversation.clear();
      if (!failed.ok()) context.err << "error: " << failed.message() << "\n";
      failed = {};
    } else if (!failed.ok()) {
      continue;
    } else if (line.starts_with('/') && talks) {
      context.err << "there are /clear and /exit\n";
    } else if (line.find_first_not_of(" \t") != std::string::npos) {
      const Status answered = conversation.answer(line, stop);
      if (!answered.ok() && talks) context.err << answered.message() << " (/clear begins anew)\n";
      if (!talks) failed = answered;
    }
  }
  if (talks) context.out << "\n";
  return failed;
}

}  // namespace

void add_chat_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ChatOptions>();
  Command command(app, context, "chat", "Talks with a model at the terminal.");
  add_model_flags(command, options->flags);
  command
      .option(
          "--template", options->template_name, "NAME",
          "how a conversation is written, as a training's template (default: the last adapter's\n"
          "chat_template.jinja, else the model's tokenizer's)")
      .option("--system", options->system, "TEXT", "the system's text (default: the template's)")
      .arguments("config", options->config, "DIR|FILE.yaml [KEY=VALUE]...",
                 "the model's folder, or a file of `llamafactory-cli chat`, in place of --model");
  add_sampling_flags(command, options->flags);
  command.example("troupe chat --model build/runs/sft --template llama3")
      .example("troupe chat --model BASE --adapter runs/lora --template qwen --temperature 0.7")
      .example("troupe chat inference.yaml temperature=0.2")
      .note(
          "Each line is a message; the answer appears as it comes, Ctrl-C stops it. /clear "
          "forgets\n"
          "the conversation, /exit or Ctrl-D ends it. Where standard input is no terminal, its "
          "lines\n"
          "are the messages and standard output has the answers alone.")
      .run([options, &context] { return chat(*options, context); });
}

}  // namespace troupe::tools
