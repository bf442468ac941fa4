#pragma once
// The `decoder` part of tokenizer.json: from the tokens of ids back to text.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "train/tokenizer/unicode.h"

namespace troupe::train {

// ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, WordPiece and sequences of them;
// without a decoder tokens are joined by spaces. Immutable.
class Decoder {
 public:
  static Result<Decoder> from_json(const json::Value* value);

  // The text behind the tokens. Bytes that are not UTF-8 become U+FFFD.
  std::string decode(std::vector<std::string> tokens) const;
  // Whether a token is one byte of ByteFallback, whose text depends on the bytes beside it.
  bool is_byte(std::string_view token) const;
  // How many bytes of text a token stands for, wherever it stands: a metaspace is one byte, a byte
  // token is one byte.
  std::size_t byte_count(std::string_view token) const;

 private:
  enum class Kind { kByteLevel, kMetaspace, kReplace, kByteFallback, kFuse, kStrip, kWordPiece };
  struct Step {
    Kind kind{};
    std::string pattern, content;
    std::size_t start = 0, stop = 0;
    bool strip_first = false;  // Metaspace: drop the replacement that was prepended
    bool cleanup = false;      // WordPiece: no space before punctuation and contractions
  };
  Status add(const json::Value& value, const std::string& key, int depth);
  std::vector<std::string> apply(const Step& step, std::vector<std::string> tokens) const;

  std::vector<Step> steps_;
  ByteAlphabet alphabet_;
};

}  // namespace troupe::train
