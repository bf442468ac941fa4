#include "train/data/tokenizer_template.h"

#include <algorithm>

#include "runtime/base/clock.h"
#include "train/data/tool_formats.h"

namespace troupe::train {
namespace {

constexpr const char* kContent = "{{content}}";

// The day that Llama 3.1's own template has where it knows no other, at noon in UTC.
const ManualClock& fixed_day() {
  static const ManualClock clock = [] {
    constexpr std::int64_t kNoon_us = 1'721'995'200'000'000;
    ManualClock made;
    made.advance(std::chrono::microseconds(kNoon_us - made.unix_time_us()));
    return made;
  }();
  return clock;
}

json::Object message(std::string_view role, std::string_view content) {
  return {{"role", role}, {"content", content}};
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

// --- guessing slots ------------------------------------------------------------------------------

// `text` without as many characters as `prefix` has.
std::string behind(std::string_view text, std::string_view prefix) {
  const auto is_first = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  auto count = std::count_if(prefix.begin(), prefix.end(), is_first);
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (is_first(text[at]) && count-- == 0) break;
  }
  return std::string(text.substr(at));
}

// What stands in the longer text alone, when both are gone through from the front.
std::string difference(std::string_view shorter, std::string_view longer) {
  std::string out;
  std::size_t i = 0, j = 0;
  for (; i < shorter.size() && j < longer.size(); ++j) {
    if (shorter[i] == longer[j]) {
      ++i;
    } else {
      out += longer[j];
    }
  }
  return out;
}

std::string replaced(std::string text, std::string_view old, std::string_view fresh, bool once) {
  for (std::size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += fresh.size()) {
    text.replace(at, old.size(), fresh);
    if (once) break;
  }
  return text;
}

std::vector<Slot> slots_of(std::string text) {
  if (text.empty()) return {};
  std::vector<Slot> out;
  out.push_back({Slot::Kind::kText, std::move(text)});
  return out;
}

// Whether slots write two turns as the template does. (Thoughts are another matter.)
bool writes_the_same(const TokenizerTemplate& own, const ChatTemplate& chat) {
  if (chat.style == ChatTemplate::Style::kReasoning) return true;
  std::string text;
  const auto add = [&](const std::vector<Slot>& slots, std::string_view content) {
    for (const Slot& slot : slots) text += replaced(slot.text, kContent, content, true);
  };
  json::Array messages;
  add(chat.prefix, "");
  if (!chat.default_system.empty()) add(chat.system, chat.default_system);
  for (const char* content : {"a", "b"}) {
    add(chat.user, content);
    add(chat.assistant, content);
    messages.push_back(message("user", content));
    messages.push_back(message("assistant", content));
  }
  const auto rendered = own.render(messages, false, {});
  return rendered.ok() && rendered->text == text;
}

// --- cutting conversations -----------------------------------------------------------------------

// Where a piece of a text lies.
struct Piece {
  std::size_t begin = 0, end = 0;
};

class Cutter {
 public:
  Cutter(const TokenizerTemplate& own, json::Array messages, TokenizerTemplate::Extras extras)
      : own_(own), messages_(std::move(messages)), extras_(std::move(extras)) {}

