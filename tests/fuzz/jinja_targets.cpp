// Chat templates: programs that come with a model.

#include <algorithm>

#include "runtime/base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "train/jinja/template.h"

namespace troupe::tests {
namespace {

using namespace train;

void run_jinja(std::span<const std::byte> input) {
  const auto parsed = jinja::Template::parse(fuzz_text(input));
  if (!parsed) {
    const Code code = parsed.status().code();
    TROUPE_CHECK(code == Code::kInvalidArgument || code == Code::kResourceExhausted);
    return;
  }
  static const json::Object context{
      {"messages",
       json::Array{{{"role", "system"}, {"content", " s\n"}},
                   {{"role", "user"}, {"content", "ü <>"}},
                   {{"role", "assistant"},
                    {"content", nullptr},
                    {"tool_calls",
                     json::Array{{{"function", {{"name", "f"}, {"arguments", {{"a", 1.5}}}}}}}}}}},
      {"tools", nullptr},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"}};
  // So few that what takes long with them grows faster than them.
  constexpr jinja::RenderLimits kLimits{.steps_max = 20'000, .bytes_max = 256 << 10};
  const ManualClock clock;
  const auto first = parsed->render(context, clock, kLimits);
  const auto second = parsed->render(context, clock, kLimits);
  TROUPE_CHECK(first.ok() == second.ok());
  if (!first) {
    TROUPE_CHECK(first.status().context("class").has_value());
    return;
  }
  TROUPE_CHECK(first->text == second->text && first->text.size() <= kLimits.bytes_max);
  for (const auto& [begin, end] : first->generation)
    TROUPE_CHECK(begin <= end && end <= first->text.size());
}

std::vector<FuzzBytes> jinja_seeds() {
  std::vector<FuzzBytes> seeds;
  for (const std::string_view text :
       {"{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + (m['content'] or '') | "
        "trim "
        "}}{% generation %}{{ loop.index0 % 2 }}{% endgeneration %}{% endfor %}",
        "{%- set ns = namespace(n=0, s='') -%}{%- for m in messages[1:] if m.content is string "
        "%}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ m.content | upper %}{% else %}-{% endfor "
        "%}{{ ns.s * ns.n }}",
        "{% macro show(x, depth=0) %}{% if x is mapping %}{% for k, v in x | dictsort %}{{ k }}: "
        "{{ show(v, depth + 1) }}{% endfor %}{% else %}{{ x | tojson(indent=2) }}{% endif "
        "%}{% endmacro %}{{ show(messages[-1]) }}",
        "{{ '%5.1f|%-4s|%s' % (2.5, 'a', [1, {'k': none}]) }}{{ '{:>4}{a[0]}'.format('x', a='bc') "
        "}}{{ messages | map(attribute='role') | unique | join(', ') }}{{ 7 // -2 }}{{ 2 ** 70 }}",
        "{% call(x) outer() %}{{ x }}{% endcall %}{% raw %}{{ {% endraw %}{# c #}{% set a %}b{% "
        "endset %}{% filter lower %}A{{ a }}{% endfilter %}{% with q = 1 %}{{ q }}{% endwith %}",
        "{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is sequence else x }}{% break "
        "%}{% "
        "endfor %}{{ ' a b '.split() | sort(reverse=true) | batch(2, '-') | list }}"})
    seeds.push_back(fuzz_bytes(text));
  return seeds;
}

}  // namespace

constinit const FuzzTarget kJinjaTarget{"jinja", "chat templates", 4096, run_jinja, jinja_seeds};

}  // namespace troupe::tests
