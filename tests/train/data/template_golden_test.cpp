// Ids and labels of every template equal LLaMA-Factory's, for each tokenizer, variant and
// conversation of its golden values.

#include "tests/train/data/lf_golden.h"
#include "train/data/chat_template.h"
#include "train/data/tool_formats.h"

namespace troupe::train {
namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

Role role_of(const std::string& role) {
  return role == "user"        ? Role::kUser
         : role == "assistant" ? Role::kAssistant
         : role == "function"  ? Role::kFunction
                               : Role::kObservation;
}

// A conversation with the template's own words in it.
Conversation conversation_of(const json::Value& told, const ChatTemplate& chat) {
  Conversation out;
  for (const auto& message : told.at("messages").as_array()) {
    auto content = text_of(message, "content");
    replace_all(content, "{T0}", chat.thought_begin);
    replace_all(content, "{T1}", chat.thought_end);
    replace_all(content, "{C0}", chat.call_begin);
    replace_all(content, "{C1}", chat.call_end);
    out.messages.push_back({role_of(text_of(message, "role")), content});
  }
  out.system = text_of(told, "system");
  out.tools = text_of(told, "tools");
  return out;
}

SupervisedOptions variant_options(const std::string& variant) {
  SupervisedOptions out;
  const auto has = [&](const char* word) { return variant.find(word) != std::string::npos; };
  if (has("cut64")) out.cutoff_len = 64;
  if (has("cut16")) out.cutoff_len = 16;
  if (variant == "cut5") out.cutoff_len = 5;
  out.train_on_prompt = has("train_on_prompt");
  out.mask_history = has("mask_history");
  if (has("no_thinking")) out.encode.enable_thinking = false;
  if (has("thinking_none")) out.encode.enable_thinking = std::nullopt;
  out.encode.preserve_thinking = has("preserve");
  out.encode.tool_date = "15 Jan 2026";
  return out;
}

// Tokens that LLaMA-Factory added to a tokenizer: those of its arguments, then the template's.
std::map<TokenId, std::string> added_tokens(const json::Value& made) {
  std::map<TokenId, std::string> added;
  for (const auto& [token, id] : made.at("added").as_object())
    added[static_cast<TokenId>(id.as_int64())] = std::string(token);
  auto given = json::find_string(made.at("model_args"), "add_special_tokens").value_or("");
  const auto count = given.empty() ? 0 : std::count(given.begin(), given.end(), ',') + 1;
  auto id = static_cast<TokenId>(made.at("vocab_before").as_int64() - count);
  for (; !given.empty(); ++id) {
    added[id] = given.substr(0, given.find(','));
    given.erase(0, std::min(added[id].size() + 1, given.size()));
  }
  return added;
}

// The templates with their tokenizers, ready for use.
class Templates {
 public:
  explicit Templates(const json::Value& root) : root_(root) {}

  struct Ready {
    ChatTemplate chat;
    Tokenizer tokenizer;
  };
  // Nothing where the tokenizer's files are absent.
  const Ready* get(const std::string& name, const std::string& tokenizer) {
    const auto key = std::pair(name, tokenizer);
    if (const auto known = ready_.find(key); known != ready_.end()) return &known->second;
    const auto& told = root_.at("text").at(name);
    const auto* made = json::find(told.at("tokenizers"), tokenizer);
    const auto* base =
        tokenizers_.get(tokenizer, made ? added_tokens(*made) : std::map<TokenId, std::string>());
    if (!base) return nullptr;
    const auto chat = chat_template(name).value();
    if (!made) {  // as LLaMA-Factory adds stop words
      std::map<TokenId, std::string> added;
      for (const auto& word : chat.stop_words) {
        if (!base->token_id(word))
          added[static_cast<TokenId>(base->vocab_size() + std::ssize(added))] = word;
      }
      base = tokenizers_.get(tokenizer, added);
    }
    // Templates with the same words change the tokenizer alike.
    std::string words = tokenizer + (chat.replace_eos ? " eos" : "");
    for (const auto& word : chat.stop_words) words += " " + word;
    if (made && !made->at("model_args").as_object().empty()) words += " " + name;
    auto fixed = fixed_.find(words);
    if (fixed == fixed_.end()) {
      fixed = fixed_.emplace(words, *base).first;
      std::vector<std::string> notes;
      const auto status = fix_special_tokens(chat, fixed->second, notes);
      CHECK_MESSAGE(status.ok(), status.to_string());
    }
    Ready out{chat, fixed->second};
    if (made) check_words(told, *made, out);
    return &ready_.emplace(key, std::move(out)).first->second;
  }

 private:
  // The tokens and the Jinja text that the template gives the tokenizer.
  static void check_words(const json::Value& told, const json::Value& made, const Ready& ready) {
    CHECK(ready.tokenizer.token(*ready.tokenizer.eos_id()) == text_of(made, "eos"));
    CHECK(ready.tokenizer.token(*ready.tokenizer.pad_id()) == text_of(made, "pad"));
    CHECK(json::find_bool(told, "replace_jinja_template") == ready.chat.replace_jinja);
    const bool kept = ready.tokenizer.chat_template() && !ready.chat.replace_jinja;
    if (!kept && made.as_object().contains("chat_template"))
      CHECK(jinja_template(ready.chat, ready.tokenizer, std::nullopt) ==
            json::find_string(made, "chat_template"));
  }

