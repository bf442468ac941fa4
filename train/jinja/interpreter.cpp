#include "train/jinja/interpreter.h"

#include <algorithm>

#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/filters.h"
#include "train/jinja/format.h"
#include "train/jinja/loops.h"
#include "train/jinja/methods.h"
#include "train/jinja/operators.h"
#include "train/jinja/print.h"
#include "train/jinja/tests.h"

namespace troupe::train::jinja {
namespace {

// Of nested evaluations, macros' bodies included; about where Python gives up, too.
constexpr int kDepthMax = 1000;

}  // namespace

struct Interpreter::Deeper {
  explicit Deeper(Interpreter& in) : in(in) {
    in.heap.work(1);
    if (++in.depth_ > kDepthMax) {
      --in.depth_;
      fail("RecursionError", "maximum recursion depth exceeded");
    }
  }
  ~Deeper() { --in.depth_; }
  Deeper(const Deeper&) = delete;
  Interpreter& in;
};

// --- values --------------------------------------------------------------------------------------

Value Interpreter::undefined(std::string hint) {
  auto* const out = heap.make<Missing>();
  out->hint = std::move(hint);
  return {Kind::kUndefined, out};
}

Value Interpreter::undefined(const Value& owner, const Value& key) {
  auto* const out = heap.make<Missing>();
  out->has_owner = true;
  out->owner = owner;
  out->key = key;
  return {Kind::kUndefined, out};
}

Value Interpreter::from_json(const json::Value& value) {
  heap.work(1);
  switch (value.kind()) {
    case boost::json::kind::null:
      return {};
    case boost::json::kind::bool_:
      return value.get_bool();
    case boost::json::kind::int64:
      return Int{value.get_int64()};
    case boost::json::kind::uint64:
      return static_cast<Int>(value.get_uint64());
    case boost::json::kind::double_:
      return value.get_double();
    case boost::json::kind::string:
      return heap.text(std::string(value.get_string()));
    case boost::json::kind::array: {
      std::vector<Value> items;
      for (const auto& item : value.get_array()) items.push_back(from_json(item));
      return heap.list(std::move(items));
    }
    default:
      break;
  }
  auto* const dict = heap.make<Dict>(value.get_object().size() * 2 * sizeof(Value));
  for (const auto& member : value.get_object())
    dict->entries.emplace_back(heap.text(std::string(member.key())), from_json(member.value()));
  return {Kind::kDict, dict};
}

std::vector<Value> Interpreter::items_of(const Value& value) {
  std::vector<Value> out;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kText: {
      const std::string_view text = value.text();
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t begin = at;
        next_character(text, at);
        out.push_back(heap.text(std::string(text.substr(begin, at - begin)), value.is_markup()));
      }
      break;
    }
    case Kind::kDict:
      for (const auto& entry : value.dict().entries) out.push_back(entry.first);
      break;
    case Kind::kRange: {
      const Range& range = value.range();
      for (Int i = 0; i < range.size(); ++i) out.emplace_back(range.begin + i * range.step);
      break;
    }
    default:
      if (!value.is_sequence()) fail("TypeError", "'{}' object is not iterable", type_name(value));
      if (value.sequence().failure_type != nullptr)
        fail(value.sequence().failure_type, "{}", value.sequence().failure);
      if (!value.sequence().consumed) out = value.sequence().items;
      if (value.is(Kind::kGenerator)) value.sequence().consumed = true;
  }
  heap.work(out.size());
  return out;
}

// --- names ---------------------------------------------------------------------------------------

Scope* Interpreter::new_scope(Scope* parent) {
  Scope* const out = heap.make<Scope>();
  out->parent = parent;
  return out;
}

Value Interpreter::name(const Node& node) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    heap.work(scope->names.size() / 8);
    for (const auto& [known, value] : scope->names)
      if (known == node.name) return value;
  }
  const Global& global = globals_[static_cast<std::size_t>(node.name)];
  if (global.there) return global.value;
  auto* const out = heap.make<Missing>();
  out->key = heap.text(node.text);
  return {Kind::kUndefined, out};
}

