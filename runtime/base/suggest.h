#pragma once
// The nearest known word to a misspelt one, and lists of words in texts.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

namespace detail {
// With the separator before it, unless the text is empty.
void append_number(std::string& text, std::int64_t number, std::string_view separator);
}  // namespace detail

// Edits (insert, delete, replace, swap of neighbours) that make one word of the other: optimal
// string alignment. Quadratic in their lengths.
std::size_t edit_distance(const std::string& a, const std::string& b);

// The candidate with the smallest edit distance (case and '-' against '_' cost nothing), if it is
// near enough to be meant: a third of the word's length, at least 2. The first of equals.
std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& candidates);

// "; did you mean 'x'?" or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// "a, b, c"
std::string join_words(const std::vector<std::string>& words, std::string_view separator = ", ");
// "0, 1, 2", of any integers. (fmt::join would do; but a formatter is compiled into each file that
// uses it, and that is a second of the compiler's time.)
template <typename Numbers>
std::string join_numbers(const Numbers& numbers, std::string_view separator = ", ") {
  std::string text;
  for (const auto number : numbers) {
    detail::append_number(text, static_cast<std::int64_t>(number), separator);
  }
  return text;
}
// The parts of "a|b|c"; of "" none.
std::vector<std::string> split_words(std::string_view text, char separator = '|');
// Without leading and trailing white space.
std::string_view trim(std::string_view text);

}  // namespace troupe
