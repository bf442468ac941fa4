// The Jinja text that says to other programs what a built-in template does: LLaMA-Factory writes
// the same one beside a model (its Template.get_jinja_template), for `apply_chat_template`.

#include "train/data/chat_template.h"

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

// The slots as one Jinja expression, in which the variable `content` stands for the message. Empty
// where the slots are.
std::string expression_of(const std::vector<Slot>& slots, const Tokenizer& tokenizer,
                          std::string_view content = "content") {
  constexpr std::string_view kPlaceholder = "{{content}}";
  std::string out;
  const auto add = [&out](const std::string& piece) { out += (out.empty() ? "" : " + ") + piece; };
  for (const Slot& slot : slots) {
    if (slot.kind != Slot::Kind::kText) {  // kToken: refused by the caller
      const auto id = slot.kind == Slot::Kind::kBos ? tokenizer.bos_id() : tokenizer.eos_id();
      if (id) add(quoted(*tokenizer.token(*id)));
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

}  // namespace

std::optional<std::string> jinja_template(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                          const std::optional<std::string>& default_system) {
  for (const auto* slots : {&chat.prefix, &chat.system, &chat.user, &chat.assistant}) {
    for (const Slot& slot : *slots) {
      if (slot.kind == Slot::Kind::kToken) return std::nullopt;
    }
  }
  const std::string system_text = default_system.value_or(chat.default_system);
  const std::string prefix = expression_of(chat.prefix, tokenizer);
  const std::string system = expression_of(chat.system, tokenizer, "system_message");
  std::string out;
  if (!prefix.empty()) out += "{{ " + prefix + " }}";
  if (!system_text.empty()) out += "{% set system_message = " + quoted(system_text) + " %}";
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
  return out + "{% if message['role'] == 'user' %}{{ " + expression_of(chat.user, tokenizer) +
         " }}{% elif message['role'] == 'assistant' %}{{ " +
         expression_of(chat.assistant, tokenizer) + " }}{% endif %}{% endfor %}";
}

void set_jinja_template(const ChatTemplate& chat, Tokenizer& tokenizer,
                        const std::optional<std::string>& default_system) {
  if (tokenizer.chat_template() && !chat.replace_jinja) return;
  if (auto jinja = jinja_template(chat, tokenizer, default_system))
    tokenizer.set_chat_template(std::move(*jinja));
}

}  // namespace troupe::train
