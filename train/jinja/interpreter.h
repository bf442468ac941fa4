#pragma once
// Renders a parsed template: one object for each rendering.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "train/jinja/ast.h"
#include "train/jinja/template.h"

namespace troupe::train::jinja {

class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const Clock& clock, const RenderLimits& limits)
      : heap(limits.bytes_max, limits.steps_max),
        clock(clock),
        syntax_(syntax),
        globals_(syntax.names.numbers.size()) {}

  // Throws Failure; line() is where.
  Rendered render(const json::Object& context);
  int line() const { return line_; }

  // --- for what is built in ----------------------------------------------------------------------

  Heap heap;
  const Clock& clock;

  Value undefined(std::string hint);
  Value undefined(const Value& owner, const Value& key);
  Value call(const Value& function, Arguments& arguments);
  // owner.name and owner[key], as the sandbox allows it.
  Value attribute(const Value& owner, std::string_view name);
  Value item(const Value& owner, const Value& key);
  // What a for loop goes through; TypeError where the value cannot be iterated over.
  std::vector<Value> items_of(const Value& value);
  Value filtered(std::string_view name, const Value& value, Arguments& arguments);
  bool tested(std::string_view name, const Value& value, Arguments& arguments);
  // One pass of a loop over more items, its text.
  Value recurse(const Node& loop, const Value& items, Scope* scope, int depth);
  Value block_text(const Node& block);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using Body = std::vector<NodePtr>;
  struct Deeper;

  Value from_json(const json::Value& value);
  void put_global(std::string_view name, const Value& value);
  void put_globals();
  void put_function(std::string_view name, Native native);

  Value evaluate(const Node& node);
  Value sequence_of(const Node& node);
  Value dict_of(const Node& node);
  Value call_of(const Node& node);
  Value comparison(const Node& node);
  Value concatenation(const Node& node);
  Value slice(const Node& node);
  Value filter_of(const Node& node, const Value& operand);
  Value filter_chain(const Node& node, const Value& text);
  bool test_of(const Node& node);
  Arguments arguments_of(const Node& node, std::size_t first);
  Value name(const Node& node);
  Value method(const Value& owner, std::string_view name);
  Value macro_call(const Function& function, Arguments& arguments);
  Value function_of(const Node& macro);

  Flow execute(const Node& node);
  Flow run(const Body& body);
  Flow condition(const Node& node);
  void loop(const Node& node, const Value& items, Scope* scope, int depth);
  void print(const Value& value);
  void write(std::string_view text);
  void with(const Node& node);
  void generation(const Node& node);
  void call_block(const Node& node);
  Flow autoescape(const Node& node);
  void assign(const Node& target, const Value& value);
  void set(int name, const Value& value);
  Scope* new_scope(Scope* parent);
  template <typename Act>
  std::string captured(Scope* scope, Act act);
  Value output_text(std::string text) { return heap.text(std::move(text), autoescape_); }

  const Syntax& syntax_;
  struct Global {
    Value value;
    bool there = false;
  };
  std::vector<Global> globals_;  // of the template's outermost scope, by the names' numbers
  Scope* scope_ = nullptr;       // null: the outermost one
  std::string root_;
  std::string* out_ = &root_;
  std::size_t counted_bytes_ = 0, counted_ = 0;  // characters of root_ so far
  std::vector<CharacterRange> ranges_;
  bool autoescape_ = false;
  int line_ = 0, depth_ = 0;
};

}  // namespace troupe::train::jinja
