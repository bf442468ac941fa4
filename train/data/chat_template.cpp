#include "train/data/chat_template.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "train/data/chat_template_row.h"
#include "train/data/tokenizer_template.h"
#include "train/data/tool_formats.h"

namespace troupe::train {
namespace {

// Slots as the table writes them (chat_template_row.h).
std::vector<Slot> parse_slots(std::string_view text) {
  constexpr std::string_view kToken = "{{token:";
  std::vector<Slot> out;
  bool open = false;  // the last slot is a text that goes on
  const auto mark = [&](std::string_view word, Slot::Kind kind, std::string token = {}) {
    text.remove_prefix(word.size());
    out.push_back({kind, std::move(token)});
    open = false;
  };
  while (!text.empty()) {
    if (text.starts_with("{{bos}}")) {
      mark("{{bos}}", Slot::Kind::kBos);
    } else if (text.starts_with("{{eos}}")) {
      mark("{{eos}}", Slot::Kind::kEos);
    } else if (text.starts_with(kToken)) {
      const auto whole = text.substr(0, text.find("}}") + 2);
      const auto token = whole.substr(kToken.size(), whole.size() - kToken.size() - 2);
      mark(whole, Slot::Kind::kToken, std::string(token));
    } else if (text.starts_with("{{|}}")) {
      text.remove_prefix(5);
      open = false;
    } else {
      if (!open) out.push_back({});
      open = true;
      const auto end = std::min(text.find("{{", 1), text.size());
      out.back().text += text.substr(0, end);
      text.remove_prefix(end);
    }
  }
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

const char* answer_slots(bool efficient_eos) {
  return efficient_eos ? "{{content}}" : "{{content}}{{eos}}";
}

ChatTemplate from_row(const ChatTemplateRow& row) {
  const auto or_else = [](const char* given, const char* other) { return given ? given : other; };
  const char* assistant = or_else(row.assistant, answer_slots(row.efficient_eos));
  ChatTemplate out;
  out.name = row.name;
  out.style = row.style;
  out.prefix = parse_slots(row.prefix);
  out.system = parse_slots(row.system);
  out.user = parse_slots(row.user);
  out.assistant = parse_slots(assistant);
  out.observation = parse_slots(or_else(row.observation, row.user));
  out.function = parse_slots(or_else(row.function, assistant));
  out.tools = parse_slots(row.tools);
  out.tool_format = row.tool_format;
  out.default_system = row.default_system;
  out.stop_words = words_of(row.stop_words);
  out.thought_begin = row.thought_begin;
  out.thought_end = row.thought_end;
  out.empty_thought = row.empty_thought ? row.empty_thought : out.thought_begin + out.thought_end;
  out.call_begin = row.call_begin;
  out.call_end = row.call_end;
  out.replace_eos = row.replace_eos;
  out.efficient_eos = row.efficient_eos;
  out.replace_jinja = row.replace_jinja;
  return out;
}

void replace_first(std::string& text, std::string_view placeholder, std::string_view value) {
  if (const auto at = text.find(placeholder); at != std::string::npos)
    text.replace(at, placeholder.size(), value);
}

// Slots with the message, and a user's turn's number, filled in.
void apply(const std::vector<Slot>& slots, std::string_view content, std::vector<Slot>& out,
           const std::string& number = {}) {
  for (Slot slot : slots) {
    if (slot.kind == Slot::Kind::kText) {
      replace_first(slot.text, "{{content}}", content);
      // Of a text that the message brought, too, as in LLaMA-Factory.
      if (!number.empty()) replace_first(slot.text, "{{idx}}", number);
    }
    out.push_back(std::move(slot));
  }
}

Status encode_slots(const Tokenizer& tokenizer, const std::vector<Slot>& slots,
                    std::vector<TokenId>& out) {
  for (const auto& slot : slots) {
    if (slot.kind == Slot::Kind::kText) {
      if (!slot.text.empty()) TROUPE_RETURN_IF_ERROR(tokenizer.encode_to(slot.text, false, out));
      continue;
    }
    const auto id = slot.kind == Slot::Kind::kBos   ? tokenizer.bos_id()
                    : slot.kind == Slot::Kind::kEos ? tokenizer.eos_id()
                                                    : tokenizer.token_id(slot.text);
    if (id) out.push_back(*id);  // a tokenizer without the token leaves it out
  }
  return {};
}

bool uses(const ChatTemplate& chat, const std::string& token) {
  for (const auto* slots : {&chat.user, &chat.assistant, &chat.system, &chat.function,
                            &chat.observation, &chat.prefix}) {
    for (const auto& slot : *slots) {
      if (slot.text.find(token) != std::string::npos) return true;
    }
  }
  return false;
}

std::string_view stripped(std::string_view word) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto begin = word.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return word.substr(begin, word.find_last_not_of(kBlanks) - begin + 1);
}

bool has_thought_words(const ChatTemplate& chat, const std::string& text) {
  return text.find(stripped(chat.thought_begin)) != std::string::npos ||
         text.find(stripped(chat.thought_end)) != std::string::npos;
}

// Takes every thought out, and the line ends in front of what is left.
void drop_thoughts(const ChatTemplate& chat, std::string& text) {
  for (std::size_t at = 0; (at = text.find(chat.thought_begin, at)) != std::string::npos;) {
    const auto end = text.find(chat.thought_end, at + chat.thought_begin.size());
    if (end == std::string::npos) break;
    text.erase(at, end + chat.thought_end.size() - at);
  }
  text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
}

// The system message with the description of tools behind it.
Result<std::string> system_text(const ChatTemplate& chat, const Conversation& conversation,
                                const EncodeOptions& options) {
  std::string out = !conversation.system.empty()
                        ? conversation.system
                        : options.default_system.value_or(chat.default_system);
  if (conversation.tools.empty()) return out;
  if (chat.tools.empty()) {
    return out +
           TROUPE_TRY(describe_tools(chat.tool_format, conversation.tools, options.tool_date));
  }
  std::vector<Slot> filled;
  apply(chat.tools, conversation.tools, filled);
  return out + filled.front().text;
}

Result<std::string> call_text(const ChatTemplate& chat, const std::string& content) {
  CallWords words;  // not looked for where the system text stands in the first message
  if (chat.style != ChatTemplate::Style::kInFirst)
    words = {chat.thought_begin, chat.thought_end, chat.call_begin, chat.call_end};
  return write_calls(chat.tool_format, content, words);
}

Result<std::vector<std::vector<TokenId>>> encode_messages(const ChatTemplate& chat,
                                                          const Tokenizer& tokenizer,
                                                          const std::vector<Message>& messages,
                                                          const Conversation& conversation,
                                                          const EncodeOptions& options) {
  const bool in_first = chat.style == ChatTemplate::Style::kInFirst;
  std::vector<std::vector<TokenId>> out;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    std::vector<Slot> elements;
    std::string content = messages[i].content;
    if (i == 0) {
      elements = chat.prefix;
      const auto system = TROUPE_TRY(system_text(chat, conversation, options));
      if (!system.empty() || !conversation.tools.empty()) {
        std::vector<Slot> filled;
        apply(chat.system, system, filled);
        if (in_first) {
          content = filled.front().text + content;
        } else {
          elements.insert(elements.end(), filled.begin(), filled.end());
        }
      }
    }
    switch (messages[i].role) {
      case Role::kUser:
        apply(chat.user, content, elements, in_first ? std::string() : std::to_string(i / 2));
        break;
      case Role::kAssistant:
        apply(chat.assistant, content, elements);
        break;
      case Role::kObservation:
        apply(chat.observation, content, elements);
        break;
      case Role::kFunction: {
        auto calls = call_text(chat, content);
        if (!calls) return calls.status().prefixed(fmt::format("message {}", i));
        apply(chat.function, *calls, elements);
        break;
      }
    }
    out.emplace_back();
    TROUPE_RETURN_IF_ERROR(encode_slots(tokenizer, elements, out.back()));
  }
  return out;
}

// Adds the empty thought that an answer without one gets.
Status add_thought(const ChatTemplate& chat, const Tokenizer& tokenizer, const std::string& answer,
                   bool trained, EncodedTurn& turn) {
  if (has_thought_words(chat, answer)) return {};
  const auto thought = TROUPE_TRY(tokenizer.encode(chat.empty_thought, false));
  auto& to = trained ? turn.target : turn.source;
  to.insert(trained ? to.begin() : to.end(), thought.begin(), thought.end());
  return {};
}

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const auto& row : chat_template_rows()) names.emplace_back(row.name);
  return names;
}

