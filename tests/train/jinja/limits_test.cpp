// Templates are other people's programs: none crashes, hangs, or takes the machine's memory.

#include <doctest/doctest.h>

#include "runtime/base/random.h"
#include "tests/train/jinja/support.h"

namespace troupe::train::jinja {
namespace {

constexpr RenderLimits kSmall{.steps_max = 20'000, .bytes_max = 1 << 20};

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string failure_of(const std::string& source) {
  const std::string out = rendered(source, {}, kSmall);
  return out.substr(0, out.find(':'));
}

TEST_CASE("what costs too much ends with a LimitError") {
  for (const char* source : {
           "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
           "{% for i in range(9999) %}{{ i }}{{ 'x' * 1000 }}{% endfor %}",
           "{{ 'x' * 100000000000 }}",
           "{{ [1] * 100000000000 }}",
           "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
           "endfor %}",
           "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s.replace('x', "
           "'xx') %}{% endfor %}",
           "{{ 'a'.ljust(100000000000) }}",
           "{{ '%999999d' % 1 }}{{ '%999999d' % 1 }}",
           "{{ '{:999999}'.format(1) }}{{ '{:999999}'.format(1) }}",
           "{{ 'x' | center(999999999) }}",
           "{{ 'a\\nb' | indent(999999999) }}",
           "{{ [1] | batch(99999999999, 0) | list }}",
           "{{ [1] | slice(99999999999) | list }}",
           "{{ 'abc' | urlencode | list | join('x' * 900000) | length }}{{ ['a', 'b', 'c'] | "
           "join('x' * 900000) }}",
           "{% set l = range(5000) | list %}{% for i in l %}{% if -1 in l %}{% endif %}{% endfor "
           "%}",
           "{% set x = range(9000) | list %}{{ (x | string) * 3 ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ "
           "x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x }}",
           // Little memory holds a value many times; it is printed each time.
           "{% if ([[[1] * 300] * 300] * 300) | string %}{% endif %}",
           "{% if ([[[1] * 300] * 300] * 300) | tojson %}{% endif %}",
           "{% if '%r' % [[[1] * 300] * 300] * 300 %}{% endif %}",
       }) {
    CAPTURE(source);
    CHECK(failure_of(source) == "LimitError");
  }
  // A message has the beginning of such a value.
  const std::string message = rendered("{{ [1].index([[1] * 300] * 300) }}", {}, kSmall);
  CHECK(message.starts_with("ValueError"));
  CHECK(message.size() < 1200);
  CHECK(Template::parse(repeated("x", 2 << 20)).status().code() == Code::kResourceExhausted);
}

TEST_CASE("a search takes time by the text, not by what is sought, too") {
  const std::string texts = "{% set x = 'a' * 2000000 %}{% set y = 'a' * 1000000 + 'b' %}";
  CHECK(rendered(texts + "{{ y in x }}{{ x.find(y) }}{{ x.rfind(y) }}{{ x.count(y) }}") ==
        "False-1-10");
  CHECK(rendered(texts + "{{ x.replace(y, 'c') == x }}{{ x.split(y) | length }}"
                         "{{ x.rpartition(y)[2] == x }}") == "True1True");
}

TEST_CASE("what is too deep is an error") {
  CHECK(failure_of("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}") ==
        "TemplateSyntaxError");
  CHECK(failure_of("{{ " + repeated("not ", 5000) + "1 }}") == "TemplateSyntaxError");
  CHECK(failure_of("{{ " + repeated("-", 5000) + "1 }}") == "TemplateSyntaxError");
  CHECK(failure_of("{{ 1" + repeated(" + 1", 5000) + " }}") == "TemplateSyntaxError");
  CHECK(failure_of("{{ a" + repeated(".a", 5000) + " }}") == "TemplateSyntaxError");
  CHECK(failure_of("{{ a" + repeated("|trim", 5000) + " }}") == "TemplateSyntaxError");
  CHECK(failure_of(repeated("{% if 1 %}", 5000)) == "TemplateSyntaxError");
  CHECK(failure_of("{{ 1" + repeated(" if 1 else 2", 5000) + " }}") == "TemplateSyntaxError");
  const std::string deep_list =
      "{% set ns = namespace(l=[]) %}{% for i in range(500) %}{% set ns.l = [ns.l] %}{% endfor %}";
  CHECK(failure_of(deep_list + "{{ ns.l }}") == "RecursionError");
  CHECK(failure_of(deep_list + "{{ ns.l | tojson }}") == "RecursionError");
  CHECK(failure_of(deep_list + "{% set a = ns.l %}{{ [a] == [[a]] }}") == "RecursionError");
  CHECK(failure_of("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}") == "RecursionError");
  CHECK(failure_of("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}") == "RecursionError");
  CHECK(failure_of("{% block b %}{{ self.b() }}{% endblock %}") == "RecursionError");
}

TEST_CASE("integers beyond what is kept are an OverflowError") {
  CHECK(failure_of("{{ 2 ** 200 }}") == "OverflowError");
  CHECK(failure_of("{{ 99999999999999999999 * 99999999999999999999 }}") == "OverflowError");
  CHECK(failure_of("{{ 9" + repeated("9", 60) + " }}") == "OverflowError");
  CHECK(failure_of("{{ '9" + repeated("9", 60) + "' | int }}") == "OverflowError");
  CHECK(rendered("{{ 2 ** 100 - 2 ** 100 // 3 }}") == "845100400152152934331135470251");
}

TEST_CASE("bytes that are no text are refused") {
  CHECK(!Template::parse("a\xff").ok());
  CHECK(!Template::parse("{{ '\xc3' }}").ok());
}

// Pieces of templates in any order, with bytes changed: nothing but texts and errors comes of it.
TEST_CASE("damaged templates render or fail, within the limits") {
  constexpr std::string_view kPieces[] = {"{% for m in messages %}",
                                          "{% endfor %}",
                                          "{{ m.role }}",
                                          "{{ m['content'] | trim }}",
                                          "{% if loop.first and m.role == 'user' %}",
                                          "{% else %}",
                                          "{% endif %}",
                                          "{%- set ns = ",
                                          "namespace(a=[1, 2]) -%}",
                                          "{{ ns.a[0:-1] ~ 'x' * 3 }}",
                                          "{% macro f(a, b=2) %}",
                                          "{% endmacro %}",
                                          "{{ f(1, *[2], **{'b': 3}) }}",
                                          "{% generation %}",
                                          "{% endgeneration %}",
                                          "{{ '%5.2f' % 1 }}",
                                          "{{ '{0[a]:>5}'.format({'a': 1}) }}",
                                          "{% set x %}",
                                          "{% endset %}",
                                          "{{ x | tojson(indent=2) }}",
                                          "{{ messages | map(attribute='role') | join(', ') }}",
                                          "{% filter upper %}",
                                          "{% endfilter %}",
                                          "{{ raise_exception('no') }}",
                                          "{% break %}",
                                          "{% raw %}",
                                          "{% endraw %}",
                                          "{# ",
                                          " #}",
                                          "{{ 1 // 0 if messages is mapping else messages[-1:] }}",
                                          "{% call f(1) %}",
                                          "{% endcall %}",
                                          "{% with a = 1 %}",
                                          "{% endwith %}",
                                          "ü👋\n",
                                          "  ",
                                          "{{ (1, 2) in [[]] }}",
                                          "{{ range(5) | batch(2) | list }}"};
  const json::Object context{
      {"messages", json::Array{{{"role", "user"}, {"content", " a "}},
                               {{"role", "assistant"}, {"content", nullptr}}}}};
  SeededRandom random(7);
  int good = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string source;
    for (std::uint64_t n = 1 + random.below(12); n > 0; --n)
      source += kPieces[random.below(std::size(kPieces))];
    for (std::uint64_t n = random.below(4); n > 0; --n) {
      const auto at = random.below(source.size());
      if (random.below(2) == 0) {
        source.erase(at, 1 + random.below(3));
      } else {
        source[at] = "{%}|.()[]'\"x1 -"[random.below(15)];
      }
      if (source.empty()) break;
    }
    const auto parsed = Template::parse(source);
    if (parsed) good += parsed->render(context, fixed_clock(), kSmall).ok();
  }
  CHECK(good > 100);
}

}  // namespace
}  // namespace troupe::train::jinja
