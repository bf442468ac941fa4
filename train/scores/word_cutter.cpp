#include "train/scores/word_cutter.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/base/limits.h"

namespace troupe::train {
namespace {

constexpr char32_t kReplacement = 0xfffd;
// The sum of the dictionary's counts: without the dictionary its five words of other letters weigh
// as much.
constexpr double kTotalCount = 60101967;
constexpr double kNever = -3.14e100;  // jieba's logarithm of nothing

bool is_han(char32_t c) { return c >= 0x4e00 && c <= 0x9fd5; }
bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_alphanumeric(char32_t c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
// jieba's re_han_default.
bool in_block(char32_t c) {
  return is_han(c) || is_alphanumeric(c) || c == '+' || c == '#' || c == '&' || c == '.' ||
         c == '_' || c == '%' || c == '-';
}

// The states of a character in a word, in the order of the tables.
enum State { kBegin, kEnd, kMiddle, kSingle };
constexpr std::array<double, 4> kStart = {-0.26268660809250016, kNever, kNever,
                                          -1.4652633398537678};
// What may come before a state, with its probability. Of two that are equally likely jieba takes
// the greater letter (B, E, M, S): the one that stands first here.
struct Step {
  State from;
  double log_probability;
};
constexpr std::array<std::array<Step, 2>, 4> kSteps = {{
    {{{kSingle, -0.7211965654669841}, {kEnd, -0.5897149736854513}}},    // begin
    {{{kMiddle, -0.33344856811948514}, {kBegin, -0.510825623765990}}},  // end
    {{{kMiddle, -1.2603623820268226}, {kBegin, -0.916290731874155}}},   // middle
    {{{kSingle, -0.6658631448798212}, {kEnd, -0.8085250474669937}}},    // single
}};

// The lines of a text, without their ends.
template <typename Visit>
Status each_line(std::string_view text, const Visit& visit) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    TROUPE_RETURN_IF_ERROR(visit(text.substr(0, end), number));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

Status not_of_jieba(const std::string& name, std::int64_t line) {
  return error(Code::kDataLoss, "{} line {}: this is no line of jieba's", name, line);
}

template <typename Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::u32string characters_of(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at++]);
    if (first < 0x80) {
      out.push_back(first);
      continue;
    }
    const int more = first >= 0xf0 && first < 0xf5   ? 3
                     : first >= 0xe0 && first < 0xf0 ? 2
                     : first >= 0xc2 && first < 0xe0 ? 1
                                                     : 0;
    char32_t character = first & (0x3f >> more);
    int taken = 0;
    for (; taken < more && at < text.size(); ++taken, ++at) {
      const auto next = static_cast<unsigned char>(text[at]);
      if ((next & 0xc0) != 0x80) break;
      character = character << 6 | (next & 0x3f);
    }
    out.push_back(more == 0 || taken < more ? kReplacement : character);
  }
  return out;
}

WordCutter::WordCutter() : log_total_(std::log(kTotalCount)) {
  for (const auto* word : {U"AT&T", U"c#", U"C#", U"c++", U"C++"})
    static_cast<void>(add_word(word, 3));
}

Status WordCutter::add_word(std::u32string_view word, std::int64_t count) {
  counts_[std::u32string(word)] = count;
  for (std::size_t length = 1; length < word.size(); ++length)
    counts_.try_emplace(std::u32string(word.substr(0, length)), 0);
  return {};
}

Result<WordCutter> WordCutter::load(FileSystem& files, const std::string& jieba) {
  WordCutter cutter;
  const std::string dictionary = join_path(jieba, "dict.txt");
  const std::string emissions = join_path(jieba, "finalseg/prob_emit.py");
  TROUPE_RETURN_IF_ERROR(cutter.read_dictionary(
      TROUPE_TRY(files.read(dictionary, limits::kJsonFileBytesMax)), dictionary));
  TROUPE_RETURN_IF_ERROR(cutter.read_emissions(
      TROUPE_TRY(files.read(emissions, limits::kJsonFileBytesMax)), emissions));
  cutter.has_dictionary_ = true;
  return cutter;
}

