#pragma once

#include <memory>
#include <string_view>

#include "train/jinja/ast.h"

namespace troupe::train::jinja {

// jinja2's grammar with the extensions that transformers adds. Fails with TemplateSyntaxError, or
// TemplateAssertionError where a filter or test is not known.
std::unique_ptr<Syntax> parse(std::string_view source);

}  // namespace troupe::train::jinja
