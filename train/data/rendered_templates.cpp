// Axolotl's chat templates as functions of their turns.
#include <algorithm>
#include <array>

#include "runtime/base/suggest.h"
#include "train/data/conversation_encoder.h"

namespace troupe::train {
namespace {

using Turns = std::vector<RenderedTurn>;

// Python's str.strip(): ASCII's blanks, and those of Unicode that texts have at their ends.
std::string strip(std::string_view text) {
  constexpr std::array<std::string_view, 8> kWide = {"\xc2\x85",     "\xc2\xa0",     "\xe3\x80\x80",
                                                     "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                                     "\xe2\x80\x83", "\xe2\x80\x82"};
  const auto blank = [](char c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 28 && c < 32);
  };
  for (bool again = true; again && !text.empty();) {
    again = false;
    if (blank(text.front())) text.remove_prefix(1), again = true;
    if (!text.empty() && blank(text.back())) text.remove_suffix(1), again = true;
    for (const auto wide : kWide) {
      if (text.starts_with(wide)) text.remove_prefix(wide.size()), again = true;
      if (text.ends_with(wide)) text.remove_suffix(wide.size()), again = true;
    }
  }
  return std::string(text);
}

struct Words {
  const std::string& bos;
  const std::string& eos;
};

Result<std::string> chatml(const Words&, const Turns& turns) {
  std::string out;
  for (const auto& turn : turns)
    out += "<|im_start|>" + turn.role + "\n" + turn.content + "<|im_end|>\n";
  return out;
}

Result<std::string> llama3(const Words& words, const Turns& turns) {
  std::string out = turns.empty() ? "" : words.bos;
  for (const auto& turn : turns) {
    out += "<|start_header_id|>" + turn.role + "<|end_header_id|>\n\n" + strip(turn.content) +
           "<|eot_id|>";
  }
  return out;
}

Status alternates(const Turns& turns) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if ((turns[i].role == "user") == (i % 2 == 0)) continue;
    return error(Code::kInvalidArgument,
                 "Conversation roles must alternate user/assistant/user/assistant/...");
  }
  return {};
}

Result<std::string> gemma_turns(const Words& words, const Turns& turns, const std::string& first) {
  TROUPE_RETURN_IF_ERROR(alternates(turns));
  std::string out = words.bos;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    out += "<start_of_turn>" + (turns[i].role == "assistant" ? "model" : turns[i].role) + "\n" +
           (i == 0 ? first : "") + strip(turns[i].content) + "<end_of_turn>\n";
  }
  return out;
}

Result<std::string> gemma(const Words& words, const Turns& turns) {
  if (!turns.empty() && turns.front().role == "system")
    return error(Code::kInvalidArgument, "System role not supported");
  return gemma_turns(words, turns, "");
}

Result<std::string> gemma3(const Words& words, const Turns& turns) {
  if (turns.empty() || turns.front().role != "system") return gemma_turns(words, turns, "");
  return gemma_turns(words, {turns.begin() + 1, turns.end()}, turns.front().content + "\n\n");
}

Result<std::string> phi_3(const Words& words, const Turns& turns) {
  std::string out = words.bos;
  for (const auto& turn : turns) {
    if (turn.role == "system") out += "<|system|>\n" + turn.content + "<|end|>\n";
    if (turn.role == "user") out += "<|user|>\n" + turn.content + "<|end|>\n<|assistant|>\n";
    if (turn.role == "assistant") out += turn.content + "<|end|>\n";
  }
  return out;
}

Result<std::string> alpaca(const Words& words, const Turns& turns) {
  std::string out = words.bos;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto& turn = turns[i];
    if (turn.role == "system" && i == 0) out += turn.content;
    if (turn.role == "user") out += "### Instruction:\n" + turn.content;
    if (turn.role == "assistant") out += "### Response:\n" + turn.content + words.eos;
    if (i + 1 < turns.size()) out += "\n\n";
  }
  return out;
}

Result<std::string> qwen_25(const Words&, const Turns& turns) {
  const bool has_system = !turns.empty() && turns.front().role == "system";
  std::string out = "<|im_start|>system\n";
  out += has_system ? turns.front().content
                    : "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  out += "<|im_end|>\n";
  for (std::size_t i = has_system ? 1 : 0; i < turns.size(); ++i) {
    const auto& turn = turns[i];
    if (turn.role == "tool") {
      if (i == 0 || turns[i - 1].role != "tool") out += "<|im_start|>user";
      out += "\n<tool_response>\n" + turn.content + "\n</tool_response>";
      if (i + 1 == turns.size() || turns[i + 1].role != "tool") out += "<|im_end|>\n";
    } else if (turn.role == "user" || turn.role == "system" || turn.role == "assistant") {
      out += "<|im_start|>" + turn.role + "\n" + turn.content + "<|im_end|>\n";
    }
  }
  return out;
}

struct Rendered {
  std::string_view name;
  Result<std::string> (*render)(const Words&, const Turns&);
  std::string_view jinja;
};
constexpr const char* kGemmaTurns =
    "{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + "
    "'\n' + (first if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";
constexpr Rendered kTemplates[] = {
    {"alpaca", alpaca,
     "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' and loop.first %}"
     "{{ m['content'] }}{% elif m['role'] == 'user' %}{{ '### Instruction:\n' + m['content'] }}"
     "{% elif m['role'] == 'assistant' %}{{ '### Response:\n' + m['content'] + eos_token }}"
     "{% endif %}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '\n\n### Response:\n' }}{% endif %}"},
    {"chatml", chatml,
     "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' "
     "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {"gemma", gemma,
     "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
     "{{ raise_exception('System role not supported') }}{% endif %}"
     "{% set first = '' %}{% set loop_messages = messages %}"},
    {"gemma3", gemma3,
     "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
     "{% set first = messages[0]['content'] + '\n\n' %}{% set loop_messages = messages[1:] %}"
     "{% else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}"},
    {"llama3", llama3,
     "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
     "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + "
     "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"},
    {"phi_3", phi_3,
     "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
     "{{ '<|system|>\n' + m['content'] + '<|end|>\n' }}{% elif m['role'] == 'user' %}"
     "{{ '<|user|>\n' + m['content'] + '<|end|>\n<|assistant|>\n' }}"
     "{% elif m['role'] == 'assistant' %}{{ m['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"},
    {"qwen_25", qwen_25,
     "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are Qwen, created by "
     "Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}{% endif %}"
     "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' "
     "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
};

const Rendered* find_template(std::string_view name) {
  const auto found = std::find_if(std::begin(kTemplates), std::end(kTemplates),
                                  [&](const Rendered& one) { return one.name == name; });
  return found == std::end(kTemplates) ? nullptr : found;
}

}  // namespace

std::vector<std::string> rendered_template_names() {
  std::vector<std::string> out;
  for (const auto& one : kTemplates) out.emplace_back(one.name);
  return out;
}

Result<std::string> render_turns(std::string_view name, const std::string& bos,
                                 const std::string& eos, const std::vector<RenderedTurn>& turns) {
  const auto* found = find_template(name);
  if (!found) return error(Code::kInvalidArgument, "Template '{}' not found.", name);
  return found->render({bos, eos}, turns);
}

std::string rendered_template_jinja(std::string_view name) {
  const auto* found = find_template(name);
  if (!found) return {};
  return std::string(found->jinja) + (name.starts_with("gemma") ? kGemmaTurns : "");
}

}  // namespace troupe::train
