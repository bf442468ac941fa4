#include "train/data/conversation_encoder.h"

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/base/suggest.h"
#include "train/data/token_dataset.h"
#include "train/data/tokenizer_template.h"

namespace troupe::train {
namespace {

// What a turn's content is exchanged for to find where it lies, as in Axolotl.
constexpr const char* kOtherContent = "[[dummy_message]]";
// How far behind the content the token that ends the turn may stand.
constexpr std::int64_t kEndDistanceMax = 3;

struct RenderedTurn {
  std::string role, content;
};
struct Turn {
  RenderedTurn rendered;
  std::optional<bool> trained;  // where the data say so
};

// Where a turn's content lies in the ids, [begin, end).
struct Span {
  std::int64_t begin = 0, end = 0;
};

class ConversationEncoder final : public RowEncoder {
 public:
  ConversationEncoder(const RowSource& source, const Tokenizer& tokenizer,
                      TokenizerTemplate chat_template, std::set<TokenId> eot)
      : source_(source),
        tokenizer_(tokenizer),
        template_(std::move(chat_template)),
        eot_(std::move(eot)) {}

  Status encode(const Record& row, std::vector<TokenRow>& out) const override {
    const auto turns = TROUPE_TRY(turns_of(row));
    std::vector<RenderedTurn> rendered;
    for (const auto& turn : turns) rendered.push_back(turn.rendered);
    TokenRow sample;
    sample.ids = TROUPE_TRY(ids_of(rendered));
    sample.labels.assign(sample.ids.size(), kIgnoredLabel);
    TROUPE_RETURN_IF_ERROR(label(turns, rendered, sample));
    out.push_back(std::move(sample));
    return {};
  }

 private:
  Result<std::vector<TokenId>> ids_of(const std::vector<RenderedTurn>& turns) const {
    json::Array messages;
    for (const auto& [role, content] : turns)
      messages.push_back({{"role", role}, {"content", content}});
    return tokenizer_.encode(TROUPE_TRY(template_.render(messages, false, {})).text, false);
  }

  Result<std::vector<Turn>> turns_of(const Record& row) const {
    const auto* messages = row.if_contains(source_.field_messages);
    if (!messages || messages->is_null())
      return error(Code::kInvalidArgument,
                   "Messages is null. Please check `field_messages`. ('{}')",
                   source_.field_messages);
    json::Value parsed;
    if (messages->is_string()) {
      parsed = TROUPE_TRY(json::parse(std::string(messages->get_string()), source_.field_messages));
      messages = &parsed;
    }
    if (!messages->is_array() || messages->get_array().empty())
      return error(Code::kInvalidArgument, "the column '{}' must be a list of messages, is {}",
                   source_.field_messages, json::write(*messages).substr(0, 60));
    std::vector<Turn> out;
    for (const auto& message : messages->get_array())
      out.push_back(TROUPE_TRY(turn_of(message, out.size())));
    if (out.front().rendered.role != "system") {
      if (const auto system = TROUPE_TRY(text_column(row, source_.field_system)))
        out.insert(out.begin(), Turn{{"system", *system}, std::nullopt});
    }
    if (source_.drop_system_message && out.front().rendered.role == "system")
      out.erase(out.begin());
    return out;
  }

  Result<Turn> turn_of(const json::Value& message, std::size_t index) const {
    const auto role = json::find_string(message, source_.role_column);
    const auto content = json::find_string(message, source_.content_column);
    if (!role || !content) {
      return error(Code::kInvalidArgument,
                   "message {} of the column '{}' must have the strings '{}' and '{}', is {}",
                   index, source_.field_messages, source_.role_column, source_.content_column,
                   json::write(message).substr(0, 60));
    }
    const auto known = source_.roles.find(*role);
    Turn out{{known == source_.roles.end() ? *role : known->second, *content}, std::nullopt};
    if (source_.message_field_training.empty()) return out;
    const auto* trained = json::find(message, source_.message_field_training);
    if (!trained || trained->is_null()) return out;
    if (!trained->is_bool())
      return error(Code::kInvalidArgument, "message {}: '{}' must be true or false, is {}", index,
                   source_.message_field_training, json::write(*trained).substr(0, 60));
    out.trained = trained->get_bool();
    return out;
  }

