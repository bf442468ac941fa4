#pragma once
// Texts as Python sees them: sequences of characters (code points), kept as valid UTF-8.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::train::jinja {

bool is_utf8(std::string_view text);
std::size_t character_count(std::string_view text);
// The character at `at`, which moves behind it.
char32_t next_character(std::string_view text, std::size_t& at);
void append_character(std::string& out, char32_t character);
// The byte at which the character `index` begins; the text's size from the last one on.
std::size_t byte_of(std::string_view text, std::size_t index);

bool is_blank(char32_t character);      // str.isspace
bool is_printable(char32_t character);  // str.isprintable
bool is_letter(char32_t character);     // str.isalpha
bool is_decimal(char32_t character);    // str.isdecimal
bool is_numeric(char32_t character);    // str.isnumeric, nearly
bool is_upper(char32_t character);
bool is_lower(char32_t character);

// str.isupper, str.islower: of the letters that have a case, at least one.
bool has_case(std::string_view text, bool upper);

std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
std::string swap_case(std::string_view text);

// Without the characters of `set` (blanks where there is none) at the ends.
std::string_view strip(std::string_view text, std::optional<std::string_view> set, bool front,
                       bool back);
// As find() and rfind() of a text, in time that grows with the text and not with `sought`, too: a
// template may search for anything. npos: not there.
std::size_t find_in(std::string_view text, std::string_view sought, std::size_t from = 0);
std::size_t find_last_in(std::string_view text, std::string_view sought);

std::string replace_all(std::string_view text, std::string_view old, std::string_view fresh,
                        std::size_t count_max = std::string_view::npos);

}  // namespace troupe::train::jinja
