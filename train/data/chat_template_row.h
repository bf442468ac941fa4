#pragma once
// A built-in template as its table has it (chat_template_table.cpp). Private to this folder.

#include <span>

#include "train/data/chat_template.h"

namespace troupe::train {

// Slots are one text: {{content}} and {{idx}} stand for the message and its number, {{bos}},
// {{eos}} and {{token:X}} for a token, and {{|}} parts two texts that are tokenised apart. Null:
// `assistant` is the message and, unless efficient_eos, the end token; `observation` is `user`,
// `function` is `assistant`, `empty_thought` both thought words.
struct ChatTemplateRow {
  const char* name;
  ChatTemplate::Style style = ChatTemplate::Style::kPlain;
  const char* prefix = "";
  const char* system = "{{content}}";
  const char* user = "{{content}}";
  const char* assistant = nullptr;
  const char* observation = nullptr;
  const char* function = nullptr;
  const char* tools = "";
  const char* default_system = "";
  const char* stop_words = "";  // between spaces
  const char* thought_begin = "<think>\n";
  const char* thought_end = "\n</think>\n\n";
  const char* empty_thought = nullptr;
  const char* call_begin = "<tool_call>";
  const char* call_end = "</tool_call>";
  const char* tool_format = "default";
  bool replace_eos = false;
  bool efficient_eos = false;
  bool replace_jinja = false;
};

// Sorted by name.
std::span<const ChatTemplateRow> chat_template_rows();

}  // namespace troupe::train
