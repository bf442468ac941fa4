// The Jinja text that says to other programs what a built-in template does: LLaMA-Factory writes
// the same one beside a model (its Template.get_jinja_template), for `apply_chat_template`.

#include "train/data/chat_template.h"

#include <utility>

namespace troupe::train {
namespace {

// A Jinja string literal.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// The words of a tokenizer's begin and end token; empty where it has none.
struct Marks {
  std::string bos, eos;
};

Marks marks_of(const Tokenizer& tokenizer) {
  const auto word = [&](std::optional<TokenId> id) {
    return id ? tokenizer.token(*id).value_or("") : std::string();
  };
  return {word(tokenizer.bos_id()), word(tokenizer.eos_id())};
}

// The slots as one Jinja expression, in which the variable `content` stands for the message. Empty
// where the slots are.
std::string expression_of(const std::vector<Slot>& slots, const Marks& marks,
                          std::string_view content = "content") {
  constexpr std::string_view kPlaceholder = "{{content}}";
  std::string out;
  const auto add = [&out](const std::string& piece) { out += (out.empty() ? "" : " + ") + piece; };
  for (const Slot& slot : slots) {
    if (slot.kind != Slot::Kind::kText) {  // kToken: refused by the caller
      const auto& word = slot.kind == Slot::Kind::kBos ? marks.bos : marks.eos;
      if (!word.empty()) add(quoted(word));
      continue;
    }
    const std::string_view text = slot.text;
    const auto at = text.find(kPlaceholder);
    if (const auto before = text.substr(0, at); !before.empty()) add(quoted(before));
    if (at == std::string_view::npos) continue;
    add(std::string(content));
    if (const auto behind = text.substr(at + kPlaceholder.size()); !behind.empty())
      add(quoted(behind));
  }
  return out;
}

constexpr std::string_view kSetSystem = "{% set system_message = '";

std::optional<std::string> text_of(const ChatTemplate& chat, const Marks& marks,
                                   const std::string& system_text) {
  for (const auto* slots : {&chat.prefix, &chat.system, &chat.user, &chat.assistant}) {
    for (const Slot& slot : *slots) {
      if (slot.kind == Slot::Kind::kToken) return std::nullopt;
    }
  }
  const std::string prefix = expression_of(chat.prefix, marks);
  const std::string system = expression_of(chat.system, marks, "system_message");
  std::string out;
  if (!prefix.empty()) out += "{{ " + prefix + " }}";
  if (!system_text.empty()) {
    out += kSetSystem;
    out += quoted(system_text).substr(1) + " %}";
  }
  out +=
      "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
      "{% set system_message = messages[0]['content'] %}"
      "{% else %}{% set loop_messages = messages %}{% endif %}";
  if (chat.style == ChatTemplate::Style::kInFirst) {
    out +=
        "{% for message in loop_messages %}"
        "{% if loop.index0 == 0 and system_message is defined %}"
        "{% set content = " +
        system +
        " + message['content'] %}"
        "{% else %}{% set content = message['content'] %}{% endif %}";
  } else {
    out += "{% if system_message is defined %}{{ " + system +
           " }}{% endif %}"
           "{% for message in loop_messages %}{% set content = message['content'] %}";
  }
  return out + "{% if message['role'] == 'user' %}{{ " + expression_of(chat.user, marks) +
         " }}{% elif message['role'] == 'assistant' %}{{ " + expression_of(chat.assistant, marks) +
         " }}{% endif %}{% endfor %}";
}

// The system text that text_of() was given, from what it wrote.
std::string system_text_in(std::string_view jinja) {
  std::string out;
  const auto at = jinja.find(kSetSystem);
  if (at == std::string_view::npos) return out;
  for (std::size_t i = at + kSetSystem.size(); i < jinja.size() && jinja[i] != '\''; ++i) {
    if (jinja[i] == '\\') ++i;
    if (i < jinja.size()) out += jinja[i];
  }
  return out;
}

// How the template writes a conversation of several turns; nothing where the tokenizer lacks its
// tokens.
std::vector<TokenId> ids_of_probe(const ChatTemplate& chat, Tokenizer tokenizer) {
  std::vector<std::string> notes;
  std::vector<TokenId> ids;
  if (!fix_special_tokens(chat, tokenizer, notes).ok()) return ids;
  const Conversation probe{.messages = {{Role::kUser, "a question"},
                                        {Role::kAssistant, "an answer"},
                                        {Role::kUser, "another"},
                                        {Role::kAssistant, "the last"}}};
  const auto turns = encode_conversation(chat, tokenizer, probe, {});
  if (!turns.ok()) return ids;
  for (const auto& turn : *turns) {
    ids.insert(ids.end(), turn.source.begin(), turn.source.end());
    ids.insert(ids.end(), turn.target.begin(), turn.target.end());
  }
  return ids;
}

}  // namespace

std::optional<std::string> jinja_template(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                          const std::optional<std::string>& default_system) {
  return text_of(chat, marks_of(tokenizer), default_system.value_or(chat.default_system));
}

std::optional<ChatTemplate> template_behind_jinja(const Tokenizer& tokenizer) {
  const auto jinja = tokenizer.chat_template();
  if (!jinja) return std::nullopt;
  const std::string system_text = system_text_in(*jinja);
  std::optional<ChatTemplate> found;
  std::vector<TokenId> ids;
  for (const auto& name : chat_template_names()) {
    auto chat = chat_template(name);
    if (!chat.ok()) continue;
    // As fix_special_tokens() leaves them.
    Marks marks = marks_of(tokenizer);
    if (chat->replace_eos && !chat->stop_words.empty()) marks.eos = chat->stop_words.front();
    if (marks.eos.empty()) marks.eos = "<|endoftext|>";
    if (text_of(*chat, marks, system_text) != *jinja) continue;
    const std::string own_system = std::exchange(chat->default_system, system_text);
    auto its_ids = ids_of_probe(*chat, tokenizer);
    if (its_ids.empty()) continue;
    if (found && (its_ids != ids || chat->stop_words != found->stop_words)) return std::nullopt;
    // Where several templates write the same, the name is that of the one whose own default system
    // text this is.
    if (found && own_system != system_text) continue;
    found = std::move(*chat);
    ids = std::move(its_ids);
  }
  return found;
}

void set_jinja_template(const ChatTemplate& chat, Tokenizer& tokenizer,
                        const std::optional<std::string>& default_system) {
  if (tokenizer.chat_template() && !chat.replace_jinja) return;
  if (auto jinja = jinja_template(chat, tokenizer, default_system))
    tokenizer.set_chat_template(std::move(*jinja));
}

}  // namespace troupe::train
