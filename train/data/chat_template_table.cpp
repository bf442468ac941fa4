// The templates that are built in.

#include <algorithm>

#include "train/data/chat_template.h"

namespace troupe::train {
namespace {

using Slots = std::vector<Slot>;

Slot text(std::string value) { return {Slot::Kind::kText, std::move(value)}; }
const Slot kBosSlot = {Slot::Kind::kBos, ""};
const Slot kEosSlot = {Slot::Kind::kEos, ""};

// What LLaMA-Factory fills in where a template does not say.
ChatTemplate base(std::string name) {
  ChatTemplate out;
  out.name = std::move(name);
  out.user = {text("{{content}}")};
  out.assistant = {text("{{content}}"), kEosSlot};
  out.system = {text("{{content}}")};
  return out;
}

ChatTemplate chatml_template(std::string name, std::string default_system) {
  auto out = base(std::move(name));
  out.user = {text("<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n")};
  out.assistant = {text("{{content}}<|im_end|>\n")};
  out.system = {text("<|im_start|>system\n{{content}}<|im_end|>\n")};
  out.observation = {
      text("<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response>"
           "<|im_end|>\n<|im_start|>assistant\n")};
  out.default_system = std::move(default_system);
  out.stop_words = {"<|im_end|>"};
  out.replace_eos = true;
  return out;
}

ChatTemplate llama3() {
  const std::string answer = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  auto out = base("llama3");
  out.user = {text("<|start_header_id|>user<|end_header_id|>\n\n{{content}}<|eot_id|>" + answer)};
  out.assistant = {text("{{content}}<|eot_id|>")};
  out.system = {text("<|start_header_id|>system<|end_header_id|>\n\n{{content}}<|eot_id|>")};
  out.observation = {
      text("<|start_header_id|>ipython<|end_header_id|>\n\n{{content}}<|eot_id|>" + answer)};
  out.prefix = {kBosSlot};
  out.stop_words = {"<|eot_id|>", "<|eom_id|>"};
  out.replace_eos = true;
  return out;
}

ChatTemplate gemma(std::string name) {
  auto out = base(std::move(name));
  out.user = {text("<start_of_turn>user\n{{content}}<end_of_turn>\n<start_of_turn>model\n")};
  out.assistant = {text("{{content}}<end_of_turn>\n")};
  out.system = {text("{{content}}\n\n")};
  out.observation = {text("<start_of_turn>tool\n{{content}}<end_of_turn>\n<start_of_turn>model\n")};
  out.prefix = {kBosSlot};
  out.stop_words = {"<end_of_turn>"};
  out.replace_eos = true;
  out.style = ChatTemplate::Style::kInFirst;
  return out;
}

std::vector<ChatTemplate> make_table() {
  std::vector<ChatTemplate> table;
  auto plain = base("default");
  plain.replace_jinja = true;
  plain.user = {text("Human: {{content}}"), kEosSlot, text("\nAssistant:")};
  plain.assistant = {text("{{content}}"), kEosSlot, text("\n")};
  plain.system = {text("System: {{content}}"), kEosSlot, text("\n")};
  table.push_back(plain);

  auto alpaca = base("alpaca");
  alpaca.replace_jinja = true;
  alpaca.user = {text("### Instruction:\n{{content}}\n\n### Response:\n")};
  alpaca.assistant = {text("{{content}}"), kEosSlot, text("\n\n")};
  alpaca.default_system =
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n";
  table.push_back(alpaca);

  auto llama2 = base("llama2");
  llama2.user = {kBosSlot, text("[INST] {{content}} [/INST]")};
  llama2.system = {text("<<SYS>>\n{{content}}\n<</SYS>>\n\n")};
  llama2.style = ChatTemplate::Style::kInFirst;
  table.push_back(llama2);

  table.push_back(llama3());
  table.push_back(chatml_template(
      "qwen", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."));
  table.push_back(chatml_template("qwen3_nothink", ""));
  table.push_back(chatml_template("qwen3", ""));
  table.back().style = ChatTemplate::Style::kReasoning;

  auto zephyr = base("zephyr");
  zephyr.user = {text("<|user|>\n{{content}}"), kEosSlot, text("<|assistant|>\n")};
  zephyr.system = {text("<|system|>\n{{content}}"), kEosSlot};
  zephyr.default_system = "You are Zephyr, a helpful assistant.";
  table.push_back(zephyr);

  table.push_back(chatml_template("chatml", ""));
  table.back().replace_jinja = true;
  table.back().observation = {
      text("<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n")};
  table.back().stop_words = {"<|im_end|>", "<|im_start|>"};

  auto vicuna = base("vicuna");
  vicuna.replace_jinja = true;
  vicuna.user = {text("USER: {{content}} ASSISTANT:")};
  vicuna.default_system =
      "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
      "helpful, detailed, and polite answers to the user's questions.";
  table.push_back(vicuna);

  auto mistral = base("mistral");
  mistral.user = {text("[INST] {{content}}[/INST]")};
  mistral.assistant = {text(" {{content}}"), kEosSlot};
  mistral.system = {text("{{content}}\n\n")};
  mistral.observation = {text("[TOOL_RESULTS] {\"content\": {{content}}}[/TOOL_RESULTS]")};
  mistral.prefix = {kBosSlot};
  mistral.style = ChatTemplate::Style::kInFirst;
  table.push_back(mistral);

  table.push_back(gemma("gemma"));
  table.push_back(gemma("gemma2"));
  table.back().stop_words = {"<eos>", "<end_of_turn>"};
  table.back().replace_eos = false;
  table.back().efficient_eos = true;
  table.push_back(gemma("gemma3"));

  auto phi = base("phi");
  phi.user = {text("<|user|>\n{{content}}<|end|>\n<|assistant|>\n")};
  phi.assistant = {text("{{content}}<|end|>\n")};
  phi.system = {text("<|system|>\n{{content}}<|end|>\n")};
  phi.stop_words = {"<|end|>"};
  phi.replace_eos = true;
  table.push_back(phi);

  auto empty = base("empty");
  empty.assistant = {text("{{content}}")};
  table.push_back(empty);

  for (auto& chat : table) {
    if (chat.observation.empty()) chat.observation = chat.user;
  }
  return table;
}

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const auto& chat : make_table()) names.push_back(chat.name);
  std::sort(names.begin(), names.end());
  return names;
}

Result<ChatTemplate> chat_template(std::string_view name) {
  for (auto& chat : make_table()) {
    if (chat.name == name) return chat;
  }
  std::string names;
  for (const auto& known : chat_template_names()) names += (names.empty() ? "" : ", ") + known;
  return error(Code::kNotFound, "Template {} does not exist. (known: {})", name, names);
}

}  // namespace troupe::train
