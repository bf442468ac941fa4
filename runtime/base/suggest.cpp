#include "runtime/base/suggest.h"

#include <algorithm>

namespace troupe {
namespace {

// Longer words are not compared: no key is as long, and the cost is quadratic.
constexpr std::size_t kWordBytesMax = 64;

std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  return out;
}

}  // namespace

std::size_t edit_distance(const std::string& a, const std::string& b) {
  // Three rows of the table are looked at: of the character before the last, the last, this one.
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> rows(3 * width);
  std::size_t* before = rows.data();
  std::size_t* last = before + width;
  std::size_t* now = last + width;
  for (std::size_t j = 0; j < width; ++j) now[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t* const reused = before;
    before = last;
    last = now;
    now = reused;
    now[0] = i;
    for (std::size_t j = 1; j < width; ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
  }
  return now[b.size()];
}

std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kWordBytesMax) return std::nullopt;
  const std::string wanted = folded(word);
  const std::size_t limit = std::max<std::size_t>(2, word.size() / 3);
  std::optional<std::string> best;
  std::size_t best_distance = limit + 1;
  for (const auto& candidate : candidates) {
    // Each character that one is longer is an edit.
    const auto [shorter, longer] = std::minmax({wanted.size(), candidate.size()});
    if (longer - shorter >= best_distance) continue;
    const auto distance = edit_distance(wanted, folded(candidate));
    // A word that shares nothing with the candidate is not a misspelling of it.
    if (distance >= std::max(word.size(), candidate.size())) continue;
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const auto best = nearest_word(word, candidates);
  return best ? "; did you mean '" + *best + "'?" : std::string();
}

void detail::append_number(std::string& text, std::int64_t number, std::string_view separator) {
  if (!text.empty()) text += separator;
  text += std::to_string(number);
}

std::string join_words(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (const auto& word : words) {
    if (!out.empty()) out += separator;
    out += word;
  }
  return out;
}

std::vector<std::string> split_words(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace troupe
