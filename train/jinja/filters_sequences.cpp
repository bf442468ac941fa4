// Filters of lists, dicts and whatever else can be iterated over.
#include <algorithm>
#include <optional>

#include "train/jinja/arguments.h"
#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/filter_table.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/operators.h"
#include "train/jinja/print.h"

namespace troupe::train::jinja {
namespace {

// "a.b.0" of an item.
Value attribute_of(Interpreter& in, Value item, const Value& path,
                   const Value* otherwise = nullptr) {
  if (path.is_integer()) {
    item = in.item(item, path);
  } else {
    if (!path.is(Kind::kText)) fail("TypeError", "an attribute must be a text or an integer");
    const std::string_view text = path.text();
    for (std::size_t begin = 0; begin <= text.size();) {
      const auto end = std::min(text.find('.', begin), text.size());
      const auto part = text.substr(begin, end - begin);
      Int index = 0;
      const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      item = digits && read_int(part, 10, index) ? in.item(item, index)
                                                 : in.item(item, in.heap.text(std::string(part)));
      begin = end + 1;
      if (item.is(Kind::kUndefined) && otherwise != nullptr) break;
    }
  }
  return item.is(Kind::kUndefined) && otherwise != nullptr ? *otherwise : item;
}

// The items that values are compared by: `attribute` of them, in one case.
Value sort_key(Interpreter& in, const Value& item, const Value& attribute, bool keeps_case) {
  const Value key = attribute.is_none() ? item : attribute_of(in, item, attribute);
  return !keeps_case && key.is(Kind::kText) ? in.heap.text(lower(key.text())) : key;
}

// What sort compares: attributes between commas, one after the other.
Value sort_keys(Interpreter& in, const Value& item, const Value& attribute, bool keeps_case) {
  if (!attribute.is(Kind::kText)) return sort_key(in, item, attribute, keeps_case);
  std::vector<Value> keys;
  const std::string& text = attribute.text();
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    keys.push_back(sort_key(in, item, in.heap.text(text.substr(begin, end - begin)), keeps_case));
    begin = end + 1;
  }
  return in.heap.tuple(std::move(keys));
}

struct Keyed {
  Value key, item;
};
std::vector<Keyed> sorted(Interpreter& in, const std::vector<Value>& items, const Value& attribute,
                          bool keeps_case, bool reverse) {
  std::vector<Keyed> out;
  for (const Value& item : items) out.push_back({sort_keys(in, item, attribute, keeps_case), item});
  // As Python keeps the order of equals in a reversed sort, too.
  std::stable_sort(out.begin(), out.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? is_less(in.heap, b.key, a.key) : is_less(in.heap, a.key, b.key);
  });
  return out;
}

// jinja2's generators are made while they are iterated over: a failure waits until then.
template <typename Make>
Value generated(Interpreter& in, Make make) {
  std::vector<Value> items;
  try {
    make(items);
  } catch (const Failure& failure) {
    if (failure.type == kLimitError) throw;
    const Value out = in.heap.generator({});
    out.sequence().failure_type = failure.type;
    out.sequence().failure = failure.message;
    return out;
  }
  return in.heap.generator(std::move(items));
}

Value length(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("length", arguments, {});
  switch (self.kind()) {
    case Kind::kUndefined:
      return Int{0};
    case Kind::kText:
      return static_cast<Int>(character_count(self.text()));
    case Kind::kBytes:
      return static_cast<Int>(self.text().size());
    case Kind::kDict:
      return static_cast<Int>(self.dict().entries.size());
    case Kind::kRange:
      return self.range().size();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return static_cast<Int>(self.sequence().items.size());
    case Kind::kSpecial: {
      Value out;
      if (self.special().find_attribute(in, "length", out)) return out;
      [[fallthrough]];
    }
    default:
      fail("TypeError", "object of type '{}' has no len()", type_name(self));
  }
}

Value to_list(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("list", arguments, {});
  return in.heap.list(in.items_of(self));
}

Value items_filter(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("items", arguments, {});
  return generated(in, [&](std::vector<Value>& out) {
    if (self.is(Kind::kUndefined)) return;
    if (!self.is(Kind::kDict)) fail("TypeError", "Can only get item pairs from a mapping.");
    for (const auto& [key, value] : self.dict().entries) out.push_back(in.heap.tuple({key, value}));
  });
}

Value first(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("first", arguments, {});
  const auto items = in.items_of(self);
  return items.empty() ? in.undefined("No first item, sequence was empty.") : items.front();
}
Value last(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("last", arguments, {});
  if (self.is(Kind::kGenerator)) fail("TypeError", "'generator' object is not reversible");
  const auto items = in.items_of(self);
  return items.empty() ? in.undefined("No last item, sequence was empty.") : items.back();
}