Result<ChatTemplate> chat_template(std::string_view name) {
  for (const auto& row : chat_template_rows()) {
    if (row.name == name) return from_row(row);
  }
  const auto names = chat_template_names();
  return error(Code::kNotFound, "Template {} does not exist. (known: {}){}", name,
               join_words(names), did_you_mean(name, names));
}

Status set_tool_format(ChatTemplate& chat, const std::string& format) {
  if (!is_tool_format(format)) return describe_tools(format, "[]", "").status();
  chat.tool_format = format;
  chat.tools.clear();
  chat.function = parse_slots(answer_slots(chat.efficient_eos));
  return {};
}

Result<ChatTemplate> choose_template(const std::optional<std::string>& name,
                                     const Tokenizer& tokenizer) {
  if (name) return chat_template(*name);
  if (tokenizer.chat_template()) return template_of_tokenizer(tokenizer);
  auto empty = TROUPE_TRY(chat_template("empty"));
  empty.note =
      "`template` was not specified and the tokenizer has none, use `empty` template: turns follow "
      "each other without marks";
  return empty;
}

Status fix_special_tokens(const ChatTemplate& chat, Tokenizer& tokenizer,
                          std::vector<std::string>& notes) {
  if (!chat.note.empty()) notes.push_back(chat.note);
  // All that is missing is named at once.
  std::vector<std::string> missing;
  const auto lacks = [&](const std::string& token) {
    if (!tokenizer.token_id(token) && std::ranges::find(missing, token) == missing.end())
      missing.push_back(token);
  };
  const auto needs = [&](const std::string& token, const Status& status) {
    if (status.ok()) return status;
    lacks(token);
    for (const auto* slots : {&chat.prefix, &chat.system, &chat.user, &chat.observation}) {
      for (const auto& slot : *slots)
        if (slot.kind == Slot::Kind::kToken) lacks(slot.text);
    }
    return status.prefixed(
        fmt::format("template {} needs '{}', which a training adds to tokenizer and embedding by "
                    "`add_special_tokens: {}`",
                    chat.name, join_words(missing, "', '"), join_words(missing, ",")));
  };
  for (const auto* slots : {&chat.prefix, &chat.system, &chat.user, &chat.observation}) {
    for (const auto& slot : *slots) {
      if (slot.kind != Slot::Kind::kToken) continue;
      TROUPE_RETURN_IF_ERROR(needs(slot.text, tokenizer.add_special_token(slot.text)));
    }
  }
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
  if (chat.own) return encode_by_tokenizer_template(*chat.own, tokenizer, conversation, options);
  auto messages = conversation.messages;
  const bool reasoning = chat.style == ChatTemplate::Style::kReasoning;
  const bool last_only = options.mask_history && !options.preserve_thinking;
  for (std::size_t i = 1; reasoning && i < messages.size(); i += 2) {
    if (options.enable_thinking == false || (last_only && i + 1 < messages.size()))
      drop_thoughts(chat, messages[i].content);
  }
  auto encoded = TROUPE_TRY(encode_messages(chat, tokenizer, messages, conversation, options));
  std::vector<EncodedTurn> out;
  for (std::size_t i = 0; i + 1 < encoded.size(); i += 2) {
    out.push_back({std::move(encoded[i]), std::move(encoded[i + 1])});
    EncodedTurn& turn = out.back();
    if (reasoning && (i + 2 >= encoded.size() || !last_only)) {
      TROUPE_RETURN_IF_ERROR(add_thought(chat, tokenizer, messages[i + 1].content,
                                         options.enable_thinking == true, turn));
    }
  }
  return out;
}

