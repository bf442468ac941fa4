#pragma once
// A template's source as tokens: text between tags, and the words within them.

#include <string>
#include <string_view>
#include <vector>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

struct Token {
  enum class Type {
    kData,
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kText,
    kInteger,
    kFloat,
    kSign,  // an operator or bracket
    kEnd,
  };
  Type type = Type::kEnd;
  std::string text;  // data, name, sign; a text with its escapes read
  int line = 1;
  Int integer = 0;
  double number = 0;

  bool is(Type other) const { return type == other; }
  bool is_sign(std::string_view sign) const { return type == Type::kSign && text == sign; }
  bool is_name(std::string_view name) const { return type == Type::kName && text == name; }
};

// With trim_blocks and lstrip_blocks, as transformers sets them. Fails with TemplateSyntaxError.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace troupe::train::jinja
