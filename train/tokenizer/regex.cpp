#define PCRE2_CODE_UNIT_WIDTH 8
#include "train/tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// A word of a text needs a few hundred steps; ten million end an expression that explodes.
constexpr std::uint32_t kMatchStepsMax = 10'000'000;
constexpr std::uint32_t kHeapKibMax = 256 * 1024;
constexpr std::size_t kJitStackBytesMin = 64 << 10;
constexpr std::size_t kJitStackBytesMax = 8 << 20;
constexpr std::size_t kPatternBytesMax = 64 << 10;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// The members of \s in Oniguruma: the property White_Space. PCRE2's own \s has U+180E besides.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// The pattern with \s and \S spelled out, so that both libraries mean the same.
std::string with_white_space_spelled_out(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out += in_class ? std::string(kWhiteSpace) : "[" + std::string(kWhiteSpace) + "]";
      } else if (escaped == 'S' && !in_class) {
        out += "[^" + std::string(kWhiteSpace) + "]";
      } else {
        out += {c, escaped};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out.push_back(c);
  }
  return out;
}

PCRE2_SPTR pointer(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackBytesMin, kJitStackBytesMax, nullptr);

  State() {
    TROUPE_CHECK(data && context);
    pcre2_set_match_limit(context, kMatchStepsMax);
    pcre2_set_heap_limit(context, kHeapKibMax);
    if (stack) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack) pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return error(Code::kInvalidArgument, "a regular expression of {} bytes, the limit is {}",
                 pattern.size(), kPatternBytesMax);
  }
  int code = 0;
  PCRE2_SIZE offset = 0;
  const std::string translated = with_white_space_spelled_out(pattern);
  auto* compiled =
      pcre2_compile(pointer(translated), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
  if (!compiled) {
    return error(Code::kInvalidArgument, "the regular expression '{}' is wrong at byte {}: {}",
                 pattern, offset, message_of(code));
  }
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // where there is no JIT the interpreter runs
  Regex out;
  out.code_ = std::shared_ptr<void>(compiled,
                                    [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  out.pattern_ = pattern;
  return out;
}

Result<std::optional<Regex::Range>> Regex::find(std::string_view text, std::size_t from,
                                                RegexScratch& scratch) const {
  auto& state = *scratch.state_;
  auto* code = static_cast<pcre2_code*>(code_.get());
  int found = pcre2_match(code, pointer(text), text.size(), from, PCRE2_NO_UTF_CHECK, state.data,
                          state.context);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code, pointer(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        state.data, state.context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<Range>();
  if (found < 0) {
    return error(Code::kResourceExhausted,
                 "the regular expression '{}' gives up at byte {} of a text of {} bytes: {}",
                 pattern_, from, text.size(), message_of(found));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.data);
  // \K in a lookbehind may set the begin behind the end.
  return std::optional<Range>({std::min(offsets[0], offsets[1]), offsets[1]});
}

}  // namespace troupe::train