Result<EncodedTurn> encode_last_answer(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                       const Conversation& conversation,
                                       const EncodeOptions& options) {
  if (chat.own) {
    auto turns =
        TROUPE_TRY(encode_by_tokenizer_template(*chat.own, tokenizer, conversation, options));
    EncodedTurn out;
    for (std::size_t i = 0; i + 1 < turns.size(); ++i) {
      for (const auto* ids : {&turns[i].source, &turns[i].target})
        out.source.insert(out.source.end(), ids->begin(), ids->end());
    }
    out.source.insert(out.source.end(), turns.back().source.begin(), turns.back().source.end());
    out.target = std::move(turns.back().target);
    return out;
  }
  auto messages = conversation.messages;
  const bool reasoning = chat.style == ChatTemplate::Style::kReasoning;
  for (std::size_t i = 1; reasoning && i < messages.size(); i += 2) {
    const bool last = i + 1 >= messages.size();
    if (last ? options.enable_thinking == false : !options.preserve_thinking)
      drop_thoughts(chat, messages[i].content);
  }
  auto encoded = TROUPE_TRY(encode_messages(chat, tokenizer, messages, conversation, options));
  EncodedTurn out;
  for (std::size_t i = 0; i + 1 < encoded.size(); ++i)
    out.source.insert(out.source.end(), encoded[i].begin(), encoded[i].end());
  if (encoded.empty()) return out;
  out.target = std::move(encoded.back());
  if (reasoning) {
    TROUPE_RETURN_IF_ERROR(add_thought(chat, tokenizer, messages.back().content,
                                       options.enable_thinking == true, out));
  }
  return out;
}

}  // namespace troupe::train