Value join_items(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("join", arguments, {"d", "attribute"});
  const std::string separator = given.has(0) ? soft_text(in, given[0]) : "";
  std::string out;
  bool begun = false;
  for (Value item : in.items_of(self)) {
    if (!given.is_none(1)) item = attribute_of(in, item, given[1]);
    if (begun) out += separator;
    begun = true;
    const std::string text = str(in.heap, item);
    in.heap.take(separator.size() + text.size());
    out += text;
  }
  return in.heap.text(std::move(out));
}

Value reverse(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters none("reverse", arguments, {});
  if (!self.is(Kind::kText) && !self.is_sequence() && !self.is(Kind::kDict) &&
      !self.is(Kind::kRange))
    fail("FilterArgumentError", "argument must be iterable");
  auto items = in.items_of(self);
  std::reverse(items.begin(), items.end());
  if (!self.is(Kind::kText))
    return in.heap.sequence(Kind::kGenerator, std::move(items), "list_reverseiterator");
  std::string out;
  for (const Value& item : items) out += item.text();
  return in.heap.text(std::move(out), self.is_markup());
}

Value sort(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> out;
  for (const auto& one :
       sorted(in, in.items_of(self), given[2], given.flag(1, false), given.flag(0, false)))
    out.push_back(one.item);
  return in.heap.list(std::move(out));
}

Value dictsort(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = given.has(1) ? given.text(1) : "key";
  if (by != "key" && by != "value")
    fail("FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
  if (!self.is(Kind::kDict)) in.call(in.attribute(self, "items"), arguments);
  std::vector<Value> pairs, out;
  for (const auto& [key, value] : self.dict().entries) pairs.push_back(in.heap.tuple({key, value}));
  for (const auto& one :
       sorted(in, pairs, Int{by == "value"}, given.flag(0, false), given.flag(2, false)))
    out.push_back(one.item);
  return in.heap.list(std::move(out));
}

template <bool largest>
Value extreme(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("min", arguments, {"case_sensitive", "attribute"});
  std::optional<Keyed> best;
  for (const Value& item : in.items_of(self)) {
    const Value key = sort_key(in, item, given[1], given.flag(0, false));
    const bool better = !best || (largest ? is_less(in.heap, best->key, key, ">")
                                          : is_less(in.heap, key, best->key));
    if (better) best = Keyed{key, item};
  }
  return best ? best->item : in.undefined("No aggregated item, sequence was empty.");
}

Value unique(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("unique", arguments, {"case_sensitive", "attribute"});
  return generated(in, [&](std::vector<Value>& out) {
    Dict seen;
    for (const Value& item : in.items_of(self)) {
      const Value key = sort_key(in, item, given[1], given.flag(0, false));
      if (find_entry(in.heap, seen, key) != nullptr) continue;
      set_entry(in.heap, seen, key, {});
      out.push_back(item);
    }
  });
}

Value groupby(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const bool keeps_case = given.flag(2, false);
  const Value* otherwise = given.has(1) ? &given[1] : nullptr;
  std::vector<Value> keyed, out;
  for (const Value& item : in.items_of(self))
    keyed.push_back(in.heap.tuple({attribute_of(in, item, given[0], otherwise), item}));
  std::vector<Value> group;
  Value key, name;
  const auto close = [&] {
    if (group.empty()) return;
    out.push_back(
        in.heap.sequence(Kind::kTuple, {name, in.heap.list(std::move(group))}, "_GroupTuple"));
    group.clear();
  };
  for (const auto& one : sorted(in, keyed, Int{0}, keeps_case, false)) {
    if (!group.empty() && !is_equal(in.heap, key, one.key)) close();
    const auto& pair = one.item.sequence().items;
    if (group.empty()) name = pair[0];
    key = one.key;
    group.push_back(pair[1]);
  }
  close();
  return in.heap.list(std::move(out));
}

Value sum_items(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("sum", arguments, {"attribute", "start"});
  Value out = given.has(1) ? given[1] : Value(Int{0});
  for (const Value& item : in.items_of(self)) {
    out = calculate(in.heap, "+", out, given.is_none(0) ? item : attribute_of(in, item, given[0]));
  }
  return out;
}

Value batch(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("batch", arguments, {"linecount", "fill_with"}, 1);
  const Int count = given.integer(0, 1);
  return generated(in, [&](std::vector<Value>& out) {
    std::vector<Value> line;
    for (const Value& item : in.items_of(self)) {
      if (std::ssize(line) == count) out.push_back(in.heap.list(std::exchange(line, {})));
      line.push_back(item);
    }
    if (!given.is_none(1) && !line.empty() && count > std::ssize(line)) {
      in.heap.take(static_cast<std::size_t>(std::min(count, Int{1} << 40)) * sizeof(Value));
      line.resize(static_cast<std::size_t>(count), given[1]);
    }
    if (!line.empty()) out.push_back(in.heap.list(std::move(line)));
  });
}

Value slice_filter(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("slice", arguments, {"slices", "fill_with"}, 1);
  return generated(in, [&](std::vector<Value>& out) {
    const auto items = in.items_of(self);
    const Int slices = given.integer(0, 1);
    if (slices == 0) fail("ZeroDivisionError", "integer division or modulo by zero");
    const Int size = std::ssize(items), each = slices > 0 ? size / slices : 0;
    const Int longer = slices > 0 ? size % slices : 0;
    Int at = 0;
    for (Int i = 0; i < slices; ++i) {
      const Int end = at + each + (i < longer);
      std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(at),
                              items.begin() + static_cast<std::ptrdiff_t>(end));
      if (!given.is_none(1) && i >= longer) part.push_back(given[1]);
      out.push_back(in.heap.list(std::move(part)));
      at = end;
    }
  });
}

