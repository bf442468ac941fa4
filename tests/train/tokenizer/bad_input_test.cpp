// Damaged and foreign tokenizer files, texts that are not UTF-8: clear failures, never a crash.

#include <doctest/doctest.h>

#include "tests/support/test_data.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/regex.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unicode.h"

namespace troupe::train {
namespace {

std::string small_json() {
  TrainedBpe trained;
  trained.special_tokens = {"<e>"};
  trained.merges = {{"a", "b"}, {"ab", "c"}};
  return tokenizer_json_of(trained);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

Status load(const std::string& text, const std::string& config = "") {
  return Tokenizer::from_text(text, config, "", "dir").status();
}

bool has(const Status& status, const std::string& part) {
  const bool found = status.message().find(part) != std::string::npos;
  if (!found) MESSAGE(status.message());
  return !status.ok() && found;
}

TEST_CASE("damaged vocabularies and merges are refused with file and key") {
  const auto good = small_json();
  REQUIRE(load(good).ok());
  CHECK(has(load(replaced(good, "\"ab c\"", "\"a b\"")), "dir/tokenizer.json: model.merges[1]"));
  CHECK(has(load(replaced(good, "\"ab c\"", "\"ab  c\"")), "model.merges[1]"));
  CHECK(has(load(replaced(good, "\"ab c\"", "[\"\", \"c\"]")), "empty part"));
  CHECK(has(load(replaced(good, "\"ab c\"", "[\"ab\", 7]")), "model.merges[1]"));
  CHECK(has(load(replaced(good, "\"ab c\"", "\"ab d\"")), "model.vocab lacks"));
  CHECK(has(load(replaced(good, "\"abc\": 258", "\"abc\": 257")), "gives the id 257 to"));
  CHECK(has(load(replaced(good, "\"abc\": 258", "\"abc\": -1")), "model.vocab['abc']"));
  CHECK(has(load(replaced(good, "\"abc\": 258", "\"abc\": 99999999999")), "model.vocab['abc']"));
  CHECK(has(load(replaced(good, "\"abc\": 258", "\"ab\": 258")), "stands twice"));
  CHECK(has(load(replaced(good, "\"id\": 0", "\"id\": 5")), "more than one id"));
  CHECK(has(load(replaced(good, "\"id\": 0", "\"id\": -5")), "added_tokens[0].id"));
  CHECK(has(load(replaced(good, "\"content\": \"<e>\"", "\"content\": \"<x>\"")),
            "the id 0 is given to"));
  CHECK(has(load(replaced(good, "\"abc\": 258", "\"ab\xff\": 258")), "tokenizer.json"));
  CHECK(has(load(good, R"({"eos_token": "<none>"})"), "eos_token '<none>' is not in the vocab"));
  CHECK(has(load(good, "{"), "dir/tokenizer_config.json"));
  CHECK(has(load("[]"), "no JSON object"));
  CHECK(has(load("{}"), "model"));
}

TEST_CASE("tokenizers of other kinds are refused by name") {
  const auto good = small_json();
  const auto status = load(replaced(good, "\"BPE\"", "\"WordLevel\""));
  CHECK(status.code() == Code::kUnsupported);
  CHECK(has(status, "model.type=WordLevel"));
  for (const char* type : {"WordPiece", "Unigram"}) {
    CHECK(has(load(replaced(good, "\"BPE\"", "\"" + std::string(type) + "\"")),
              "model.type=" + std::string(type) + " behind a pre_tokenizer with ByteLevel"));
  }
  CHECK(has(load(replaced(good, "\"normalizer\": null", "\"normalizer\": {\"type\": \"Other\"}")),
            "normalizer.type=Other is not supported"));
  CHECK(has(load(replaced(good, "\"type\": \"ByteLevel\"", "\"type\": \"UnicodeScripts\"")),
            "pre_tokenizer.type=UnicodeScripts is not supported"));
  CHECK(
      has(load(replaced(good, "\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"")),
          "end_of_word_suffix"));
  PosixFileSystem files;
  tests::TemporaryDirectory empty;
  CHECK(Tokenizer::load(files, empty.path()).status().code() == Code::kNotFound);
}

TEST_CASE("damaged Unigram and WordPiece models are refused with the key") {
  const auto model = [](const std::string& text) { return load("{\"model\": " + text + "}"); };
  const std::string begin = R"({"type": "Unigram", "vocab": )";
  REQUIRE(model(begin + R"([["<unk>", 0], ["a", -1.5]], "unk_id": 0})").ok());
  CHECK(has(model(begin + R"([["a", -1.5]], "unk_id": 1})"), "model.unk_id=1"));
  CHECK(has(model(begin + R"([["a", -1.5]]})"), "model.unk_id=-1"));
  CHECK(has(model(begin + R"([["a", "b"]], "unk_id": 0})"), "model.vocab[0] must be a token"));
  CHECK(has(model(begin + R"({"a": 0}, "unk_id": 0})"), "model.vocab must be an array"));
  const std::string pieces = R"({"type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1})";
  REQUIRE(model(pieces + "}").ok());
  CHECK(has(model(pieces + R"(, "unk_token": "<unk>"})"), "model.unk_token '<unk>'"));
  CHECK(has(model(pieces + R"(, "max_input_chars_per_word": -1})"), "max_input_chars_per_word"));
  CHECK(has(load(R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA"},
                     "model": {}})"),
            "normalizer.precompiled_charsmap must be Base64"));
  CHECK(has(load(R"({"post_processor": {"type": "BertProcessing", "cls": ["a", 7]},
                     "model": )" +
                 pieces + "}}"),
            "post_processor.cls"));
}

TEST_CASE("truncated and garbled files never crash") {
  const auto good = small_json();
  std::uint32_t noise = 7;
  for (std::size_t cut = 0; cut < good.size(); cut += 5) {
    CHECK_FALSE(load(good.substr(0, cut)).ok());
    auto garbled = good;
    noise = noise * 1664525 + 1013904223;
    garbled[cut] = static_cast<char>(noise >> 24);
    const auto tokenizer = Tokenizer::from_text(garbled, "", "", "dir");
    if (tokenizer.ok()) CHECK(tokenizer->encode("abc \xff <e>\n", true).ok());
  }
}

TEST_CASE("texts that are not UTF-8") {
  const auto tokenizer = Tokenizer::from_text(small_json(), "", "", "dir").value();
  const auto ids = tokenizer.encode("a\xff\xe2\x82z", false).value();
  CHECK(tokenizer.decode(ids, false) == "a\xef\xbf\xbd\xef\xbf\xbdz");
  CHECK(ids == tokenizer.encode("a\xef\xbf\xbd\xef\xbf\xbdz", false).value());
  // The maximal invalid sequences of Unicode's table 3-8, as Python's errors="replace".
  const std::string mark = "\xef\xbf\xbd";
  CHECK(to_valid_utf8("\xf1\x80\x80\xe1\x80\xc2z") == mark + mark + mark + "z");
  CHECK(to_valid_utf8("\xc0\xaf") == mark + mark);
  CHECK(to_valid_utf8("\xed\xa0\x80") == mark + mark + mark);
  CHECK(to_valid_utf8("\xf4\x90\x80\x80") == mark + mark + mark + mark);
  CHECK(tokenizer.encode("", true).value().empty());
  const std::vector<TokenId> strange = {-1, 1 << 30, 0};
  CHECK(tokenizer.decode(strange, false) == "<e>");
  CHECK(tokenizer.byte_count(strange) == 0);
}

TEST_CASE("added tokens: longest first, strip, single_word") {
  const auto with = [](const std::string& flags) {
    return Tokenizer::from_text(replaced(small_json(), "\"added_tokens\": [",
                                         "\"added_tokens\": [{\"id\": 300, \"content\": \"<e>x\", "
                                         "\"normalized\": false, " +
                                             flags + "},"),
                                "", "", "dir")
        .value();
  };
  const auto byte = [](char c) { return 1 + static_cast<unsigned char>(c); };
  using Ids = std::vector<TokenId>;
  CHECK(with("\"special\": true").encode("<e><e>x", false).value() == Ids{0, 300});
  CHECK(with("\"lstrip\": true, \"rstrip\": true").encode("a <e>x\n b", false).value() ==
        Ids{byte('a'), 300, byte('b')});
  const auto word = with("\"single_word\": true");
  CHECK(word.encode("<e>x-", false).value() == Ids{300, byte('-')});
  CHECK(word.encode("<e>xy", false).value().front() != 300);
  CHECK(word.vocab_size() == 301);
}

TEST_CASE("an exploding expression is a failure, not a hang") {
  RegexScratch scratch;
  const auto regex = Regex::compile("(x+x+)+y").value();
  const std::string text(5000, 'x');
  const auto match = regex.find(text, 0, scratch);
  if (!match.ok()) CHECK(match.status().code() == Code::kResourceExhausted);
  CHECK_FALSE(Regex::compile("(").ok());
  // U+180E is no white space, unlike in PCRE2's \s.
  const auto space = Regex::compile("[^\\s]").value();
  CHECK(space.find("\xe1\xa0\x8e", 0, scratch).value().has_value());
}

TEST_CASE("eos and pad can be replaced, and saving keeps it") {
  auto tokenizer =
      Tokenizer::from_text(small_json(), R"({"eos_token": "<e>", "extra": 1})", "", "dir").value();
  const auto before = tokenizer;
  REQUIRE(tokenizer.set_eos("abc").ok());
  REQUIRE(tokenizer.set_pad("<e>").ok());
  CHECK(tokenizer.set_eos("<none>").code() == Code::kNotFound);
  CHECK(before.eos_id() == 0);
  CHECK(tokenizer.is_special(258));
  CHECK_FALSE(before.is_special(258));
  const std::vector<TokenId> ids = {258, 257};
  CHECK(tokenizer.decode(ids, true) == "ab");
  PosixFileSystem files;
  tests::TemporaryDirectory directory;
  REQUIRE(tokenizer.save(files, directory.path()).ok());
  const auto again = Tokenizer::load(files, directory.path()).value();
  CHECK(again.eos_id() == 258);
  CHECK(again.pad_id() == 0);
  CHECK(again.is_special(258));
  CHECK(files.read(directory.file("tokenizer_config.json"), 1000).value().find("extra") !=
        std::string::npos);
}

}  // namespace
}  // namespace troupe::train