void Interpreter::set(int name, const Value& value) {
  if (scope_ == nullptr) {
    globals_[static_cast<std::size_t>(name)] = {value, true};
    return;
  }
  heap.work(scope_->names.size() / 8);
  for (auto& [known, old] : scope_->names) {
    if (known != name) continue;
    old = value;
    return;
  }
  heap.take(sizeof(Value));
  scope_->names.emplace_back(name, value);
}

void Interpreter::assign(const Node& target, const Value& value) {
  if (target.op == Op::kName) return set(target.name, value);
  if (target.op == Op::kNamespaceAttribute) {
    const Value owner = name(target);
    if (owner.is(Kind::kUndefined)) fail_undefined(owner);
    if (!owner.is(Kind::kNamespace))
      fail("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    return set_entry(heap, owner.dict(), heap.text(target.text), value);
  }
  if (!value.is(Kind::kUndefined) && !value.is(Kind::kText) && !value.is(Kind::kDict) &&
      !value.is(Kind::kRange) && !value.is_sequence()) {
    fail("TypeError", "cannot unpack non-iterable {} object", type_name(value));
  }
  const auto items = items_of(value);
  const std::size_t count = target.parts.size();
  if (items.size() < count)
    fail("ValueError", "not enough values to unpack (expected {}, got {})", count, items.size());
  if (items.size() > count) fail("ValueError", "too many values to unpack (expected {})", count);
  for (std::size_t i = 0; i < count; ++i) assign(*target.parts[i], items[i]);
}

// --- attributes and items ------------------------------------------------------------------------

Value Interpreter::method(const Value& owner, std::string_view name) {
  auto* const out = heap.make<Function>();
  out->name = name;
  out->native = *find_method(owner.kind(), name);
  out->self = owner;
  return {Kind::kFunction, out};
}

Value Interpreter::attribute(const Value& owner, std::string_view name) {
  if (owner.is(Kind::kUndefined)) fail_undefined(owner);
  const auto missing = [&](bool forbidden) {
    Value out = undefined(owner, heap.text(std::string(name)));
    static_cast<Missing*>(out.object())->forbidden = forbidden;
    return out;
  };
  // Every object of Python has attributes of such names.
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return missing(true);
  Value out;
  if (owner.is(Kind::kNamespace)) {
    const Value* found = find_entry(heap, owner.dict(), name);
    if (found == nullptr) return missing(false);
    return name.starts_with('_') ? missing(true) : *found;
  }
  if (owner.is(Kind::kSpecial) && owner.special().find_attribute(*this, name, out)) return out;
  if (owner.is(Kind::kFunction) && find_macro_attribute(*this, owner.function(), name, out))
    return out;
  if (owner.is(Kind::kTuple) && find_group_attribute(owner, name, out)) return out;
  if (changes_owner(owner.kind(), name)) return missing(true);
  if (find_method(owner.kind(), name) != nullptr) return method(owner, name);
  if (owner.is(Kind::kDict)) {
    if (const Value* found = find_entry(heap, owner.dict(), name)) return *found;
  }
  return missing(false);
}

Value Interpreter::item(const Value& owner, const Value& key) {
  if (owner.is(Kind::kUndefined)) fail_undefined(owner);
  Value out;
  if (find_item(heap, owner, key, out)) return out;
  if (!key.is(Kind::kText)) return undefined(owner, key);
  // A dict without the key, and everything else, may have an attribute of the name.
  return attribute(owner, key.text());
}

Value Interpreter::slice(const Node& node) {
  const Value owner = evaluate(*node.parts[0]);
  Value bounds[3];
  for (int i = 0; i < 3; ++i) {
    const auto& part = node.parts[static_cast<std::size_t>(i) + 1];
    if (part) bounds[i] = evaluate(*part);
  }
  if (owner.is(Kind::kUndefined)) fail_undefined(owner);
  if (!owner.is(Kind::kText) && !owner.is(Kind::kList) && !owner.is(Kind::kTuple) &&
      !owner.is(Kind::kRange)) {
    fail("TypeError", "'{}' object is not subscriptable by a slice", type_name(owner));
  }
  return slice_of(heap, owner, bounds[0], bounds[1], bounds[2]);
}

// --- calls ---------------------------------------------------------------------------------------

Arguments Interpreter::arguments_of(const Node& node, std::size_t first) {
  Arguments out;
  for (std::size_t i = first; i < node.parts.size(); ++i)
    out.positional.push_back(evaluate(*node.parts[i]));
  for (const auto& [name, part] : node.named) out.named.emplace_back(name, evaluate(*part));
  if (node.star) {
    for (const Value& value : items_of(evaluate(*node.star))) out.positional.push_back(value);
  }
  if (node.star_star) {
    const Value more = evaluate(*node.star_star);
    if (!more.is(Kind::kDict))
      fail("TypeError", "argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.is(Kind::kText)) fail("TypeError", "keywords must be strings");
      out.named.emplace_back(key.text(), value);
    }
  }
  return out;
}

Value Interpreter::call_of(const Node& node) {
  const Node& callee = *node.parts[0];
  // A method of a value is called without a value for the method itself.
  if (callee.op == Op::kAttribute) {
    const Value owner = evaluate(*callee.parts[0]);
    if (!owner.is(Kind::kTuple) && !changes_owner(owner.kind(), callee.text)) {
      if (const Native* native = find_method(owner.kind(), callee.text)) {
        auto arguments = arguments_of(node, 1);
        line_ = node.line;
        if (owner.is(Kind::kText)) heap.work(owner.text().size() / kBytesPerStep);
        return (*native)(*this, owner, arguments);
      }
    }
    const Value function = attribute(owner, callee.text);
    auto arguments = arguments_of(node, 1);
    line_ = node.line;
    return call(function, arguments);
  }
  const Value function = evaluate(callee);
  auto arguments = arguments_of(node, 1);
  line_ = node.line;
  return call(function, arguments);
}

Value Interpreter::call(const Value& function, Arguments& arguments) {
  if (function.is(Kind::kUndefined)) fail_undefined(function);
  if (function.is(Kind::kSpecial)) return function.special().call(*this, arguments);
  if (!function.is(Kind::kFunction))
    fail("TypeError", "'{}' object is not callable", type_name(function));
  const Function& known = function.function();
  if (known.macro == nullptr) return known.native(*this, known.self, arguments);
  const Deeper deeper(*this);
  return macro_call(known, arguments);
}

Value Interpreter::function_of(const Node& macro) {
  auto* const out = heap.make<Function>();
  out->name = macro.text;
  out->macro = &macro;
  out->scope = scope_;
  return {Kind::kFunction, out};
}

Value Interpreter::macro_call(const Function& function, Arguments& arguments) {
  const Node& macro = *function.macro;
  const std::size_t count = macro.names.size(), given = arguments.positional.size();
  const auto take_named = [&](std::string_view name, Value& out) {
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& one) { return one.first == name; });
    if (found == arguments.named.end()) return false;
    out = found->second;
    arguments.named.erase(found);
    return true;
  };
  Scope* const scope = new_scope(function.scope);
  Scope* const before = std::exchange(scope_, scope);
  const auto number_of = [&](std::string_view name) {
    const auto found = syntax_.names.numbers.find(name);
    return found == syntax_.names.numbers.end() ? -1 : found->second;
  };
  // All that is given first; defaults may use it.
  std::vector<bool> there(count);
  for (std::size_t i = 0; i < count; ++i) {
    Value value;
    there[i] = i < given || take_named(macro.names[i], value);
    if (i < given) value = arguments.positional[i];
    if (there[i]) set(macro.parameters[i], value);
  }
  const std::size_t defaults = macro.parts.size() - (macro.op == Op::kCallBlock);
  for (std::size_t i = 0; i < count; ++i) {
    if (there[i]) continue;
    const auto from = count - defaults;
    set(macro.parameters[i],
        i >= from ? evaluate(*macro.parts[i - from])
                  : undefined(fmt::format("parameter '{}' was not provided", macro.names[i])));
  }
  const bool own_caller =
      std::find(macro.names.begin(), macro.names.end(), "caller") != macro.names.end();
  if (macro.uses_caller && !own_caller) {
    Value caller;
    if (!take_named("caller", caller)) caller = undefined("No caller defined");
    set(number_of("caller"), caller);
  }
  if (macro.uses_kwargs) {
    auto* const named = heap.make<Dict>();
    for (const auto& [name, value] : arguments.named)
      set_entry(heap, *named, heap.text(name), value);
    set(number_of("kwargs"), {Kind::kDict, named});
  } else if (!arguments.named.empty()) {
    fail("TypeError", "macro '{}' takes no keyword argument '{}'", macro.text,
         arguments.named.front().first);
  }
  if (macro.uses_varargs) {
    const auto from =
        arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, given));
    set(number_of("varargs"), heap.tuple({from, arguments.positional.end()}));
  } else if (given > count) {
    fail("TypeError", "macro '{}' takes not more than {} argument(s)", macro.text, count);
  }
  std::string text = captured(scope, [&] { run(macro.bodies[0]); });
  scope_ = before;
  return output_text(std::move(text));
}

