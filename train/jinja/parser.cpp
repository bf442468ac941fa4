#include "train/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "train/jinja/failure.h"
#include "train/jinja/filters.h"
#include "train/jinja/lexer.h"
#include "train/jinja/tests.h"

namespace troupe::train::jinja {
namespace {

// jinja2 ends with a RecursionError a little later. Far below what a stack holds.
constexpr int kNestingMax = 80, kTreeDepthMax = 250;
constexpr std::size_t kConstantBytesMax = std::size_t{1} << 26, kBlocksMax = 1000;

using Type = Token::Type;
using Body = std::vector<NodePtr>;
using Ends = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source)
      : syntax_(std::make_unique<Syntax>()), tokens_(tokens_of(source)) {}

  std::unique_ptr<Syntax> run() {
    syntax_->body = body_until({});
    if (unknown_) throw *unknown_;
    return std::move(syntax_);
  }

 private:
  // --- tokens ------------------------------------------------------------------------------------

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& out = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return out;
  }
  bool skip_name(std::string_view name) {
    const bool found = now().is_name(name);
    if (found) take();
    return found;
  }
  bool skip_sign(std::string_view sign) {
    const bool found = now().is_sign(sign);
    if (found) take();
    return found;
  }
  [[noreturn]] void fail_at(int line, std::string message) const {
    throw Failure{kSyntaxError, std::move(message), line};
  }
  std::string described(const Token& token) const {
    switch (token.type) {
      case Type::kBlockEnd:
        return "end of statement block";
      case Type::kVariableEnd:
        return "end of print statement";
      case Type::kEnd:
        return "end of template";
      default:
        return token.text;
    }
  }
  const Token& expect_sign(std::string_view sign) {
    if (now().is_sign(sign)) return take();
    fail_expected(sign);
  }
  const Token& expect(Type type, std::string_view what) {
    if (now().is(type)) return take();
    fail_expected(what);
  }
  [[noreturn]] void fail_expected(std::string_view what) const {
    if (now().is(Type::kEnd))
      fail_at(now().line, fmt::format("unexpected end of template, expected '{}'.", what));
    fail_at(now().line, fmt::format("expected token '{}', got '{}'", what, described(now())));
  }
  std::string expect_name() { return expect(Type::kName, "name").text; }

  // --- nodes -------------------------------------------------------------------------------------

  // Counts how deep the source is nested while it lives.
  struct Nested {
    explicit Nested(Parser& parser) : parser(parser) {
      if (++parser.nesting_ > kNestingMax) parser.fail_at(parser.now().line, "nested too deeply");
    }
    ~Nested() { --parser.nesting_; }
    Nested(const Nested&) = delete;
    Parser& parser;
  };

  void adopt(Node& parent, NodePtr child) {
    if (child) {
      parent.depth = std::max(parent.depth, child->depth + 1);
      if (parent.depth > kTreeDepthMax) fail_at(parent.line, "an expression is nested too deeply");
    }
    parent.parts.push_back(std::move(child));
  }
  template <typename... Parts>
  NodePtr make(Op op, int line, Parts... parts) {
    auto out = std::make_unique<Node>();
    out->op = op;
    out->line = line;
    (adopt(*out, std::move(parts)), ...);
    return out;
  }
  NodePtr constant(int line, Value value) {
    auto out = make(Op::kConstant, line);
    out->value = value;
    return out;
  }
  NodePtr name_node(int line, const std::string& name) {
    auto out = make(Op::kName, line);
    out->name = syntax_->names.number_of(name);
    out->text = name;
    for (Node* macro : macros_) {
      macro->uses_caller |= name == "caller";
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
    }
    return out;
  }

  // What is conditional may use filters that are not there, as long as it is not reached.
  struct Soft {
    Soft(Parser& parser, bool soft) : parser(parser), before(parser.soft_) { parser.soft_ = soft; }
    ~Soft() { parser.soft_ = before; }
    Soft(const Soft&) = delete;
    Parser& parser;
    bool before;
  };
  void check_known(const Node& node, const char* kind) {
    if (node.known != nullptr || soft_ || unknown_) return;
    unknown_ = Failure{"TemplateAssertionError", fmt::format("No {} named '{}'.", kind, node.text),
                       node.line};
  }

  // --- expressions -------------------------------------------------------------------------------

  NodePtr expression(bool with_condition = true) {
    const Nested nested(*this);
    const auto unknown_before = unknown_;
    auto value = disjunction();
    if (!with_condition || !now().is_name("if")) return value;
    unknown_ = unknown_before;  // what was read is conditional
    const Soft soft(*this, true);
    while (now().is_name("if")) {
      const int line = take().line;
      auto test = disjunction();
      NodePtr otherwise;
      if (skip_name("else")) otherwise = expression();
      value = make(Op::kCondition, line, std::move(value), std::move(test), std::move(otherwise));
    }
    return value;
  }

  NodePtr disjunction() {
    auto left = conjunction();
    while (now().is_name("or")) {
      const int line = take().line;
      left = make(Op::kOr, line, std::move(left), conjunction());
    }
    return left;
  }
  NodePtr conjunction() {
    auto left = negation();
    while (now().is_name("and")) {
      const int line = take().line;
      left = make(Op::kAnd, line, std::move(left), negation());
    }
    return left;
  }
  NodePtr negation() {
    if (!now().is_name("not")) return comparison();
    const Nested nested(*this);
    const int line = take().line;
    return make(Op::kNot, line, negation());
  }

  NodePtr comparison() {
    auto left = sum();
    NodePtr out;
    while (true) {
      std::string sign;
      for (const char* one : {"==", "!=", "<", "<=", ">", ">="}) {
        if (now().is_sign(one)) sign = one;
      }
      if (now().is_name("in")) sign = "in";
      if (now().is_name("not") && ahead().is_name("in")) sign = "not in";
      if (sign.empty()) return out ? std::move(out) : std::move(left);
      const int line = take().line;
      if (sign == "not in") take();
      if (!out) out = make(Op::kCompare, line, std::move(left));
      out->names.push_back(sign);
      adopt(*out, sum());
    }
  }

  NodePtr math(NodePtr left, std::string sign, NodePtr right, int line) {
    auto out = make(Op::kMath, line, std::move(left), std::move(right));
    out->text = std::move(sign);
    return out;
  }
  NodePtr sum() {
    auto left = concatenation();
    while (now().is_sign("+") || now().is_sign("-")) {
      const Token sign = take();
      left = math(std::move(left), sign.text, concatenation(), sign.line);
    }
    return left;
  }
  NodePtr concatenation() {
    auto left = product();
    if (!now().is_sign("~")) return left;
    auto out = make(Op::kConcat, now().line, std::move(left));
    while (skip_sign("~")) adopt(*out, product());
    return out;
  }
  NodePtr product() {
    auto left = power();
    while (now().is_sign("*") || now().is_sign("/") || now().is_sign("//") || now().is_sign("%")) {
      const Token sign = take();
      left = math(std::move(left), sign.text, power(), sign.line);
    }
    return left;
  }
  NodePtr power() {
    auto left = unary(true);
    while (now().is_sign("**")) {
      const int line = take().line;
      left = math(std::move(left), "**", unary(true), line);
    }
    return left;
  }
  NodePtr unary(bool with_filters) {
    const Nested nested(*this);
    NodePtr out;
    if (now().is_sign("-") || now().is_sign("+")) {
      const Token sign = take();
      out = make(sign.text == "-" ? Op::kNegative : Op::kPositive, sign.line, unary(false));
    } else {
      out = primary(false);
    }
    out = postfix(std::move(out));
    return with_filters ? filters_and_tests(std::move(out)) : std::move(out);
  }

  NodePtr primary(bool is_target) {
    const Token token = now();
    const int line = token.line;
    switch (token.type) {
      case Type::kName:
        take();
        if (token.text == "true" || token.text == "True") return constant(line, true);
        if (token.text == "false" || token.text == "False") return constant(line, false);
        if (token.text == "none" || token.text == "None") return constant(line, {});
        if (is_target && skip_sign(".")) {
          auto out = name_node(line, token.text);
          out->op = Op::kNamespaceAttribute;
          out->text = expect_name();
          return out;
        }
        return name_node(line, token.text);
      case Type::kText: {
        std::string text;
        while (now().is(Type::kText)) text += take().text;
        return constant(line, syntax_->constants.text(std::move(text)));
      }
      case Type::kInteger:
        take();
        return constant(line, token.integer);
      case Type::kFloat:
        take();
        return constant(line, token.number);
      default:
        break;
    }
    if (skip_sign("(")) {
      auto out = tuple({.in_brackets = true});
      expect_sign(")");
      return out;
    }
    if (skip_sign("[")) {
      auto out = make(Op::kList, line);
      while (!now().is_sign("]")) {
        if (!out->parts.empty()) expect_sign(",");
        if (now().is_sign("]")) break;
        adopt(*out, expression());
      }
      expect_sign("]");
      return out;
    }
    if (skip_sign("{")) {
      auto out = make(Op::kDict, line);
      while (!now().is_sign("}")) {
        if (!out->parts.empty()) expect_sign(",");
        if (now().is_sign("}")) break;
        adopt(*out, expression());
        expect_sign(":");
        adopt(*out, expression());
      }
      expect_sign("}");
      return out;
    }
    fail_at(line, fmt::format("unexpected '{}'", described(token)));
  }

  struct TupleRules {
    bool with_condition = true;
    bool in_brackets = false;  // () is one
    bool targets = false;      // of names alone
    bool with_namespace = false;
    std::string_view end = {};  // a name that ends it
  };
  // Expressions between commas, or one that is none.
  NodePtr tuple(const TupleRules& rules) {
    const Nested nested(*this);
    const int line = now().line;
    auto out = make(Op::kTuple, line);
    bool is_tuple = false;
    while (true) {
      if (!out->parts.empty()) expect_sign(",");
      const bool ends = now().is(Type::kVariableEnd) || now().is(Type::kBlockEnd) ||
                        now().is_sign(")") || (!rules.end.empty() && now().is_name(rules.end));
      if (ends) break;
      adopt(*out, rules.targets ? primary(rules.with_namespace) : expression(rules.with_condition));
      if (!now().is_sign(",")) break;
      is_tuple = true;
    }
    if (is_tuple) return out;
    if (!out->parts.empty()) return std::move(out->parts.front());
    if (!rules.in_brackets)
      fail_at(now().line, fmt::format("Expected an expression, got '{}'", described(now())));
    return out;
  }

  NodePtr postfix(NodePtr node) {
    while (true) {
      const int line = now().line;
      if (skip_sign(".")) {
        if (now().is(Type::kInteger)) {
          node = make(Op::kItem, line, std::move(node), constant(line, take().integer));
        } else {
          node = make(Op::kAttribute, line, std::move(node));
          node->text = expect_name();
        }
      } else if (skip_sign("[")) {
        node = subscript(std::move(node), line);
      } else if (now().is_sign("(")) {
        node = make(Op::kCall, line, std::move(node));
        arguments(*node);
      } else {
        return node;
      }
    }
  }

  NodePtr subscript(NodePtr owner, int line) {
    std::vector<NodePtr> keys;
    while (!now().is_sign("]")) {
      if (!keys.empty()) expect_sign(",");
      if (now().is_sign("]")) break;
      NodePtr bounds[3];
      int colons = 0;
      for (int i = 0; i < 3; ++i) {
        if (!now().is_sign(":") && !now().is_sign("]") && !now().is_sign(","))
          bounds[i] = expression();
        if (i == 2 || !skip_sign(":")) break;
        ++colons;
      }
      if (colons > 0) {
        if (!keys.empty() || !now().is_sign("]"))
          fail_at(line, "a slice stands alone within its brackets");
        take();
        return make(Op::kSlice, line, std::move(owner), std::move(bounds[0]), std::move(bounds[1]),
                    std::move(bounds[2]));
      }
      if (!bounds[0]) fail_at(line, "expected subscript expression");
      keys.push_back(std::move(bounds[0]));
    }
    expect_sign("]");
    if (keys.empty()) fail_at(line, "expected subscript expression");
    NodePtr key = std::move(keys.front());
    if (keys.size() > 1) {
      auto all = make(Op::kTuple, line, std::move(key));
      for (std::size_t i = 1; i < keys.size(); ++i) adopt(*all, std::move(keys[i]));
      key = std::move(all);
    }
    return make(Op::kItem, line, std::move(owner), std::move(key));
  }

  void arguments(Node& call) {
    const int line = expect_sign("(").line;
    const auto ensure = [&](bool good) {
      if (!good) fail_at(line, "invalid syntax for function call expression");
    };
    bool first = true;
    while (!now().is_sign(")")) {
      if (!first) expect_sign(",");
      if (!first && now().is_sign(")")) break;
      first = false;
      if (skip_sign("*")) {
        ensure(!call.star && !call.star_star);
        call.star = expression();
      } else if (skip_sign("**")) {
        ensure(!call.star_star);
        call.star_star = expression();
      } else if (now().is(Type::kName) && ahead().is_sign("=")) {
        ensure(!call.star_star);
        std::string name = take().text;
        take();
        call.named.emplace_back(std::move(name), expression());
      } else {
        ensure(!call.star && !call.star_star && call.named.empty());
        adopt(call, expression());
      }
    }
    expect_sign(")");
    for (const NodePtr* one : {&call.star, &call.star_star})
      if (*one) call.depth = std::max(call.depth, (*one)->depth + 1);
    for (const auto& one : call.named) call.depth = std::max(call.depth, one.second->depth + 1);
    if (call.depth > kTreeDepthMax) fail_at(line, "an expression is nested too deeply");
  }

  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_sign(".")) name += "." + expect_name();
    return name;
  }

  // Behind the sign |.
  NodePtr filter(NodePtr operand) {
    auto out = make(Op::kFilter, now().line, std::move(operand));
    out->text = dotted_name();
    if (now().is_sign("(")) arguments(*out);
    out->known = find_filter(out->text);
    check_known(*out, "filter");
    return out;
  }
  NodePtr filters_and_tests(NodePtr node) {
    while (true) {
      if (skip_sign("|")) {
        node = filter(std::move(node));
      } else if (now().is_name("is")) {
        node = test(std::move(node));
      } else if (now().is_sign("(")) {
        node = make(Op::kCall, now().line, std::move(node));
        arguments(*node);
      } else {
        return node;
      }
    }
  }
  NodePtr test(NodePtr operand) {
    const int line = take().line;
    const bool negated = skip_name("not");
    auto out = make(Op::kTest, line, std::move(operand));
    out->text = dotted_name();
    const Token& next = now();
    const bool begins = next.is(Type::kName) || next.is(Type::kText) || next.is(Type::kInteger) ||
                        next.is(Type::kFloat) || next.is_sign("[") || next.is_sign("{");
    if (next.is_sign("(")) {
      arguments(*out);
    } else if (begins && !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) {
      if (next.is_name("is")) fail_at(line, "You cannot chain multiple tests with is");
      adopt(*out, postfix(primary(false)));
    }
    out->known = find_test(out->text);
    check_known(*out, "test");
    return negated ? make(Op::kNot, line, std::move(out)) : std::move(out);
  }

  // --- statements --------------------------------------------------------------------------------

  // Up to the tag whose name is one of `ends`, which is the token then; of none: to the end.
  Body body_until(Ends ends) {
    const Nested nested(*this);
    Body out;
    while (true) {
      const Token& token = now();
      if (token.is(Type::kEnd)) {
        if (ends.size() > 0) fail_end(ends);
        return out;
      }
      take();
      if (token.is(Type::kData)) {
        out.push_back(make(Op::kData, token.line));
        out.back()->text = token.text;
      } else if (token.is(Type::kVariableBegin)) {
        out.push_back(make(Op::kPrint, token.line, tuple({})));
        expect(Type::kVariableEnd, "end of print statement");
      } else {
        for (const auto end : ends)
          if (now().is_name(end)) return out;
        for (auto& one : statement()) out.push_back(std::move(one));
        expect(Type::kBlockEnd, "end of statement block");
      }
    }
  }
  [[noreturn]] void fail_end(Ends ends) const {
    std::string all;
    for (const auto end : ends) all += (all.empty() ? "'" : " or '") + std::string(end) + "'";
    fail_at(now().line, "Unexpected end of template. Jinja was looking for the following tags: " +
                            all + ". The innermost block that needs to be closed is " +
                            (open_.empty() ? std::string() : "'" + open_.back() + "'") + ".");
  }
  // The body behind a tag's words.
  Body body(Ends ends, bool soft = false) {
    const Soft within(*this, soft);
    skip_sign(":");
    expect(Type::kBlockEnd, "end of statement block");
    return body_until(ends);
  }
  // The same, and past its one end.
  Body whole_body(std::string_view end, bool soft = false) {
    auto out = body({end}, soft);
    take();
    return out;
  }

  std::vector<NodePtr> one(NodePtr node) {
    std::vector<NodePtr> out;
    out.push_back(std::move(node));
    return out;
  }

  std::vector<NodePtr> statement() {
    const Token tag = expect(Type::kName, "tag name");
    const std::string& name = tag.text;
    open_.push_back(name);
    auto out = statement_of(name, tag.line);
    open_.pop_back();
    return out;
  }

  std::vector<NodePtr> statement_of(const std::string& name, int line) {
    if (name == "for") return one(for_loop(line));
    if (name == "if") return one(condition(line));
    if (name == "set") return one(assignment(line));
    if (name == "macro") return one(macro(line));
    if (name == "call") return one(call_block(line));
    if (name == "with") return one(with_block(line));
    if (name == "block") return one(named_block(line));
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(line, fmt::format("'{}' outside of a loop", name));
      return one(make(name == "break" ? Op::kBreak : Op::kContinue, line));
    }
    if (name == "filter") {
      auto out = make(Op::kFilterBlock, line);
      auto filters = filter(nullptr);
      while (skip_sign("|")) filters = filter(std::move(filters));
      adopt(*out, std::move(filters));
      out->bodies.push_back(outside_loops([&] { return whole_body("endfilter"); }));
      return one(std::move(out));
    }
    if (name == "generation") {
      auto out = make(Op::kGeneration, line);
      out->bodies.push_back(outside_loops([&] { return whole_body("endgeneration"); }));
      return one(std::move(out));
    }
    if (name == "autoescape") {
      auto out = make(Op::kAutoescape, line, expression());
      out->bodies.push_back(whole_body("endautoescape"));
      return one(std::move(out));
    }
    if (name == "print") {
      std::vector<NodePtr> out;
      while (!now().is(Type::kBlockEnd)) {
        if (!out.empty()) expect_sign(",");
        out.push_back(make(Op::kPrint, line, expression()));
      }
      return out;
    }
    if (name == "include" || name == "extends" || name == "import" || name == "from") {
      auto out = make(Op::kNoLoader, line, expression());
      while (!now().is(Type::kBlockEnd) && !now().is(Type::kEnd)) take();
      return one(std::move(out));
    }
    fail_at(line, fmt::format("Encountered unknown tag '{}'.", name));
  }

  // Bodies that are functions of their own: no break leads out of them.
  template <typename Read>
  Body outside_loops(Read read) {
    const int before = loops_;
    loops_ = 0;
    auto out = read();
    loops_ = before;
    return out;
  }

  NodePtr target(bool with_namespace, std::string_view end = {}) {
    auto out = tuple({.targets = true, .with_namespace = with_namespace, .end = end});
    check_target(*out);
    return out;
  }
  void check_target(const Node& node) const {
    if (node.op == Op::kTuple || node.op == Op::kList) {
      if (node.op == Op::kList) fail_at(node.line, "can't assign to 'list'");
      for (const auto& part : node.parts) check_target(*part);
    } else if (node.op != Op::kName && node.op != Op::kNamespaceAttribute) {
      fail_at(node.line,
              node.op == Op::kConstant ? "can't assign to 'const'" : "can't assign to this");
    }
  }
  NodePtr target_name() {
    const Token token = expect(Type::kName, "name");
    for (const char* word : {"true", "false", "none", "True", "False", "None"})
      if (token.text == word) fail_at(token.line, "can't assign to 'name'");
    auto out = make(Op::kName, token.line);
    out->text = token.text;
    out->name = syntax_->names.number_of(token.text);
    return out;
  }

  NodePtr for_loop(int line) {
    auto targets = target(false, "in");
    if (!skip_name("in")) fail_expected("in");
    auto items = tuple({.with_condition = false, .end = "recursive"});
    NodePtr test;
    if (skip_name("if")) test = expression();
    auto out = make(Op::kFor, line, std::move(targets), std::move(items), std::move(test));
    out->flag = skip_name("recursive");
    ++loops_;
    out->bodies.push_back(body({"endfor", "else"}));
    --loops_;
    if (take().text == "else") out->bodies.push_back(whole_body("endfor"));
    return out;
  }

  NodePtr condition(int line) {
    auto out = make(Op::kIf, line);
    while (true) {
      {
        const Soft soft(*this, true);
        adopt(*out, tuple({.with_condition = false}));
      }
      out->bodies.push_back(body({"elif", "else", "endif"}, true));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") out->bodies.push_back(whole_body("endif", true));
      return out;
    }
  }

  NodePtr assignment(int line) {
    auto targets = target(true);
    if (skip_sign("=")) {
      auto value = tuple({});
      return make(Op::kSet, line, std::move(targets), std::move(value));
    }
    NodePtr filters;
    while (skip_sign("|")) filters = filter(std::move(filters));
    auto out = make(Op::kSetBlock, line, std::move(targets), std::move(filters));
    out->bodies.push_back(outside_loops([&] { return whole_body("endset"); }));
    return out;
  }

  void signature(Node& macro) {
    expect_sign("(");
    while (!now().is_sign(")")) {
      if (!macro.names.empty()) expect_sign(",");
      auto parameter = target_name();
      macro.names.push_back(parameter->text);
      macro.parameters.push_back(parameter->name);
      if (skip_sign("=")) {
        adopt(macro, expression());
      } else if (!macro.parts.empty()) {
        fail_at(now().line, "non-default argument follows default argument");
      }
    }
    expect_sign(")");
  }
  void macro_body(Node& macro, std::string_view end) {
    macros_.push_back(&macro);
    macro.bodies.push_back(outside_loops([&] { return whole_body(end); }));
    macros_.pop_back();
  }
  NodePtr macro(int line) {
    auto name = target_name();
    auto out = make(Op::kMacro, line);
    out->text = name->text;
    out->name = name->name;
    signature(*out);
    macro_body(*out, "endmacro");
    return out;
  }
  NodePtr call_block(int line) {
    auto out = make(Op::kCallBlock, line);
    out->text = "caller";
    if (now().is_sign("(")) signature(*out);
    auto call = expression();
    if (call->op != Op::kCall) fail_at(line, "expected call");
    macro_body(*out, "endcall");
    adopt(*out, std::move(call));
    return out;
  }

  NodePtr with_block(int line) {
    auto out = make(Op::kWith, line);
    while (!now().is(Type::kBlockEnd)) {
      if (!out->parts.empty()) expect_sign(",");
      adopt(*out, target(false));
      expect_sign("=");
      adopt(*out, expression());
    }
    out->bodies.push_back(whole_body("endwith"));
    return out;
  }

  NodePtr named_block(int line) {
    auto out = make(Op::kBlock, line);
    out->text = expect_name();
    skip_name("scoped");
    skip_name("required");
    out->bodies.push_back(outside_loops([&] { return whole_body("endblock"); }));
    skip_name(out->text);
    if (syntax_->blocks.size() >= kBlocksMax) fail_at(line, "too many blocks");
    for (const Node* other : syntax_->blocks)
      if (other->text == out->text)
        fail_at(line, fmt::format("block '{}' defined twice", out->text));
    syntax_->blocks.push_back(out.get());
    return out;
  }

  std::unique_ptr<Syntax> syntax_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  bool soft_ = false;
  std::vector<std::string> open_;  // the tags that are open
  std::vector<Node*> macros_;
  std::optional<Failure> unknown_;
};

}  // namespace

int Names::number_of(const std::string& name) {
  return numbers.emplace(name, static_cast<int>(numbers.size())).first->second;
}

Syntax::Syntax() : constants(kConstantBytesMax, 0) {}

std::unique_ptr<Syntax> parse(std::string_view source) { return Parser(source).run(); }

}  // namespace troupe::train::jinja