  // The whole text, and its answers in order.
  Result<std::vector<Piece>> cut(std::string& text) {
    auto whole = TROUPE_TRY(own_.render(messages_, false, extras_));
    text = whole.text;
    std::vector<Piece> out;
    if (!whole.generation.empty()) {
      for (const auto& range : whole.generation)
        out.push_back({byte_of(text, range.begin), byte_of(text, range.end)});
      return out;
    }
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].at("role").as_string() != "assistant") continue;
      auto piece = answer(text, i, out.empty() ? 0 : out.back().end);
      if (!piece) return piece.status().prefixed(fmt::format("message {}", i));
      out.push_back(*piece);
    }
    return out;
  }

 private:
  static std::size_t byte_of(std::string_view text, std::size_t character) {
    std::size_t at = 0;
    for (; at < text.size(); ++at) {
      if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80 && character-- == 0) break;
    }
    return at;
  }

  // The messages before number `count`.
  Result<std::string> first(std::size_t count, bool prompt) const {
    const auto end = messages_.begin() + static_cast<std::ptrdiff_t>(count);
    return TROUPE_TRY(own_.render(json::Array(messages_.begin(), end), prompt, extras_)).text;
  }

  // Where the content of message i stands in the text that `messages` make.
  Result<Piece> content_in(const std::string& text, json::Array messages, std::size_t i) const {
    std::string mark = "\xc2\xa7";  // §, as often as the text lacks it
    while (text.find(mark) != std::string::npos) mark += "\xc2\xa7";
    messages[i].as_object()["content"] = mark;
    const auto marked = TROUPE_TRY(own_.render(messages, false, extras_)).text;
    const auto at = marked.find(mark);
    const std::size_t rest = at == std::string::npos ? 0 : marked.size() - at - mark.size();
    const bool once = at != std::string::npos && marked.find(mark, at + 1) == std::string::npos;
    if (!once || at + rest > text.size() || text.compare(0, at, marked, 0, at) != 0 ||
        text.compare(text.size() - rest, rest, marked, marked.size() - rest, rest) != 0) {
      return error(Code::kUnsupported,
                   "the tokenizer's chat_template does not write the answer once and as it is, so "
                   "that what is trained cannot be told; name a template");
    }
    return Piece{at, text.size() - rest};
  }

  // The answer with number i, behind `from`.
  Result<Piece> answer(const std::string& text, std::size_t i, std::size_t from) const {
    const auto until = TROUPE_TRY(first(i + 1, false));
    auto before = first(i, false), prompted = first(i, true);
    const bool has_prompt = before.ok() && prompted.ok() && prompted->starts_with(*before);
    if (messages_[i].as_object().contains("tool_calls")) {
      // Its text is the template's own: it must lie between what is before it and what follows.
      if (!prompted.ok()) return prompted.status();
      if (!text.starts_with(until) || !until.starts_with(*prompted)) {
        return error(Code::kUnsupported,
                     "the tokenizer's chat_template writes a call otherwise when it is history, so "
                     "that what is trained cannot be told; name a template");
      }
      return Piece{prompted->size(), until.size()};
    }
    Piece out = TROUPE_TRY(content_in(text, messages_, i));
    // The end of the turn, as it is where the conversation ends with it.
    const auto end = messages_.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const auto last = TROUPE_TRY(content_in(until, json::Array(messages_.begin(), end), i));
    out.end += common_prefix(std::string_view(text).substr(out.end),
                             std::string_view(until).substr(last.end));
    if (!has_prompt) return out;
    const auto prompt = prompted->substr(before->size());
    if (prompt.empty() || prompt.size() > out.begin) return out;
    const auto at = text.rfind(prompt, out.begin - prompt.size());
    if (at != std::string::npos && at >= from) out.begin = at + prompt.size();
    return out;
  }

  const TokenizerTemplate& own_;
  const json::Array messages_;
  const TokenizerTemplate::Extras extras_;
};

// Calls as data sets have them, as messages have them.
Result<json::Array> message_calls(const std::string& content) {
  auto parsed = TROUPE_TRY(json::parse(content, "function call"));
  json::Array list;
  if (parsed.is_array()) {
    list = std::move(parsed.get_array());
  } else {
    list.push_back(std::move(parsed));
  }
  json::Array out;
  for (auto& call : list) {
    const auto* inner = json::find(call, "function");
    json::Value function = inner != nullptr ? *inner : call;
    if (!json::find_string(function, "name"))
      return error(Code::kInvalidArgument, "a function call must have a name, is {}",
                   json::write(call).substr(0, 60));
    if (const auto* arguments = json::find(function, "arguments"))
      function.get_object()["arguments"] = json::Value(call_arguments(*arguments));
    out.push_back({{"type", "function"}, {"function", function}});
  }
  return out;
}

Result<json::Array> messages_of(const Conversation& conversation, const EncodeOptions& options) {
  json::Array out;
  const auto& system =
      conversation.system.empty() ? options.default_system.value_or("") : conversation.system;
  if (!system.empty()) out.push_back(message("system", system));
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const auto& [role, content] = conversation.messages[i];
    if (role == Role::kFunction) {
      auto calls = message_calls(content);
      if (!calls) return calls.status().prefixed(fmt::format("message {}", i));
      auto one = message("assistant", "");
      one["tool_calls"] = std::move(*calls);
      out.push_back(std::move(one));
    } else {
      out.push_back(message(role == Role::kUser        ? "user"
                            : role == Role::kAssistant ? "assistant"
                                                       : "tool",
                            content));
    }
  }
  return out;
}

}  // namespace

Result<TokenizerTemplate> TokenizerTemplate::parse(std::string_view source, std::string name,
                                                   const Tokenizer& tokenizer) {
  auto parsed = jinja::Template::parse(source);
  if (!parsed) return parsed.status().prefixed(name);
  TokenizerTemplate out(std::move(*parsed), std::string(source), std::move(name));
  for (const auto& [key, id] : {std::pair("bos_token", tokenizer.bos_id()),
                                {"eos_token", tokenizer.eos_id()},
                                {"pad_token", tokenizer.pad_id()},
                                {"unk_token", tokenizer.unk_id()}}) {
    if (id) out.tokens_[key] = tokenizer.token(*id).value_or("");
  }
  return out;
}

Result<TokenizerTemplate> TokenizerTemplate::of(const Tokenizer& tokenizer) {
  const std::string name = "the tokenizer's chat_template";
  auto out = TROUPE_TRY(parse(*tokenizer.chat_template(), name, tokenizer));
  if (const auto& source = tokenizer.tool_use_template()) {
    auto parsed = jinja::Template::parse(*source);
    if (!parsed) return parsed.status().prefixed(name + " tool_use");
    out.tool_use_ = std::move(*parsed);
  }
  return out;
}