  const json::Value& root_;
  std::map<std::string, Tokenizer> fixed_;
  GoldenTokenizers tokenizers_;
  std::map<std::pair<std::string, std::string>, Ready> ready_;
};

// What `record` says of a conversation, against what is made of it here.
void check(const json::Value& record, const Conversation& conversation, const ChatTemplate& chat,
           const Tokenizer& tokenizer, const SupervisedOptions& options) {
  const bool fails = json::find(record, "error") != nullptr;
  if (text_of(record, "variant").starts_with("predict")) {
    const auto turn = encode_last_answer(chat, tokenizer, conversation, options.encode);
    REQUIRE(turn.ok() != fails);
    if (fails) return;
    auto target = turn->target;
    if (chat.efficient_eos) target.push_back(*tokenizer.eos_id());
    CHECK(turn->source == ints_of(record.at("ids")));
    CHECK(target == ints_of(record.at("labels")));
    return;
  }
  TokenDataset made(TokenDataset::Kind::kSupervised, 0);
  EncodeReport report;
  const auto status =
      encode_supervised(std::span(&conversation, 1), chat, tokenizer, options, made, report);
  REQUIRE_MESSAGE(status.ok() != fails, status.to_string());
  if (fails) return;
  REQUIRE(made.size() == 1);
  const auto ids = ints_of(record.at("ids"));
  CHECK(ids_of(made, 0) == ids);
  CHECK(labels_of(made, 0) == labels_of(record, ids));
}

void check_templates(const json::Value& root, const json::Value& conversations,
                     Templates& templates, bool everything) {
  std::set<std::string> seen;
  int compared = 0;
  for (const auto& record : golden_lines("template_ids")) {
    const auto name = text_of(record, "template"), tokenizer = text_of(record, "tokenizer");
    const auto variant = text_of(record, "variant"), said = text_of(record, "conv");
    // Large tokenizers, and every one that tokens are added to, take long to read.
    const auto& made = root.at("text").at(name).at("tokenizers").at(tokenizer);
    const bool quick =
        tokenizer == "stories260K" ||
        (tokenizer != "tok_qwen2" && tokenizer != "tok_llama3" &&
         made.at("added").as_object().empty() && made.at("model_args").as_object().empty());
    if (!everything && !quick) continue;
    const auto* ready = templates.get(name, tokenizer);
    if (!ready) continue;
    CAPTURE(name);
    CAPTURE(tokenizer);
    CAPTURE(variant);
    CAPTURE(said);
    seen.insert(name);
    ++compared;
    if (said == "*") {
      CHECK(ready->chat.efficient_eos);  // with train_on_prompt: refused
      continue;
    }
    check(record, conversation_of(conversations.at(said), ready->chat), ready->chat,
          ready->tokenizer, variant_options(variant));
  }
  CHECK(seen.size() >= (everything ? 73 : 50));
  CHECK(compared == (everything ? 5849 : 3177));
}

TEST_CASE("arguments that are the text of an object are that object in every format") {
  for (const auto& format : tool_format_names()) {
    CAPTURE(format);
    const auto object =
        write_calls(format, R"({"name": "f", "arguments": {"a": "x", "b": [1]}})", {});
    const auto text =
        write_calls(format, R"({"name": "f", "arguments": "{\"a\": \"x\", \"b\": [1]}"})", {});
    REQUIRE(object.ok());
    CHECK(object.value() == text.value());
  }
  CHECK(write_calls("qwen", R"({"name": "f", "arguments": "Paris"})", {}).value() ==
        "<tool_call>\n{\"name\": \"f\", \"arguments\": \"Paris\"}\n</tool_call>");
}

// Keys tool_format and default_system.
void check_overrides(const json::Value& conversations, Templates& templates) {
  std::set<std::string> formats;
  for (const auto& record : golden_lines("template_overrides")) {
    const auto name = text_of(record, "template"), said = text_of(record, "conv");
    const auto& over = record.at("over");
    const auto format = json::find_string(over, "tool_format");
    CAPTURE(name);
    CAPTURE(said);
    CAPTURE(format.value_or(""));
    auto chat = chat_template(name).value();
    if (format && !is_tool_format(*format)) {  // gemma4 belongs to a multimodal template
      CHECK((*format == "gemma4" || *format == "nonesuch"));
      CHECK(set_tool_format(chat, *format).code() == Code::kNotFound);
      continue;
    }
    const auto* ready = templates.get(name, text_of(record, "tokenizer"));
    if (!ready) continue;
    auto options = variant_options("base");
    options.encode.default_system = json::find_string(over, "default_system");
    if (format) {
      REQUIRE(set_tool_format(chat, *format).ok());
      formats.insert(*format);
    }
    check(record, conversation_of(conversations.at(said), chat), chat, ready->tokenizer, options);
  }
  CHECK(formats.size() == tool_format_names().size());
}

void check_golden_templates(bool everything) {
  const auto root = golden_json("templates.json");
  if (root.is_null()) return;
  const auto conversations = golden_json("inputs/conversations.json");
  Templates templates(root);
  check_templates(root, conversations, templates, everything);
  if (everything) check_overrides(conversations, templates);
}

TEST_CASE("templates: ids and labels equal LLaMA-Factory's") { check_golden_templates(false); }

TEST_CASE("long: templates: all ids and labels equal LLaMA-Factory's" * doctest::skip()) {
  check_golden_templates(true);
}

}  // namespace
}  // namespace troupe::train