// The first positional argument, taken out.
Value take_first(Arguments& arguments, const char* missing) {
  if (arguments.positional.empty()) fail("FilterArgumentError", "{}", missing);
  const Value out = arguments.positional.front();
  arguments.positional.erase(arguments.positional.begin());
  return out;
}

Value map(Interpreter& in, Value self, Arguments& arguments) {
  const bool by_attribute = arguments.positional.empty() &&
                            std::any_of(arguments.named.begin(), arguments.named.end(),
                                        [](const auto& one) { return one.first == "attribute"; });
  return generated(in, [&](std::vector<Value>& out) {
    if (!is_true(self)) return;
    if (by_attribute) {
      const Parameters given("map", arguments, {"attribute", "default"}, 1);
      for (const Value& item : in.items_of(self))
        out.push_back(attribute_of(in, item, given[0], given.has(1) ? &given[1] : nullptr));
      return;
    }
    const Value name = take_first(arguments, "map requires a filter argument");
    for (const Value& item : in.items_of(self)) {
      Arguments copy = arguments;
      out.push_back(in.filtered(str(in.heap, name), item, copy));
    }
  });
}

Value attr(Interpreter& in, Value self, Arguments& arguments) {
  const Parameters given("attr", arguments, {"name"}, 1);
  const std::string& name = given.text(0);
  // Of attributes alone: a dict's members are none.
  if (!self.is(Kind::kDict)) return in.attribute(self, name);
  const Value bare(Kind::kDict, in.heap.make<Dict>());
  const Value found = in.attribute(bare, name);
  return found.is(Kind::kUndefined) ? in.undefined(self, given[0]) : in.attribute(self, name);
}

template <bool of_attributes, bool wanted>
Value select(Interpreter& in, Value self, Arguments& arguments) {
  return generated(in, [&](std::vector<Value>& out) {
    if (!is_true(self)) return;
    Value path;
    if (of_attributes) path = take_first(arguments, "Missing parameter for attribute name");
    std::optional<Value> test;
    if (!arguments.positional.empty()) test = take_first(arguments, "");
    for (const Value& item : in.items_of(self)) {
      const Value value = of_attributes ? attribute_of(in, item, path) : item;
      Arguments copy = arguments;
      const bool holds = test ? in.tested(str(in.heap, *test), value, copy) : is_true(value);
      if (holds == wanted) out.push_back(item);
    }
  });
}

Value unsupported(Interpreter&, Value, Arguments&) {
  fail("NotImplementedError",
       "the filters pprint, random, urlize, wordwrap and xmlattr are not supported");
}

constexpr Filter kSequenceFilters[] = {
    {"attr", attr},
    {"batch", batch},
    {"count", length},
    {"dictsort", dictsort},
    {"first", first},
    {"groupby", groupby},
    {"items", items_filter},
    {"join", join_items},
    {"last", last},
    {"length", length},
    {"list", to_list},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"pprint", unsupported},
    {"random", unsupported},
    {"reject", select<false, false>},
    {"rejectattr", select<true, false>},
    {"reverse", reverse},
    {"select", select<false, true>},
    {"selectattr", select<true, true>},
    {"slice", slice_filter},
    {"sort", sort},
    {"sum", sum_items},
    {"unique", unique},
    {"urlize", unsupported},
    {"wordwrap", unsupported},
    {"xmlattr", unsupported},
};

}  // namespace

std::span<const Filter> sequence_filters() { return kSequenceFilters; }

}  // namespace troupe::train::jinja