Result<jinja::Rendered> TokenizerTemplate::render(const json::Array& messages,
                                                  bool add_generation_prompt,
                                                  const Extras& extras) const {
  json::Object context = tokens_;
  context["messages"] = messages;
  context["tools"] = extras.tools;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = add_generation_prompt;
  if (extras.enable_thinking) context["enable_thinking"] = *extras.enable_thinking;
  const bool by_tool_use = tool_use_ && !extras.tools.is_null();
  auto out = (by_tool_use ? *tool_use_ : template_).render(context, fixed_day());
  if (!out) return out.status().prefixed(name_);
  return out;
}

Result<ChatTemplate> guess_template(const TokenizerTemplate& own, const Tokenizer& tokenizer) {
  const auto render = [&](json::Array messages, bool prompt) -> Result<std::string> {
    return TROUPE_TRY(own.render(messages, prompt, {})).text;
  };
  const auto prefix = tokenizer.decode(TROUPE_TRY(tokenizer.encode("", true)), false);
  const json::Object user_probe = message("user", kContent);
  std::string system = behind(TROUPE_TRY(render({message("system", kContent)}, false)), prefix);
  const std::string without_system =
      behind(TROUPE_TRY(render({message("system", ""), user_probe}, true)), prefix);
  std::string user = behind(TROUPE_TRY(render({user_probe}, true)), prefix);
  const std::string both = TROUPE_TRY(render({user_probe, message("assistant", kContent)}, false));
  std::string assistant = behind(behind(both, prefix), user);
  const bool reasons = assistant.find("<think>") != std::string::npos;
  assistant = replaced(replaced(assistant, "<think>", "", false), "</think>", "", false);
  assistant.erase(0, std::min(assistant.find_first_not_of('\n'), assistant.size()));

  ChatTemplate out = TROUPE_TRY(chat_template("empty"));
  out.name = "tokenizer's chat_template";
  if (user.size() > without_system.size()) {
    out.default_system = difference(without_system, user);
    user = behind(user, replaced(system, kContent, out.default_system, true));
  }
  for (const std::string* slot : {&system, &user, &assistant}) {
    if (slot->find(kContent) == std::string::npos)
      return error(Code::kInvalidArgument, "A placeholder is required in the string formatter.");
  }
  out.style = reasons ? ChatTemplate::Style::kReasoning : ChatTemplate::Style::kPlain;
  out.prefix = slots_of(prefix);
  out.system = slots_of(std::move(system));
  out.user = out.observation = slots_of(std::move(user));
  out.assistant = out.function = slots_of(std::move(assistant));
  return out;
}

Result<ChatTemplate> template_of_tokenizer(const Tokenizer& tokenizer) {
  const auto own =
      std::make_shared<TokenizerTemplate>(TROUPE_TRY(TokenizerTemplate::of(tokenizer)));
  auto guessed = guess_template(*own, tokenizer);
  if (guessed) {
    guessed->note =
        "template is not given: its slots are guessed from the tokenizer's chat_template";
    if (!writes_the_same(*own, *guessed))
      guessed->note +=
          ", and conversations of several turns come out otherwise than it renders them (as in "
          "LLaMA-Factory); name a template";
    return guessed;
  }
  ChatTemplate out = TROUPE_TRY(chat_template("empty"));
  out.name = "tokenizer's chat_template";
  out.note = fmt::format(
      "template is not given, and the tokenizer's chat_template cannot be taken apart into slots "
      "({}): it renders whole conversations, of which the answers are trained",
      guessed.status().message());
  out.own = own;
  return out;
}

Result<std::vector<EncodedTurn>> encode_by_tokenizer_template(const TokenizerTemplate& own,
                                                              const Tokenizer& tokenizer,
                                                              const Conversation& conversation,
                                                              const EncodeOptions& options) {
  TokenizerTemplate::Extras extras;
  extras.enable_thinking = options.enable_thinking;
  if (!conversation.tools.empty())
    extras.tools = TROUPE_TRY(json::parse(conversation.tools, "tools"));
  Cutter cutter(own, TROUPE_TRY(messages_of(conversation, options)), std::move(extras));
  std::string text;
  const auto answers = TROUPE_TRY(cutter.cut(text));
  std::vector<EncodedTurn> out;
  std::size_t at = 0;
  const auto ids_of = [&](std::size_t begin, std::size_t end) -> Result<std::vector<TokenId>> {
    if (begin >= end) return std::vector<TokenId>();
    return tokenizer.encode(std::string_view(text).substr(begin, end - begin), false);
  };
  for (const auto& answer : answers) {
    const auto begin = std::max(at, answer.begin);
    out.push_back(
        {TROUPE_TRY(ids_of(at, begin)), TROUPE_TRY(ids_of(begin, std::max(begin, answer.end)))});
    at = std::max(begin, answer.end);
  }
  if (out.empty())
    return error(Code::kInvalidArgument,
                 "the tokenizer's chat_template marks nothing of the conversation as an answer");
  return out;
}

}  // namespace troupe::train
