#include "train/tokenizer/charsmap.h"

#include "train/tokenizer/unicode.h"

namespace troupe::train {
namespace {

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Units of the double array (Darts).
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::size_t value_of(std::uint32_t unit) { return unit & 0x7fffffffu; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000ffu; }
std::size_t offset_of(std::uint32_t unit) {
  return static_cast<std::size_t>(unit >> 10) << ((unit & 0x200u) >> 6);
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::string_view four = text.substr(at, 4);
    while (at + 4 == text.size() && four.size() > 2 && four.ends_with('=')) four.remove_suffix(1);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const auto digit = i < four.size() ? kBase64.find(four[i]) : 0;
      if (digit == std::string_view::npos) return std::nullopt;
      bits = bits << 6 | static_cast<std::uint32_t>(digit);
    }
    for (std::size_t i = 0; i + 1 < four.size(); ++i)
      out.push_back(static_cast<char>(bits >> (16 - 8 * i)));
  }
  return out;
}

std::string to_base64(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const auto three = bytes.substr(at, 3);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < three.size() ? static_cast<unsigned char>(three[i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i)
      out.push_back(i <= three.size() ? kBase64[bits >> (18 - 6 * i) & 63] : '=');
  }
  return out;
}

Result<Charsmap> Charsmap::make(std::string_view bytes) {
  const auto number = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
    return value;
  };
  const std::size_t size = bytes.size() < 4 ? 0 : number(0);
  if (size < 4 || size % 4 != 0 || size > bytes.size() - 4) {
    return error(Code::kInvalidArgument,
                 "the map of characters is damaged: its array of {} bytes does not fit into {}",
                 size, bytes.size());
  }
  Charsmap map;
  for (std::size_t at = 4; at < 4 + size; at += 4) map.units_.push_back(number(at));
  map.texts_ = bytes.substr(4 + size);
  if (!is_valid_utf8(map.texts_)) {
    return error(Code::kInvalidArgument,
                 "the map of characters is damaged: its texts are no UTF-8");
  }
  const std::size_t root = offset_of(map.units_[0]);
  for (std::uint32_t c = 1; c < 128; ++c) {
    const std::size_t child = root ^ c;
    map.changes_[c] = child < map.units_.size() && label_of(map.units_[child]) == c;
  }
  return map;
}

std::optional<std::string_view> Charsmap::find(std::string_view key) const {
  std::size_t node = offset_of(units_[0]);
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const bool leaf = has_leaf(units_[node]);
    node ^= offset_of(units_[node]);
    if (!leaf) continue;
    const std::size_t begin = node < units_.size() ? value_of(units_[node]) : texts_.size();
    if (begin >= texts_.size()) return std::nullopt;
    const auto text = std::string_view(texts_).substr(begin);
    // A damaged value may point into a character.
    if ((static_cast<unsigned char>(text[0]) & 0xc0) == 0x80) return std::nullopt;
    return text.substr(0, text.find('\0'));
  }
  return std::nullopt;
}

void Charsmap::append_grapheme(std::string_view grapheme, std::string& out) const {
  if (grapheme.size() < 6) {
    if (const auto text = find(grapheme)) {
      out += *text;
      return;
    }
  }
  for (std::size_t at = 0; at < grapheme.size();) {
    const std::size_t begin = at;
    next_code_point(grapheme, at);
    const auto character = grapheme.substr(begin, at - begin);
    out += find(character).value_or(character);
  }
}

std::string Charsmap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  const auto ascii = [&](std::size_t at) { return static_cast<unsigned char>(text[at]) < 0x80; };
  for (std::size_t at = 0; at < text.size();) {
    // An ASCII character before another is a grapheme, but for \r\n.
    if (ascii(at) && (at + 1 == text.size() || (ascii(at + 1) && text[at] != '\r')) &&
        !changes_[static_cast<unsigned char>(text[at])]) {
      out.push_back(text[at++]);
      continue;
    }
    const std::size_t end = grapheme_end(text, at);
    append_grapheme(text.substr(at, end - at), out);
    at = end;
  }
  return out;
}

}  // namespace troupe::train
