#include "train/scores/text_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "train/report/format.h"

namespace troupe::train {
namespace {

constexpr std::u32string_view kEnds = U"。！？?";
constexpr std::u32string_view kQuotes = U"”’";

bool is_one_of(char32_t c, std::u32string_view set) {
  return set.find(c) != std::u32string_view::npos;
}

// str.isspace
bool is_blank(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

// Puts a line end behind each place where `length_of` finds an end of a sentence, unless the text
// ends there or `glued` holds of the character behind. That character is passed over, as by the
// regular expressions that this stands for.
template <typename LengthOf>
std::u32string with_line_ends(std::u32string_view text, const LengthOf& length_of,
                              std::u32string_view glued) {
  std::u32string out;
  out.reserve(text.size() + 16);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = length_of(text.substr(at));
    if (length == 0 || at + length >= text.size() || is_one_of(text[at + length], glued)) {
      out += text[at++];
      continue;
    }
    out += text.substr(at, length);
    out += U'\n';
    out += text[at + length];
    at += length + 1;
  }
  return out;
}

// rouge_chinese's cut_sent, with the words of all its sentences in one row. Of a sentence of blanks
// alone an empty word is left, which counts.
std::vector<std::u32string> words_of_sentences(std::u32string text) {
  const auto starts = [](std::u32string_view with) {
    return [with](std::u32string_view rest) { return rest.starts_with(with) ? with.size() : 0; };
  };
  text = with_line_ends(
      text, [](std::u32string_view rest) { return is_one_of(rest[0], kEnds) ? 1u : 0u; }, kQuotes);
  text = with_line_ends(text, starts(U"......"), kQuotes);
  text = with_line_ends(text, starts(U"……"), kQuotes);
  text = with_line_ends(
      text,
      [](std::u32string_view rest) {
        const bool quoted =
            rest.size() > 1 && is_one_of(rest[0], kEnds) && is_one_of(rest[1], kQuotes);
        return quoted ? 2u : 0u;
      },
      U"，。！？?");
  while (!text.empty() && is_blank(text.back())) text.pop_back();
  std::vector<std::u32string> words;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(U'\n', at), text.size());
    const auto sentence = std::u32string_view(text).substr(at, end - at);
    at = end + 1;
    if (sentence.empty()) continue;
    const std::size_t before = words.size();
    for (std::size_t i = 0; i < sentence.size();) {
      if (is_blank(sentence[i])) {
        ++i;
        continue;
      }
      const std::size_t begin = i;
      while (i < sentence.size() && !is_blank(sentence[i])) ++i;
      words.emplace_back(sentence.substr(begin, i - begin));
    }
    if (words.size() == before) words.emplace_back();
  }
  return words;
}

double rounded_percent(double share) { return round_to(share * 100, 4); }

double f_score(std::size_t common, std::size_t answered, std::size_t expected) {
  const auto share = [&](std::size_t of) {
    return of == 0 ? 0.0 : static_cast<double>(common) / static_cast<double>(of);
  };
  const double precision = share(answered), recall = share(expected);
  return 2.0 * ((precision * recall) / (precision + recall + 1e-8));
}

using NGram = std::vector<std::u32string_view>;

std::set<NGram> n_grams(const std::vector<std::u32string>& words, std::size_t n) {
  std::set<NGram> out;
  for (std::size_t i = 0; i + n <= words.size(); ++i)
    out.emplace(words.begin() + static_cast<std::ptrdiff_t>(i),
                words.begin() + static_cast<std::ptrdiff_t>(i + n));
  return out;
}

double rouge_n(const std::vector<std::u32string>& answer,
               const std::vector<std::u32string>& expected, std::size_t n) {
  const auto mine = n_grams(answer, n), theirs = n_grams(expected, n);
  const auto common = static_cast<std::size_t>(
      std::ranges::count_if(mine, [&](const NGram& gram) { return theirs.contains(gram); }));
  return rounded_percent(f_score(common, mine.size(), theirs.size()));
}

