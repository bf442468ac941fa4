#include "train/jinja/loops.h"

#include "train/jinja/arguments.h"
#include "train/jinja/ast.h"
#include "train/jinja/failure.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/operators.h"

namespace troupe::train::jinja {
namespace {

Value native_of(Interpreter& in, const char* name, Native native, const Value& self) {
  auto* const out = in.heap.make<Function>();
  out->name = name;
  out->native = native;
  out->self = self;
  return {Kind::kFunction, out};
}

Loop& loop_of(const Value& self) { return static_cast<Loop&>(self.special()); }

Value cycle(Interpreter&, Value self, Arguments& arguments) {
  if (arguments.positional.empty()) fail("TypeError", "no items for cycling given");
  return arguments.positional[loop_of(self).index % arguments.positional.size()];
}

Value changed(Interpreter& in, Value self, Arguments& arguments) {
  Loop& loop = loop_of(self);
  const Value now = in.heap.tuple(arguments.positional);
  const bool same = loop.has_changed && is_equal(in.heap, loop.last_changed, now);
  loop.last_changed = now;
  loop.has_changed = true;
  return !same;
}

}  // namespace

bool Loop::find_attribute(Interpreter& in, std::string_view name, Value& out) {
  const Value self(Kind::kSpecial, this);
  const auto at = static_cast<Int>(index), count = static_cast<Int>(items.size());
  if (name == "index") {
    out = at + 1;
  } else if (name == "index0") {
    out = at;
  } else if (name == "first") {
    out = at == 0;
  } else if (name == "last") {
    out = at + 1 == count;
  } else if (name == "length") {
    out = count;
  } else if (name == "revindex") {
    out = count - at;
  } else if (name == "revindex0") {
    out = count - at - 1;
  } else if (name == "depth") {
    out = Int{depth};
  } else if (name == "depth0") {
    out = Int{depth - 1};
  } else if (name == "previtem") {
    out = at > 0 ? items[index - 1] : in.undefined("there is no previous item");
  } else if (name == "nextitem") {
    out = at + 1 < count ? items[index + 1] : in.undefined("there is no next item");
  } else if (name == "cycle") {
    out = native_of(in, "cycle", cycle, self);
  } else if (name == "changed") {
    out = native_of(in, "changed", changed, self);
  } else {
    return false;
  }
  return true;
}

Value Loop::call(Interpreter& in, Arguments& arguments) {
  const Parameters given("loop", arguments, {"iterable"}, 1);
  if (!node->flag) {
    fail("TypeError", "The loop must have the 'recursive' marker to be called recursively.");
  }
  return in.recurse(*node, given[0], scope, depth + 1);
}

bool find_macro_attribute(Interpreter& in, const Function& function, std::string_view name,
                          Value& out) {
  if (function.macro == nullptr) return false;
  const Node& macro = *function.macro;
  if (name == "name") {
    out = in.heap.text(macro.text);
  } else if (name == "arguments") {
    std::vector<Value> names;
    for (const auto& one : macro.names) names.push_back(in.heap.text(one));
    out = in.heap.tuple(std::move(names));
  } else if (name == "catch_kwargs") {
    out = macro.uses_kwargs;
  } else if (name == "catch_varargs") {
    out = macro.uses_varargs;
  } else if (name == "caller") {
    out = macro.uses_caller;
  } else {
    return false;
  }
  return true;
}

bool find_group_attribute(const Value& tuple, std::string_view name, Value& out) {
  const Sequence& group = tuple.sequence();
  if (std::string_view(group.type) != "_GroupTuple") return false;
  if (name != "grouper" && name != "list") return false;
  out = group.items[name == "list"];
  return true;
}

}  // namespace troupe::train::jinja