  // Nothing where the turn renders to no text of its own.
  Result<std::optional<Span>> span_of(const std::vector<RenderedTurn>& turns,
                                      std::size_t index) const {
    std::vector<RenderedTurn> until(turns.begin(),
                                    turns.begin() + static_cast<std::ptrdiff_t>(index) + 1);
    const auto full = TROUPE_TRY(ids_of(until));
    until.back().content = kOtherContent;
    const auto other = TROUPE_TRY(ids_of(until));
    const auto shorter = std::min(full.size(), other.size());
    std::size_t front = 0;
    while (front < shorter && full[front] == other[front]) ++front;
    std::size_t back = 0;
    while (back < shorter && full[full.size() - 1 - back] == other[other.size() - 1 - back]) ++back;
    if (front == shorter || back == shorter) return std::optional<Span>();
    const Span span{static_cast<std::int64_t>(front),
                    static_cast<std::int64_t>(full.size() - back)};
    return span.end > span.begin ? std::optional(span) : std::nullopt;
  }

  // The place of the first of `tokens` from `from`, where it is near; else −1.
  static std::int64_t end_near(const std::vector<TokenId>& ids, std::int64_t from,
                               const std::set<TokenId>& tokens) {
    const auto size = std::ssize(ids);
    for (auto at = std::max<std::int64_t>(from, 0); at < size; ++at) {
      if (!tokens.contains(ids[static_cast<std::size_t>(at)])) continue;
      return at - from <= kEndDistanceMax ? at : -1;
    }
    return -1;
  }

  Status label(const std::vector<Turn>& turns, const std::vector<RenderedTurn>& rendered,
               TokenRow& sample) const {
    const auto train = [&](std::int64_t at) {
      if (at < std::ssize(sample.ids))
        sample.labels[static_cast<std::size_t>(at)] = sample.ids[static_cast<std::size_t>(at)];
    };
    const auto on_eos = source_.train_on_eos;
    const auto on_eot = source_.train_on_eot.value_or(on_eos);
    std::set<TokenId> eos;
    if (tokenizer_.eos_id()) eos.insert(*tokenizer_.eos_id());
    std::int64_t last_eot = -1, last_eos = -1;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const auto& roles = source_.roles_to_train;
      const bool by_role = source_.train_on_inputs ||
                           std::find(roles.begin(), roles.end(), rendered[i].role) != roles.end();
      const bool trained = turns[i].trained.value_or(by_role);
      if (!trained && on_eos != TurnEnds::kAll && on_eot != TurnEnds::kAll) continue;
      const auto span = TROUPE_TRY(span_of(rendered, i));
      if (!span) continue;
      if (trained)
        for (auto at = span->begin; at < span->end; ++at) train(at);
      const auto end = [&](const std::set<TokenId>& tokens, TurnEnds when, std::int64_t& last) {
        const auto at = end_near(sample.ids, span->end, tokens);
        if (at < 0) return;
        last = at;
        if (when == TurnEnds::kAll || (when == TurnEnds::kTurn && trained)) train(at);
      };
      end(eot_, on_eot, last_eot);
      end(eos, on_eos, last_eos);
    }
    if (on_eot == TurnEnds::kLast && last_eot >= 0) train(last_eot);
    if (on_eos == TurnEnds::kLast && last_eos >= 0) train(last_eos);
    return {};
  }

