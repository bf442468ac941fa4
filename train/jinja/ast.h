#pragma once
// A parsed template: expressions and statements in one kind of node.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/jinja/value.h"

namespace troupe::train::jinja {

enum class Op : std::uint8_t {
  // Expressions. `parts` are the operands from left to right.
  kConstant,  // value
  kName,      // name
  kList,
  kTuple,
  kDict,       // key, value, key, value, …
  kAttribute,  // .text
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], null where left out
  kCall,       // parts[0](the others, named, star, star_star)
  kFilter,     // parts[0] | text(the others); parts[0] is null in a filter block
  kTest,       // parts[0] is text(the others)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kConcat,              // ~
  kMath,                // text is the operator
  kCompare,             // parts[0] names[0] parts[1] names[1] parts[2] …
  kCondition,           // parts[0] if parts[1] else parts[2] (null: nothing)
  kNamespaceAttribute,  // name.text, as a target of set
  // Statements.
  kData,         // text
  kPrint,        // parts[0]
  kIf,           // parts[i]: bodies[i], else the last of the bodies
  kFor,          // for parts[0] in parts[1] if parts[2] (or null): bodies[0] else bodies[1]; flag:
                 // recursive
  kSet,          // parts[0] = parts[1]
  kSetBlock,     // parts[0] = bodies[0] | parts[1] (or null)
  kMacro,        // name, parameters: names, their defaults: parts (the last ones); bodies[0]
  kCallBlock,    // the same, for the call parts.back()
  kFilterBlock,  // parts[0] applied to bodies[0]
  kWith,         // targets and values in turn: parts; bodies[0]
  kAutoescape,   // parts[0]; bodies[0]
  kBlock,        // text; bodies[0]
  kGeneration,   // bodies[0]
  kBreak,
  kContinue,
  kNoLoader,  // include, import, extends
};

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct Node {
  Op op = Op::kConstant;
  int line = 0;
  int depth = 1;  // of the tree below
  int name = -1;  // the number of a name
  std::string text;
  Value value;
  std::vector<NodePtr> parts;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr star, star_star;
  std::vector<std::string> names;  // operators of a comparison, parameters of a macro
  std::vector<int> parameters;     // their numbers
  std::vector<std::vector<NodePtr>> bodies;
  bool flag = false;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  // macros
  const void* known = nullptr;  // the filter's or test's function; null: there is none
};

// Names by number: lookups compare numbers.
struct Names {
  std::map<std::string, int, std::less<>> numbers;
  int number_of(const std::string& name);
};

struct Syntax {
  Names names;
  Heap constants;
  std::vector<NodePtr> body;
  std::vector<const Node*> blocks;
  Syntax();
};

}  // namespace troupe::train::jinja