Value Interpreter::filtered(std::string_view name, const Value& value, Arguments& arguments) {
  const Native* native = find_filter(name);
  if (native == nullptr) fail("TemplateRuntimeError", "No filter named '{}' found.", name);
  if (value.is(Kind::kText)) heap.work(value.text().size() / kBytesPerStep);
  return (*native)(*this, value, arguments);
}

bool Interpreter::tested(std::string_view name, const Value& value, Arguments& arguments) {
  const Test* test = find_test(name);
  if (test == nullptr) fail("TemplateRuntimeError", "No test named '{}' found.", name);
  return (*test)(*this, value, arguments);
}

Value Interpreter::filter_of(const Node& node, const Value& operand) {
  Arguments arguments = arguments_of(node, 1);
  line_ = node.line;
  if (node.known == nullptr) return filtered(node.text, operand, arguments);
  if (operand.is(Kind::kText)) heap.work(operand.text().size() / kBytesPerStep);
  return (*static_cast<const Native*>(node.known))(*this, operand, arguments);
}

bool Interpreter::test_of(const Node& node) {
  const Value operand = evaluate(*node.parts[0]);
  Arguments arguments = arguments_of(node, 1);
  line_ = node.line;
  if (node.known == nullptr) return tested(node.text, operand, arguments);
  return (*static_cast<const Test*>(node.known))(*this, operand, arguments);
}