// "word count tag", one a line.
Status WordCutter::read_dictionary(std::string_view text, const std::string& name) {
  counts_.clear();
  counts_.reserve(600'000);
  double total = 0;
  TROUPE_RETURN_IF_ERROR(each_line(text, [&](std::string_view line, std::int64_t number) {
    const auto blank = line.find(' ');
    std::int64_t count = 0;
    if (blank == 0 || blank == std::string_view::npos) return not_of_jieba(name, number);
    const auto rest = line.substr(blank + 1);
    if (!read_number(rest.substr(0, rest.find(' ')), count)) return not_of_jieba(name, number);
    total += static_cast<double>(count);
    return add_word(characters_of(line.substr(0, blank)), count);
  }));
  if (total <= 0) return error(Code::kDataLoss, "{}: there are no words in it", name);
  log_total_ = std::log(total);
  return {};
}

// A Python dictionary of dictionaries: P={'B': {'\u4e00': -3.65, … of B, E, M and S.
Status WordCutter::read_emissions(std::string_view text, const std::string& name) {
  State state = kBegin;
  int states = 0;
  TROUPE_RETURN_IF_ERROR(each_line(text, [&](std::string_view line, std::int64_t number) -> Status {
    if (const auto brace = line.rfind('{'); brace != std::string_view::npos) {
      if (brace < 4) return not_of_jieba(name, number);
      const auto letter = std::string_view("BEMS").find(line[brace - 4]);
      if (letter == std::string_view::npos) return not_of_jieba(name, number);
      state = static_cast<State>(letter);
      ++states;
    }
    const auto escape = line.find("'\\u");
    if (escape == std::string_view::npos) return {};
    const auto entry = line.substr(escape + 3);
    std::uint32_t character = 0;
    const auto [end, failed] = std::from_chars(
        entry.data(), entry.data() + std::min<std::size_t>(4, entry.size()), character, 16);
    const auto behind = entry.substr(static_cast<std::size_t>(end - entry.data()));
    if (failed != std::errc() || !behind.starts_with("': ")) return not_of_jieba(name, number);
    const auto value = behind.substr(3, behind.find_first_of(",}") - 3);
    double log_probability = 0;
    if (!read_number(value, log_probability)) return not_of_jieba(name, number);
    const auto [at, fresh] =
        emissions_.try_emplace(character, std::array{kNever, kNever, kNever, kNever});
    at->second[state] = log_probability;
    return {};
  }));
  if (states != 4) return error(Code::kDataLoss, "{}: {} tables where 4 are", name, states);
  return {};
}

bool WordCutter::needs_dictionary(std::u32string_view text) {
  return std::any_of(text.begin(), text.end(), is_han);
}

std::int64_t WordCutter::count_of(std::u32string_view word) const {
  const auto found = counts_.find(std::u32string(word));
  return found == counts_.end() ? -1 : found->second;
}

std::vector<std::u32string_view> WordCutter::cut(std::u32string_view text) const {
  Words out;
  for (std::size_t at = 0; at < text.size();) {
    if (in_block(text[at])) {
      std::size_t end = at;
      while (end < text.size() && in_block(text[end])) ++end;
      cut_block(text.substr(at, end - at), out);
      at = end;
    } else {
      // Every other character is a word, but for a line end of two.
      const std::size_t length = text.substr(at).starts_with(U"\r\n") ? 2 : 1;
      out.push_back(text.substr(at, length));
      at += length;
    }
  }
  return out;
}

// The most likely words of the dictionary; characters between them are looked at together.
void WordCutter::cut_block(std::u32string_view block, Words& out) const {
  struct Best {
    double log_probability = 0;
    std::size_t end = 0;
  };
  std::vector<Best> best(block.size() + 1);
  for (std::size_t at = block.size(); at-- > 0;) {
    Best& here = best[at];
    bool any = false;
    const auto consider = [&](std::size_t end, std::int64_t count) {
      const double with = std::log(static_cast<double>(std::max<std::int64_t>(1, count))) -
                          log_total_ + best[end].log_probability;
      // Of words that are equally likely the longest.
      if (!any || with >= here.log_probability) here = {with, end};
      any = true;
    };
    for (std::size_t end = at + 1; end <= block.size(); ++end) {
      const auto count = count_of(block.substr(at, end - at));
      if (count < 0) break;
      if (count > 0) consider(end, count);
    }
    if (!any) consider(at + 1, 1);
  }
  std::size_t open = 0;  // single characters from here to `at` are not given yet
  const auto close = [&](std::size_t at) {
    const auto singles = block.substr(open, at - open);
    if (singles.size() > 1 && count_of(singles) <= 0) {
      cut_unknown(singles, out);
    } else {
      for (std::size_t i = 0; i < singles.size(); ++i) out.push_back(singles.substr(i, 1));
    }
  };
  for (std::size_t at = 0; at < block.size(); at = best[at].end) {
    if (best[at].end - at == 1) continue;
    close(at);
    out.push_back(block.substr(at, best[at].end - at));
    open = best[at].end;
  }
  close(block.size());
}

// jieba's finalseg: Chinese characters by the model, letters and digits together ("3.14", "50%"),
// other signs as they stand.
void WordCutter::cut_unknown(std::u32string_view block, Words& out) const {
  for (std::size_t at = 0; at < block.size();) {
    std::size_t end = at;
    if (is_han(block[at])) {
      while (end < block.size() && is_han(block[end])) ++end;
      cut_by_states(block.substr(at, end - at), out);
    } else if (is_alphanumeric(block[at])) {
      while (end < block.size() && is_alphanumeric(block[end])) ++end;
      if (end + 1 < block.size() && block[end] == '.' && is_digit(block[end + 1])) {
        for (++end; end < block.size() && is_digit(block[end]);) ++end;
      }
      if (end < block.size() && block[end] == '%') ++end;
      out.push_back(block.substr(at, end - at));
    } else {
      while (end < block.size() && !is_han(block[end]) && !is_alphanumeric(block[end])) ++end;
      out.push_back(block.substr(at, end - at));
    }
    at = end;
  }
}

// Viterbi's algorithm.
void WordCutter::cut_by_states(std::u32string_view block, Words& out) const {
  constexpr std::array kNone = {kNever, kNever, kNever, kNever};
  const auto emission = [&](char32_t character) -> const std::array<double, 4>& {
    const auto found = emissions_.find(character);
    return found == emissions_.end() ? kNone : found->second;
  };
  std::array<double, 4> reached = {};
  for (std::size_t state = 0; state < 4; ++state)
    reached[state] = kStart[state] + emission(block[0])[state];
  std::vector<std::array<State, 4>> came_from(block.size());
  for (std::size_t at = 1; at < block.size(); ++at) {
    std::array<double, 4> next = {};
    for (std::size_t state = 0; state < 4; ++state) {
      const double emitted = emission(block[at])[state];
      const auto& [first, second] = kSteps[state];
      const double by_first = reached[first.from] + first.log_probability + emitted;
      const double by_second = reached[second.from] + second.log_probability + emitted;
      next[state] = std::max(by_first, by_second);
      came_from[at][state] = by_first >= by_second ? first.from : second.from;
    }
    reached = next;
  }
  std::vector<State> states(block.size());
  State state = reached[kSingle] >= reached[kEnd] ? kSingle : kEnd;
  for (std::size_t at = block.size(); at-- > 0; state = came_from[at][state]) states[at] = state;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < block.size(); ++at) {
    if (states[at] == kBegin) begin = at;
    if (states[at] == kEnd) out.push_back(block.substr(begin, at + 1 - begin));
    if (states[at] == kSingle) out.push_back(block.substr(at, 1));
  }
}

}  // namespace troupe::train