  RowSource source_;
  Tokenizer tokenizer_;
  TokenizerTemplate template_;
  std::set<TokenId> eot_;
};

// Axolotl's names that are not rendered here.
constexpr const char* kOthers[] = {"aya",
                                   "cohere",
                                   "command_a",
                                   "command_a_tool_use",
                                   "command_a_rag",
                                   "deepseek_v2",
                                   "deepseek_v3",
                                   "exaone",
                                   "exaone4",
                                   "falcon_h1",
                                   "gemma3n",
                                   "gemma4",
                                   "jamba",
                                   "llama3_2_vision",
                                   "llama4",
                                   "llava",
                                   "metharme",
                                   "mistral_v1",
                                   "mistral_v2v3",
                                   "mistral_v3_tekken",
                                   "mistral_v7_tekken",
                                   "nemotron_h",
                                   "phi_35",
                                   "phi_4",
                                   "pixtral",
                                   "qwen2_vl",
                                   "qwen3",
                                   "qwen3_5"};

Result<TokenizerTemplate> choose_template(const RowSource& source, const Tokenizer& tokenizer) {
  constexpr std::string_view kDefault = "tokenizer_default";
  const std::string there = join_words(axolotl_template_names());
  std::string name = source.chat_template;
  if (name == "jinja") {
    if (source.chat_template_jinja.empty())
      return error(Code::kInvalidArgument,
                   "`chat_template` is `jinja`, and chat_template_jinja gives no text");
    return TokenizerTemplate::parse(source.chat_template_jinja, "chat_template_jinja", tokenizer);
  }
  if (name.starts_with(kDefault)) {
    if (tokenizer.chat_template())
      return TokenizerTemplate::parse(*tokenizer.chat_template(), "the tokenizer's chat_template",
                                      tokenizer);
    if (name == kDefault) {
      return error(Code::kInvalidArgument,
                   "`chat_template choice is tokenizer_default but tokenizer's chat_template is "
                   "null. Please add a chat_template in tokenizer config");
    }
    name =
        name.substr(std::min(name.size(), kDefault.size() + std::string_view("_fallback_").size()));
  }
  if (const std::string jinja = axolotl_template_jinja(name); !jinja.empty())
    return TokenizerTemplate::parse(jinja, "chat_template=" + name, tokenizer);
  if (std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers)) {
    return error(Code::kUnsupported,
                 "chat_template={} is not supported: that template is not rendered yet; use one of "
                 "{}",
                 name, there);
  }
  return error(Code::kInvalidArgument, "Template '{}' not found.{} The templates here are {}", name,
               did_you_mean(name, axolotl_template_names()), there);
}

}  // namespace

Result<std::unique_ptr<RowEncoder>> make_conversation_encoder(const RowSource& source,
                                                              const Tokenizer& tokenizer,
                                                              std::vector<std::string>& notes) {
  auto chosen = TROUPE_TRY(choose_template(source, tokenizer));
  const std::string jinja = chosen.source();
  std::vector<std::string> words;
  const std::string eos =
      tokenizer.eos_id() ? tokenizer.token(*tokenizer.eos_id()).value_or("") : std::string();
  if (source.eot_tokens) {
    words = *source.eot_tokens;
  } else if (!eos.empty()) {
    words = {eos};
  }
  const auto in_template = [&](const std::string& word) {
    return jinja.find(word) != std::string::npos;
  };
  std::set<TokenId> eot;
  const bool only_eos = words.size() == 1 && words.front() == eos;
  if (only_eos && !in_template(eos) && !in_template("eos_token")) {
    notes.push_back(fmt::format(
        "EOS token '{}' not found in chat_template; the turn terminator won't be trained. Set "
        "`eot_tokens` to your template's turn-ending token.",
        eos));
  }
  for (const auto& word : words) {
    if (!only_eos && !in_template(word)) {
      notes.push_back(fmt::format("EOT token '{}' not found in chat_template.", word));
      continue;
    }
    const auto ids = TROUPE_TRY(tokenizer.encode(word, false));
    if (ids.size() == 1) {
      eot.insert(ids.front());
    } else if (!only_eos) {
      return error(
          Code::kInvalidArgument,
          "EOT token '{}' is encoded as multiple tokens: {} of them. Name one token of the "
          "vocabulary",
          word, ids.size());
    }
  }
  const auto on_eot = source.train_on_eot.value_or(source.train_on_eos);
  if (!only_eos && on_eot != source.train_on_eos &&
      std::find(words.begin(), words.end(), eos) != words.end()) {
    return error(Code::kInvalidArgument,
                 "Conflict between train_on_eos and train_on_eot. eos_token is in eot_tokens and "
                 "train_on_eos != train_on_eot");
  }
  return std::unique_ptr<RowEncoder>(
      std::make_unique<ConversationEncoder>(source, tokenizer, std::move(chosen), std::move(eot)));
}

}  // namespace troupe::train