std::size_t common_subsequence(const std::vector<std::u32string>& a,
                               const std::vector<std::u32string>& b) {
  std::vector<std::size_t> above(b.size() + 1), row(b.size() + 1);
  for (const auto& word : a) {
    for (std::size_t j = 0; j < b.size(); ++j)
      row[j + 1] = word == b[j] ? above[j] + 1 : std::max(above[j + 1], row[j]);
    std::swap(above, row);
  }
  return above.back();
}

std::u32string joined(const std::vector<std::u32string_view>& words) {
  std::u32string out;
  for (const auto& word : words) {
    if (!out.empty()) out += U' ';
    out += word;
  }
  return out;
}

bool is_all_blank(std::u32string_view text) { return std::ranges::all_of(text, is_blank); }

using Counts = std::map<std::u32string_view, std::int64_t>;

Counts count_n_grams(std::u32string_view text, std::size_t n) {
  Counts counts;
  for (std::size_t i = 0; i + n <= text.size(); ++i) ++counts[text.substr(i, n)];
  return counts;
}

}  // namespace

RougeScores rouge_scores(const WordCutter& cutter, std::string_view answer,
                         std::string_view expected) {
  const auto answer_text = characters_of(answer), expected_text = characters_of(expected);
  if (is_all_blank(answer_text) || is_all_blank(expected_text)) return {};
  const auto mine = words_of_sentences(joined(cutter.cut(answer_text)));
  const auto theirs = words_of_sentences(joined(cutter.cut(expected_text)));
  return {.rouge_1 = rouge_n(mine, theirs, 1),
          .rouge_2 = rouge_n(mine, theirs, 2),
          .rouge_l = rounded_percent(
              f_score(common_subsequence(theirs, mine), mine.size(), theirs.size()))};
}

double bleu_score(std::string_view answer, std::string_view expected) {
  const auto mine = characters_of(answer), theirs = characters_of(expected);
  std::array<double, 4> precisions = {};
  double smoothing = 1;
  for (std::size_t n = 1; n <= precisions.size(); ++n) {
    const Counts counts = count_n_grams(mine, n), expected_counts = count_n_grams(theirs, n);
    std::int64_t common = 0, all = 0;
    for (const auto& [gram, count] : counts) {
      all += count;
      const auto found = expected_counts.find(gram);
      if (found != expected_counts.end()) common += std::min(count, found->second);
    }
    if (n == 1 && common == 0) return 0;
    const auto denominator = static_cast<double>(std::max<std::int64_t>(1, all));
    if (common == 0) smoothing *= 2;
    precisions[n - 1] =
        common == 0 ? 1 / (smoothing * denominator) : static_cast<double>(common) / denominator;
  }
  // Python sums exactly.
  long double sum = 0;
  for (const double precision : precisions)
    sum += static_cast<long double>(0.25 * std::log(precision));
  const double length = static_cast<double>(mine.size());
  const double brevity =
      mine.size() > theirs.size() ? 1.0 : std::exp(1 - static_cast<double>(theirs.size()) / length);
  return rounded_percent(brevity * std::exp(static_cast<double>(sum)));
}

double numpy_mean(std::span<const double> values) {
  const auto sum = [](const auto& self, std::span<const double> part) -> double {
    constexpr std::size_t kBlock = 128, kLanes = 8;
    if (part.size() < kLanes) {
      double total = 0;
      for (const double value : part) total += value;
      return total;
    }
    if (part.size() > kBlock) {
      const std::size_t half = part.size() / 2 / kLanes * kLanes;
      return self(self, part.first(half)) + self(self, part.subspan(half));
    }
    std::array<double, kLanes> lanes;
    std::copy_n(part.begin(), kLanes, lanes.begin());
    std::size_t at = kLanes;
    for (; at + kLanes <= part.size(); at += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += part[at + lane];
    double total = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                   ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    for (; at < part.size(); ++at) total += part[at];
    return total;
  };
  return sum(sum, values) / static_cast<double>(values.size());
}

}  // namespace troupe::train