// --- expressions ---------------------------------------------------------------------------------

Value Interpreter::evaluate(const Node& node) {
  const Deeper deeper(*this);
  line_ = node.line;
  switch (node.op) {
    case Op::kConstant:
      return node.value;
    case Op::kName:
      return name(node);
    case Op::kList:
    case Op::kTuple:
      return sequence_of(node);
    case Op::kDict:
      return dict_of(node);
    case Op::kAttribute:
      return attribute(evaluate(*node.parts[0]), node.text);
    case Op::kItem: {
      const Value owner = evaluate(*node.parts[0]);
      return item(owner, evaluate(*node.parts[1]));
    }
    case Op::kSlice:
      return slice(node);
    case Op::kCall:
      return call_of(node);
    case Op::kFilter:
      return filter_of(node, evaluate(*node.parts[0]));
    case Op::kTest:
      return test_of(node);
    case Op::kNot:
      return !is_true(evaluate(*node.parts[0]));
    case Op::kNegative:
    case Op::kPositive:
      return negative(evaluate(*node.parts[0]), node.op == Op::kNegative);
    case Op::kAnd:
    case Op::kOr: {
      const Value left = evaluate(*node.parts[0]);
      return is_true(left) == (node.op == Op::kOr) ? left : evaluate(*node.parts[1]);
    }
    case Op::kConcat:
      return concatenation(node);
    case Op::kMath: {
      const Value left = evaluate(*node.parts[0]), right = evaluate(*node.parts[1]);
      line_ = node.line;
      if (node.text == "%" && left.is(Kind::kText)) return percent_format(*this, left, right);
      return calculate(heap, node.text, left, right);
    }
    case Op::kCompare:
      return comparison(node);
    case Op::kCondition:
      if (is_true(evaluate(*node.parts[1]))) return evaluate(*node.parts[0]);
      if (node.parts[2]) return evaluate(*node.parts[2]);
      return undefined(
          "the inline if-expression evaluated to false and no else section was defined.");
    default:
      fail("TemplateRuntimeError", "no expression");
  }
}

