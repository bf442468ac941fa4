#pragma once
// Chat templates in Jinja, as transformers renders them: jinja2's language in its immutable
// sandbox, with trim_blocks, lstrip_blocks, loop controls and {% generation %}.
//
//   auto chat = TROUPE_TRY(jinja::Template::parse(text));
//   Rendered out = TROUPE_TRY(chat.render({{"messages", …}, {"add_generation_prompt", true}}));
//
// Templates are other people's programs: what one may cost is limited, and it reaches nothing but
// the values it is given and the clock.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train::jinja {

struct RenderLimits {
  std::uint64_t steps_max = 50'000'000;            // some seconds
  std::size_t bytes_max = std::size_t{256} << 20;  // of all values and texts made on the way
};

// Characters [begin, end) of the rendered text.
struct CharacterRange {
  std::size_t begin = 0, end = 0;
  friend bool operator==(const CharacterRange&, const CharacterRange&) = default;
};

struct Rendered {
  std::string text;
  std::vector<CharacterRange> generation;  // what {% generation %} covered, in order
};

struct Syntax;

// Copies share what was parsed; all calls may be made from any threads at once.
class Template {
 public:
  // A failure of the template is kInvalidArgument, in jinja2's words. Its context has "class", the
  // name of Python's exception (TemplateSyntaxError, UndefinedError, TypeError, …), and "line".
  // Beyond a limit it is kResourceExhausted, with the class LimitError.
  static Result<Template> parse(std::string_view source);

  // strftime_now reads `clock`, in the machine's time zone.
  Result<Rendered> render(const json::Object& context, const Clock& clock = SystemClock(),
                          const RenderLimits& limits = {}) const;

 private:
  explicit Template(std::shared_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
  std::shared_ptr<const Syntax> syntax_;
};

}  // namespace troupe::train::jinja
