#include "train/jinja/template.h"

#include "train/jinja/characters.h"
#include "train/jinja/failure.h"
#include "train/jinja/interpreter.h"
#include "train/jinja/parser.h"

namespace troupe::train::jinja {
namespace {

constexpr std::size_t kSourceBytesMax = std::size_t{1} << 20;

Status status_of(const Failure& failure, int line) {
  const bool limit = std::string_view(failure.type) == kLimitError;
  return Status(limit ? Code::kResourceExhausted : Code::kInvalidArgument, failure.message)
      .with("class", failure.type)
      .with("line", failure.line > 0 ? failure.line : line);
}

}  // namespace

Result<Template> Template::parse(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return error(Code::kResourceExhausted, "a template of {} bytes: at most {} are read",
                 source.size(), kSourceBytesMax);
  }
  if (!is_utf8(source)) return error(Code::kInvalidArgument, "the template is not UTF-8");
  try {
    return Template(jinja::parse(source));
  } catch (const Failure& failure) {
    return status_of(failure, 1);
  }
}

Result<Rendered> Template::render(const json::Object& context, const Clock& clock,
                                  const RenderLimits& limits) const {
  Interpreter interpreter(*syntax_, clock, limits);
  try {
    return interpreter.render(context);
  } catch (const Failure& failure) {
    return status_of(failure, interpreter.line());
  }
}

}  // namespace troupe::train::jinja
