#pragma once
// `loop`, and the attributes of the other things that a template makes itself.

#include <string_view>
#include <vector>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

struct Loop final : Special {
  std::vector<Value> items;
  std::size_t index = 0;
  const Node* node = nullptr;
  Scope* scope = nullptr;  // around the loop
  int depth = 1;           // of recursive loops
  Value last_changed;
  bool has_changed = false;

  bool find_attribute(Interpreter& in, std::string_view name, Value& out) override;
  Value call(Interpreter& in, Arguments& arguments) override;
};

bool find_macro_attribute(Interpreter& in, const Function& function, std::string_view name,
                          Value& out);
// What groupby makes is a tuple with names.
bool find_group_attribute(const Value& tuple, std::string_view name, Value& out);

}  // namespace troupe::train::jinja
