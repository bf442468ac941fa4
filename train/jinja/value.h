#pragma once
// The values of a template: Python's, as far as templates get hold of them.
//
// A Value is a small thing that is copied; texts, lists and the like are objects of a Heap, which
// keeps all that a rendering made until it ends. So values may refer to each other in circles.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::train::jinja {

using Int = __int128;  // Python's integers have no end; beyond these it is an OverflowError

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kView,       // dict.items() and the like
  kGenerator,  // what filters return that make one item after the other
  kDict,
  kNamespace,
  kRange,
  kFunction,
  kSpecial,  // loop, cycler, joiner, self
};

struct Object {
  virtual ~Object() = default;
};
struct Text;
struct Sequence;
struct Dict;
struct Range;
struct Function;
struct Special;

class Value {
 public:
  Value() = default;  // None
  Value(bool value) : kind_(Kind::kBool), bool_(value) {}
  Value(Int value) : kind_(Kind::kInt), int_(value) {}
  Value(double value) : kind_(Kind::kFloat), float_(value) {}
  Value(Kind kind, Object* object) : kind_(kind), object_(object) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_number() const { return kind_ >= Kind::kBool && kind_ <= Kind::kFloat; }
  bool is_integer() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }
  // Their items lie in a Sequence.
  bool is_sequence() const { return kind_ >= Kind::kList && kind_ <= Kind::kGenerator; }

  bool as_bool() const { return bool_; }
  Int as_int() const { return kind_ == Kind::kBool ? Int{bool_} : int_; }
  double as_double() const {
    return kind_ == Kind::kFloat ? float_ : static_cast<double>(as_int());
  }
  Object* object() const { return object_; }
  const std::string& text() const;
  bool is_markup() const;
  Sequence& sequence() const;
  Dict& dict() const;
  Range& range() const;
  Function& function() const;
  Special& special() const;

 private:
  Kind kind_ = Kind::kNone;
  union {
    bool bool_;
    Int int_ = 0;
    double float_;
    Object* object_;
  };
};

struct Text final : Object {
  std::string text;
  bool markup = false;  // safe HTML, which escapes what is joined to it
};
struct Sequence final : Object {
  std::vector<Value> items;
  const char* type = "list";  // Python's name of it
  bool consumed = false;      // a generator that was iterated over
  // What its making failed with, which is told when it is iterated over; type null: nothing.
  const char* failure_type = nullptr;
  std::string failure;
};
struct Dict final : Object {
  std::vector<std::pair<Value, Value>> entries;  // in the order in which they were put in
};
struct Range final : Object {
  Int begin = 0, end = 0, step = 1;
  Int size() const;
};
// What is not there. A use of it beyond printing and testing is an error, which says what it was.
struct Missing final : Object {
  std::string hint;        // the message; or empty, then:
  bool has_owner = false;  // it was looked for in `owner`
  Value owner, key;
  bool forbidden = false;  // the sandbox hides it
};

class Interpreter;
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
// A thing with attributes of its own: loop, cycler, joiner, self.
struct Special : Object {
  virtual bool find_attribute(Interpreter& in, std::string_view name, Value& out) = 0;
  virtual Value call(Interpreter& in, Arguments& arguments) = 0;
};
using Native = Value (*)(Interpreter&, Value self, Arguments&);

struct Node;
// The names of a body, within those around it.
struct Scope final : Object {
  Scope* parent = nullptr;
  std::vector<std::pair<int, Value>> names;
};
struct Function final : Object {
  std::string name;
  Native native = nullptr;  // or a macro:
  Value self;
  const Node* macro = nullptr;
  Scope* scope = nullptr;
};

// Owns objects, and counts what a rendering costs, up to limits.
class Heap {
 public:
  Heap(std::size_t bytes_max, std::uint64_t steps_max)
      : bytes_max_(bytes_max), steps_max_(steps_max) {}
  // Counts steps of work; fails (LimitError) where there are too many.
  void work(std::uint64_t steps) {
    steps_ += steps;
    if (steps_ > steps_max_) fail_steps();
  }
  // Fails (LimitError) where it would be too much.
  void take(std::size_t bytes);
  // The same for bytes that are taken later, as a text that grows.
  void check(std::size_t bytes) const;
  template <typename T>
  T* make(std::size_t bytes = 0) {
    take(sizeof(T) + bytes + sizeof(void*));
    auto object = std::make_unique<T>();
    T* const out = object.get();
    objects_.push_back(std::move(object));
    return out;
  }
  Value text(std::string text, bool markup = false);
  Value sequence(Kind kind, std::vector<Value> items, const char* type);
  Value list(std::vector<Value> items) { return sequence(Kind::kList, std::move(items), "list"); }
  Value tuple(std::vector<Value> items) {
    return sequence(Kind::kTuple, std::move(items), "tuple");
  }
  Value generator(std::vector<Value> items) {
    return sequence(Kind::kGenerator, std::move(items), "generator");
  }

 private:
  [[noreturn]] void fail_steps() const;

  std::size_t bytes_ = 0, bytes_max_;  // never more than the most
  std::uint64_t steps_ = 0, steps_max_;
  std::vector<std::unique_ptr<Object>> objects_;
};

// How much of a text is looked at in one step of work.
inline constexpr std::size_t kBytesPerStep = 64;

// type(value).__name__
const char* type_name(const Value& value);
bool is_true(const Value& value);
[[noreturn]] void fail_undefined(const Value& value);
// The number of a text as int() and float() read it; false where it is none.
bool read_int(std::string_view text, int base, Int& out);
bool read_float(std::string_view text, double& out);

}  // namespace troupe::train::jinja
