#include "train/data/chat_template.h"

#include <algorithm>

namespace troupe::train {
namespace {

constexpr std::string_view kThoughtBegin = "<think>\n";
constexpr std::string_view kThoughtEnd = "\n</think>\n\n";

// Slots with the message filled in.
void apply(const std::vector<Slot>& slots, std::string_view content, std::vector<Slot>& out) {
  constexpr std::string_view placeholder = "{{content}}";
  for (Slot slot : slots) {
    if (const auto at = slot.text.find(placeholder); at != std::string::npos) {
      slot.text.replace(at, placeholder.size(), content);
    }
    out.push_back(std::move(slot));
  }
}

Status encode_slots(const Tokenizer& tokenizer, const std::vector<Slot>& slots,
                    std::vector<TokenId>& out) {
  for (const auto& slot : slots) {
    if (slot.kind == Slot::Kind::kText) {
      if (!slot.text.empty()) TROUPE_RETURN_IF_ERROR(tokenizer.encode_to(slot.text, false, out));
    } else {
      const auto id = slot.kind == Slot::Kind::kBos ? tokenizer.bos_id() : tokenizer.eos_id();
      if (id) out.push_back(*id);  // a tokenizer without the token leaves it out
    }
  }
  return {};
}

const std::vector<Slot>& slots_of(const ChatTemplate& chat, Role role) {
  return role == Role::kUser        ? chat.user
         : role == Role::kAssistant ? chat.assistant
                                    : chat.observation;
}

bool uses(const ChatTemplate& chat, const std::string& token) {
  for (const auto* slots :
       {&chat.user, &chat.assistant, &chat.system, &chat.observation, &chat.prefix}) {
    for (const auto& slot : *slots) {
      if (slot.text.find(token) != std::string::npos) return true;
    }
  }
  return false;
}

bool has_thought_words(const std::string& text) {
  return text.find("<think>") != std::string::npos || text.find("</think>") != std::string::npos;
}

// Takes every <think>…</think> out, and the line ends in front of what is left.
std::string without_thoughts(std::string text) {
  for (std::size_t at = 0; (at = text.find(kThoughtBegin, at)) != std::string::npos;) {
    const auto end = text.find(kThoughtEnd, at + kThoughtBegin.size());
    if (end == std::string::npos) break;
    text.erase(at, end + kThoughtEnd.size() - at);
  }
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

Status refuse_tools(const Conversation& conversation) {
  bool calls = !conversation.tools.empty();
  for (const auto& message : conversation.messages) calls |= message.role == Role::kFunction;
  if (!calls) return {};
  return error(Code::kUnsupported,
               "tool descriptions and function calls are not supported: take them out of the data "
               "set");
}

Result<std::vector<std::vector<TokenId>>> encode_messages(const ChatTemplate& chat,
                                                          const Tokenizer& tokenizer,
                                                          const std::vector<Message>& messages,
                                                          const std::string& system) {
  std::vector<std::vector<TokenId>> out;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    std::vector<Slot> elements;
    std::string content = messages[i].content;
    if (i == 0) {
      elements = chat.prefix;
      if (!system.empty()) {
        std::vector<Slot> filled;
        apply(chat.system, system, filled);
        if (chat.style == ChatTemplate::Style::kInFirst) {
          content = filled.front().text + content;
        } else {
          elements.insert(elements.end(), filled.begin(), filled.end());
        }
      }
    }
    apply(slots_of(chat, messages[i].role), content, elements);
    out.emplace_back();
    TROUPE_RETURN_IF_ERROR(encode_slots(tokenizer, elements, out.back()));
  }
  return out;
}

}  // namespace

Result<ChatTemplate> choose_template(const std::optional<std::string>& name,
                                     const Tokenizer& tokenizer) {
  if (name) return chat_template(*name);
  if (!tokenizer.chat_template()) return chat_template("empty");
  std::string names;
  for (const auto& known : chat_template_names()) names += (names.empty() ? "" : ", ") + known;
  return error(Code::kUnsupported,
               "template is not given, and the tokenizer's chat_template (Jinja) cannot be "
               "rendered: give template: one of {}",
               names);
}

Status fix_special_tokens(const ChatTemplate& chat, Tokenizer& tokenizer,
                          std::vector<std::string>& notes) {
  const auto needs = [&](const std::string& token, const Status& status) {
    return status.ok() ? status
                       : status.prefixed(fmt::format("template {} needs '{}'", chat.name, token));
  };
  for (std::size_t i = 0; i < chat.stop_words.size(); ++i) {
    const auto& word = chat.stop_words[i];
    if (i == 0 && chat.replace_eos) {
      const auto before = tokenizer.eos_id();
      TROUPE_RETURN_IF_ERROR(needs(word, tokenizer.set_eos(word)));
      if (before != tokenizer.eos_id()) notes.push_back("Replace eos token: " + word);
    } else if (uses(chat, word) || tokenizer.token_id(word)) {
      TROUPE_RETURN_IF_ERROR(needs(word, tokenizer.add_special_token(word)));
    }
  }
  if (!tokenizer.eos_id()) {
    const Status status = tokenizer.set_eos("<|endoftext|>");
    if (!status.ok()) {
      return status.prefixed(
          "the tokenizer names no end token (eos_token in tokenizer_config.json), and the one "
          "taken instead is missing");
    }
    notes.push_back("Add eos token: <|endoftext|>");
  }
  if (!tokenizer.pad_id()) {
    const auto eos = *tokenizer.token(*tokenizer.eos_id());
    TROUPE_RETURN_IF_ERROR(tokenizer.set_pad(eos));
    notes.push_back("Add pad token: " + eos);
  }
  return {};
}

Result<std::vector<EncodedTurn>> encode_conversation(const ChatTemplate& chat,
                                                     const Tokenizer& tokenizer,
                                                     const Conversation& conversation,
                                                     const EncodeOptions& options) {
  TROUPE_RETURN_IF_ERROR(refuse_tools(conversation));
  auto messages = conversation.messages;
  const bool reasoning = chat.style == ChatTemplate::Style::kReasoning;
  for (std::size_t i = 1; reasoning && i < messages.size(); i += 2) {
    const bool last = i + 1 >= messages.size();
    if (!options.enable_thinking || (options.discard_history_thoughts && !last)) {
      messages[i].content = without_thoughts(messages[i].content);
    }
  }
  const std::string system = !conversation.system.empty()
                                 ? conversation.system
                                 : options.default_system.value_or(chat.default_system);
  auto encoded = TROUPE_TRY(encode_messages(chat, tokenizer, messages, system));
  std::vector<EncodedTurn> out;
  for (std::size_t i = 0; i + 1 < encoded.size(); i += 2) {
    const bool last = i + 2 >= encoded.size();
    if (reasoning && (last || !options.discard_history_thoughts) &&
        !has_thought_words(messages[i + 1].content)) {
      const auto thought = TROUPE_TRY(
          tokenizer.encode(std::string(kThoughtBegin) + std::string(kThoughtEnd), false));
      if (options.enable_thinking) {
        encoded[i + 1].insert(encoded[i + 1].begin(), thought.begin(), thought.end());
      } else {
        encoded[i].insert(encoded[i].end(), thought.begin(), thought.end());
      }
    }
    out.push_back({std::move(encoded[i]), std::move(encoded[i + 1])});
  }
  return out;
}

}  // namespace troupe::train
