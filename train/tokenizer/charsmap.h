#pragma once
// SentencePiece's precompiled_charsmap: characters, and what a normalizer puts in their place.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::train {

// nothing where the text is no Base64 (with padding).
std::optional<std::string> from_base64(std::string_view text);
std::string to_base64(std::string_view bytes);

// Immutable.
class Charsmap {
 public:
  // The size of a double array (little-endian, 32 bits), the array, texts that end with a zero.
  static Result<Charsmap> make(std::string_view bytes);
  // As in Hugging Face's tokenizers: a grapheme of less than six bytes becomes what the first of
  // its prefixes in the map becomes, as a whole; in others each character does. `text` must be
  // valid UTF-8; so is what comes back.
  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> find(std::string_view key) const;
  void append_grapheme(std::string_view grapheme, std::string& out) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
  bool changes_[128] = {};  // by ASCII character: whether something in the map begins with it
};

}  // namespace troupe::train
