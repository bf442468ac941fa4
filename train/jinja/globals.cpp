// The functions that every template knows.

#include <ctime>

#include "train/jinja/arguments.h"
#include "train/jinja/failure.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/operators.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {
namespace {

constexpr Int kRangeMax = 100'000;  // jinja2's sandbox has the same
constexpr std::size_t kTimeBytesMax = 1024;

Value make_range(Interpreter& in, Value, Arguments& arguments) {
  const Parameters given("range", arguments, {"start", "stop", "step"}, 1);
  auto* const out = in.heap.make<Range>();
  out->begin = given.has(1) ? given.integer(0, 0) : 0;
  out->end = given.integer(given.has(1) ? 1 : 0, 0);
  out->step = given.integer(2, 1);
  if (out->step == 0) fail("ValueError", "range() arg 3 must not be zero");
  if (out->size() > kRangeMax) {
    fail("OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
         kRangeMax);
  }
  return {Kind::kRange, out};
}

Value make_dict(Interpreter& in, Kind kind, Arguments& arguments) {
  auto* const out = in.heap.make<Dict>();
  if (arguments.positional.size() > 1) fail("TypeError", "dict expected at most 1 argument");
  for (const Value& from : arguments.positional) {
    if (from.is(Kind::kDict)) {
      in.heap.take(from.dict().entries.size() * 2 * sizeof(Value));
      out->entries = from.dict().entries;
      continue;
    }
    for (const Value& pair : in.items_of(from)) {
      const auto items = in.items_of(pair);
      if (items.size() != 2) fail("ValueError", "dictionary update sequence element is no pair");
      set_entry(in.heap, *out, items[0], items[1]);
    }
  }
  for (const auto& [name, value] : arguments.named)
    set_entry(in.heap, *out, in.heap.text(name), value);
  return {kind, out};
}
Value dict(Interpreter& in, Value, Arguments& arguments) {
  return make_dict(in, Kind::kDict, arguments);
}
Value make_namespace(Interpreter& in, Value, Arguments& arguments) {
  return make_dict(in, Kind::kNamespace, arguments);
}

Value raise_exception(Interpreter& in, Value, Arguments& arguments) {
  const Parameters given("raise_exception", arguments, {"message"}, 1);
  fail("TemplateError", "{}", str(in.heap, given[0]));
}

Value strftime_now(Interpreter& in, Value, Arguments& arguments) {
  const Parameters given("strftime_now", arguments, {"format"}, 1);
  const std::time_t now = in.clock.unix_time_us() / 1'000'000;
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::string format = given.text(0);
  if (format.empty()) return in.heap.text({});
  if (format.size() > kTimeBytesMax)
    fail(kLimitError, "a format of more than {} bytes", kTimeBytesMax);
  // A byte more, as an empty result would look like a failure.
  format += ' ';
  std::string out(format.size() * 64, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &parts));
  if (!out.empty()) out.pop_back();
  return in.heap.text(std::move(out));
}

Value lipsum(Interpreter&, Value, Arguments&) {
  fail("NotImplementedError", "lipsum is not supported: its text is random");
}

struct Cycler final : Special {
  std::vector<Value> items;
  std::size_t at = 0;

  static Value next(Interpreter&, Value self, Arguments&) {
    auto& cycler = static_cast<Cycler&>(self.special());
    return cycler.items[cycler.at++ % cycler.items.size()];
  }
  static Value reset(Interpreter&, Value self, Arguments&) {
    static_cast<Cycler&>(self.special()).at = 0;
    return {};
  }
  bool find_attribute(Interpreter& in, std::string_view name, Value& out) override {
    if (name == "current") out = items[at % items.size()];
    if (name == "next" || name == "reset") {
      auto* const function = in.heap.make<Function>();
      function->name = name;
      function->native = name == "next" ? next : reset;
      function->self = {Kind::kSpecial, this};
      out = {Kind::kFunction, function};
    }
    return !out.is_none() || name == "current";
  }
  Value call(Interpreter&, Arguments&) override {
    fail("TypeError", "'Cycler' object is not callable");
  }
};

Value cycler(Interpreter& in, Value, Arguments& arguments) {
  if (arguments.positional.empty()) fail("RuntimeError", "at least one item has to be provided");
  auto* const out = in.heap.make<Cycler>();
  out->items = arguments.positional;
  return {Kind::kSpecial, out};
}

struct Joiner final : Special {
  Value separator;
  bool used = false;

  bool find_attribute(Interpreter&, std::string_view, Value&) override { return false; }
  Value call(Interpreter& in, Arguments&) override {
    return std::exchange(used, true) ? separator : in.heap.text({});
  }
};

Value joiner(Interpreter& in, Value, Arguments& arguments) {
  const Parameters given("joiner", arguments, {"sep"});
  auto* const out = in.heap.make<Joiner>();
  out->separator = given.has(0) ? given[0] : in.heap.text(", ");
  return {Kind::kSpecial, out};
}

// `self`, whose attributes are the template's blocks.
struct Blocks final : Special {
  const std::vector<const Node*>* blocks = nullptr;

  static Value render(Interpreter& in, Value self, Arguments&) {
    return in.block_text(*static_cast<Blocks&>(self.special()).chosen);
  }
  const Node* chosen = nullptr;

  bool find_attribute(Interpreter& in, std::string_view name, Value& out) override {
    for (const Node* block : *blocks) {
      if (block->text != name) continue;
      auto* const self = in.heap.make<Blocks>();
      self->chosen = block;
      auto* const function = in.heap.make<Function>();
      function->name = name;
      function->native = render;
      function->self = {Kind::kSpecial, self};
      out = {Kind::kFunction, function};
      return true;
    }
    return false;
  }
  Value call(Interpreter&, Arguments&) override {
    fail("TypeError", "'TemplateReference' object is not callable");
  }
};

}  // namespace

void Interpreter::put_global(std::string_view name, const Value& value) {
  const auto found = syntax_.names.numbers.find(name);
  if (found != syntax_.names.numbers.end())
    globals_[static_cast<std::size_t>(found->second)] = {value, true};
}

void Interpreter::put_function(std::string_view name, Native native) {
  auto* const function = heap.make<Function>();
  function->name = name;
  function->native = native;
  put_global(name, {Kind::kFunction, function});
}

void Interpreter::put_globals() {
  put_function("range", make_range);
  put_function("dict", dict);
  put_function("namespace", make_namespace);
  put_function("raise_exception", raise_exception);
  put_function("strftime_now", strftime_now);
  put_function("lipsum", lipsum);
  put_function("cycler", cycler);
  put_function("joiner", joiner);
  if (syntax_.blocks.empty()) return;
  auto* const self = heap.make<Blocks>();
  self->blocks = &syntax_.blocks;
  put_global("self", {Kind::kSpecial, self});
}

}  // namespace troupe::train::jinja
