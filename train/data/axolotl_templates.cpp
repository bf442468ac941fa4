// Axolotl's chat templates.
#include <algorithm>
#include <iterator>

#include "train/data/conversation_encoder.h"

namespace troupe::train {
namespace {

struct AxolotlTemplate {
  std::string_view name;
  std::string_view jinja;
};
constexpr const char* kGemmaTurns =
    "{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + "
    "'\n' + (first if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";
constexpr AxolotlTemplate kTemplates[] = {
    {"alpaca",
     "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' and loop.first %}"
     "{{ m['content'] }}{% elif m['role'] == 'user' %}{{ '### Instruction:\n' + m['content'] }}"
     "{% elif m['role'] == 'assistant' %}{{ '### Response:\n' + m['content'] + eos_token }}"
     "{% endif %}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '\n\n### Response:\n' }}{% endif %}"},
    {"chatml",
     "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' "
     "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {"gemma",
     "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
     "{{ raise_exception('System role not supported') }}{% endif %}"
     "{% set first = '' %}{% set loop_messages = messages %}"},
    {"gemma3",
     "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
     "{% set first = messages[0]['content'] + '\n\n' %}{% set loop_messages = messages[1:] %}"
     "{% else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}"},
    {"llama3",
     "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
     "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + "
     "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"},
    {"phi_3",
     "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
     "{{ '<|system|>\n' + m['content'] + '<|end|>\n' }}{% elif m['role'] == 'user' %}"
     "{{ '<|user|>\n' + m['content'] + '<|end|>\n<|assistant|>\n' }}"
     "{% elif m['role'] == 'assistant' %}{{ m['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"},
    {"qwen_25",
     "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are Qwen, created by "
     "Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}{% endif %}"
     "{% for m in messages %}{% if m['role'] == 'tool' %}"
     "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}"
     "{{ '<|im_start|>user' }}{% endif %}"
     "{{ '\n<tool_response>\n' + m['content'] + '\n</tool_response>' }}"
     "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\n' }}"
     "{% endif %}{% elif m['role'] in ['user', 'system', 'assistant'] %}"
     "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}"
     "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
};

}  // namespace

std::vector<std::string> axolotl_template_names() {
  std::vector<std::string> out;
  for (const auto& one : kTemplates) out.emplace_back(one.name);
  return out;
}

std::string axolotl_template_jinja(std::string_view name) {
  const auto found = std::find_if(std::begin(kTemplates), std::end(kTemplates),
                                  [&](const auto& one) { return one.name == name; });
  if (found == std::end(kTemplates)) return {};
  return std::string(found->jinja) + (name.starts_with("gemma") ? kGemmaTurns : "");
}

}  // namespace troupe::train