Value Interpreter::sequence_of(const Node& node) {
  std::vector<Value> items;
  for (const auto& part : node.parts) items.push_back(evaluate(*part));
  return node.op == Op::kList ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

Value Interpreter::dict_of(const Node& node) {
  auto* const out = heap.make<Dict>();
  for (std::size_t i = 0; i < node.parts.size(); i += 2) {
    const Value key = evaluate(*node.parts[i]);
    set_entry(heap, *out, key, evaluate(*node.parts[i + 1]));
  }
  return {Kind::kDict, out};
}

Value Interpreter::concatenation(const Node& node) {
  std::string out;
  for (const auto& part : node.parts) out += str(heap, evaluate(*part));
  return heap.text(std::move(out));
}

Value Interpreter::comparison(const Node& node) {
  Value left = evaluate(*node.parts[0]);
  for (std::size_t i = 0; i < node.names.size(); ++i) {
    const Value right = evaluate(*node.parts[i + 1]);
    line_ = node.line;
    const std::string& sign = node.names[i];
    bool holds = false;
    if (sign == "==" || sign == "!=") {
      holds = is_equal(heap, left, right) == (sign == "==");
    } else if (sign == "in" || sign == "not in") {
      const bool once = right.is(Kind::kGenerator);
      holds = contains(heap, once ? heap.list(items_of(right)) : right, left) == (sign == "in");
    } else if (sign == "<") {
      holds = is_less(heap, left, right, "<");
    } else if (sign == ">") {
      holds = is_less(heap, right, left, ">");
    } else if (sign == "<=") {
      holds = is_less(heap, left, right, "<=") || is_equal(heap, left, right);
    } else {
      holds = is_less(heap, right, left, ">=") || is_equal(heap, left, right);
    }
    if (!holds) return false;
    left = right;
  }
  return true;
}

// --- statements ----------------------------------------------------------------------------------

void Interpreter::write(std::string_view text) {
  heap.take(text.size());
  *out_ += text;
}

void Interpreter::print(const Value& value) {
  if (autoescape_ && !value.is_markup()) return write(escape_html(str(heap, value)));
  if (value.is(Kind::kText)) return write(value.text());
  write(str(heap, value));
}

template <typename Act>
std::string Interpreter::captured(Scope* scope, Act act) {
  std::string text;
  Scope* const scope_before = std::exchange(scope_, scope);
  std::string* const out_before = std::exchange(out_, &text);
  act();  // a failure ends the rendering: nothing is put back then
  scope_ = scope_before;
  out_ = out_before;
  return text;
}

Interpreter::Flow Interpreter::run(const Body& body) {
  for (const auto& node : body) {
    const Flow flow = execute(*node);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Node& node) {
  const Deeper deeper(*this);
  line_ = node.line;
  switch (node.op) {
    case Op::kData:
      write(node.text);
      break;
    case Op::kPrint:
      print(evaluate(*node.parts[0]));
      break;
    case Op::kIf:
      return condition(node);
    case Op::kFor: {
      const Value items = evaluate(*node.parts[1]);
      loop(node, items, scope_, 1);
      break;
    }
    case Op::kSet:
      assign(*node.parts[0], evaluate(*node.parts[1]));
      break;
    case Op::kSetBlock: {
      Value value = output_text(captured(new_scope(scope_), [&] { run(node.bodies[0]); }));
      assign(*node.parts[0], node.parts[1] ? filter_chain(*node.parts[1], value) : value);
      break;
    }
    case Op::kFilterBlock: {
      const Value text = output_text(captured(new_scope(scope_), [&] { run(node.bodies[0]); }));
      print(filter_chain(*node.parts[0], text));
      break;
    }
    case Op::kMacro:
      set(node.name, function_of(node));
      break;
    case Op::kCallBlock:
      call_block(node);
      break;
    case Op::kWith:
      with(node);
      break;
    case Op::kAutoescape:
      return autoescape(node);
    case Op::kBlock:
      print(block_text(node));
      break;
    case Op::kGeneration:
      generation(node);
      break;
    case Op::kBreak:
      return Flow::kBreak;
    case Op::kContinue:
      return Flow::kContinue;
    default:
      fail("TypeError", "no loader for this environment specified");
  }
  return Flow::kNext;
}

Value Interpreter::filter_chain(const Node& node, const Value& text) {
  return filter_of(node, node.parts[0] ? filter_chain(*node.parts[0], text) : text);
}

Interpreter::Flow Interpreter::condition(const Node& node) {
  for (std::size_t i = 0; i < node.parts.size(); ++i) {
    if (is_true(evaluate(*node.parts[i]))) return run(node.bodies[i]);
  }
  return node.bodies.size() > node.parts.size() ? run(node.bodies.back()) : Flow::kNext;
}

void Interpreter::loop(const Node& node, const Value& items, Scope* scope, int depth) {
  auto values = items_of(items);
  if (node.parts[2]) {
    std::vector<Value> kept;
    for (const Value& value : values) {
      const std::string unused = captured(new_scope(scope), [&] {
        assign(*node.parts[0], value);
        if (is_true(evaluate(*node.parts[2]))) kept.push_back(value);
      });
    }
    values = std::move(kept);
  }
  heap.take(values.size() * sizeof(Value));
  auto* const state = heap.make<Loop>();
  state->items = std::move(values);
  state->node = &node;
  state->scope = scope;
  state->depth = depth;
  const auto number = syntax_.names.numbers.find("loop");
  Scope* const before = scope_;
  bool broken = false;
  for (state->index = 0; !broken && state->index < state->items.size(); ++state->index) {
    scope_ = new_scope(scope);
    if (number != syntax_.names.numbers.end()) set(number->second, {Kind::kSpecial, state});
    assign(*node.parts[0], state->items[state->index]);
    broken = run(node.bodies[0]) == Flow::kBreak;
  }
  if (state->items.empty() && node.bodies.size() > 1) {
    scope_ = new_scope(scope);
    run(node.bodies[1]);
  }
  scope_ = before;
}

Value Interpreter::recurse(const Node& node, const Value& items, Scope* scope, int depth) {
  const Deeper deeper(*this);
  return output_text(captured(scope, [&] { loop(node, items, scope, depth); }));
}

void Interpreter::with(const Node& node) {
  // The values are those of the scope around it.
  std::vector<Value> values;
  for (std::size_t i = 1; i < node.parts.size(); i += 2) values.push_back(evaluate(*node.parts[i]));
  Scope* const before = std::exchange(scope_, new_scope(scope_));
  for (std::size_t i = 0; i < values.size(); ++i) assign(*node.parts[2 * i], values[i]);
  run(node.bodies[0]);
  scope_ = before;
}

Interpreter::Flow Interpreter::autoescape(const Node& node) {
  const bool on = is_true(evaluate(*node.parts[0]));
  Scope* const before = std::exchange(scope_, new_scope(scope_));
  const bool before_on = std::exchange(autoescape_, on);
  const Flow out = run(node.bodies[0]);
  autoescape_ = before_on;
  scope_ = before;
  return out;
}

void Interpreter::generation(const Node& node) {
  const std::string text = captured(new_scope(scope_), [&] { run(node.bodies[0]); });
  counted_ += character_count(std::string_view(root_).substr(counted_bytes_));
  counted_bytes_ = root_.size();
  heap.take(sizeof(CharacterRange));
  ranges_.push_back({counted_, counted_ + character_count(text)});
  write(text);
}

void Interpreter::call_block(const Node& node) {
  const Node& call_node = *node.parts.back();
  const Value caller = function_of(node);
  const Value function = evaluate(*call_node.parts[0]);
  auto arguments = arguments_of(call_node, 1);
  arguments.named.emplace_back("caller", caller);
  print(call(function, arguments));
}

Value Interpreter::block_text(const Node& block) {
  const Deeper deeper(*this);
  return output_text(captured(new_scope(nullptr), [&] { run(block.bodies[0]); }));
}

Rendered Interpreter::render(const json::Object& context) {
  put_globals();
  for (const auto& member : context) {
    const std::string_view name = member.key();
    if (syntax_.names.numbers.contains(name)) put_global(name, from_json(member.value()));
  }
  run(syntax_.body);
  return {std::move(root_), std::move(ranges_)};
}

}  // namespace troupe::train::jinja
