#pragma once
// Python's operators on values.

#include "train/jinja/value.h"

namespace troupe::train::jinja {

// The same in the sense of ==; of <, a TypeError where the kinds do not compare.
bool is_equal(Heap& heap, const Value& a, const Value& b, int depth = 0);
bool is_less(Heap& heap, const Value& a, const Value& b, const char* sign = "<", int depth = 0);

// `sign`: + - * / // % ** (without % of texts, which is formatting).
Value calculate(Heap& heap, std::string_view sign, const Value& a, const Value& b);
Value negative(const Value& value, bool minus);

// a[key], where a has it: of lists, tuples, ranges, texts by position, of dicts by key.
bool find_item(Heap& heap, const Value& owner, const Value& key, Value& out);
Value slice_of(Heap& heap, const Value& owner, const Value& begin, const Value& end,
               const Value& step);
bool contains(Heap& heap, const Value& owner, const Value& item);

// The entry of a key; null where there is none. A list or dict as key is a TypeError.
Value* find_entry(Heap& heap, Dict& dict, const Value& key);
Value* find_entry(Heap& heap, Dict& dict, std::string_view key);
void set_entry(Heap& heap, Dict& dict, const Value& key, const Value& value);

}  // namespace troupe::train::jinja
