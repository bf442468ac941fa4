// Token ids of real tokenizers, line by line against reference values.

#include <doctest/doctest.h>

#include <sstream>

#include "runtime/base/json.h"
#include "tests/support/test_data.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {
namespace {

using tests::test_data;

std::vector<std::string> texts_of(const std::string& content) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> out;
  for (std::size_t at = 0;;) {
    const auto end = content.find(separator, at);
    if (end == std::string::npos) break;
    out.push_back(content.substr(at, end - at));
    at = end + separator.size();
  }
  return out;
}

std::vector<std::vector<TokenId>> ids_of(const std::string& content) {
  std::vector<std::vector<TokenId>> out;
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    std::vector<TokenId> ids;
    for (TokenId id; numbers >> id;) ids.push_back(id);
    out.push_back(ids);
  }
  return out;
}

void check_golden(const std::string& tokenizer_name, const std::string& golden_name) {
  const auto directory = test_data(tokenizer_name);
  const auto golden = test_data("tokenizer_golden");
  if (!directory || !golden) return;
  PosixFileSystem files;
  const auto tokenizer = Tokenizer::load(files, *directory).value();
  const auto base = *golden + "/ggml-vocab-" + golden_name + ".gguf";
  const auto texts = texts_of(files.read(base + ".inp", 1 << 20).value());
  const auto expected = ids_of(files.read(base + ".out", 1 << 20).value());
  REQUIRE(texts.size() == expected.size());
  REQUIRE(texts.size() > 40);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    CAPTURE(texts[i]);
    const auto ids = tokenizer.encode(texts[i], false).value();
    CHECK(ids == expected[i]);
    CHECK(tokenizer.decode(ids, false) == texts[i]);
    CHECK(tokenizer.byte_count(ids) == texts[i].size());
    IncrementalDecoder decoder(tokenizer, true);
    std::string pieces;
    for (const TokenId id : ids) pieces += decoder.push(id);
    CHECK(pieces + decoder.finish() == texts[i]);
  }
}

TEST_CASE("GPT-2's ids") { check_golden("tok_gpt2", "gpt-2"); }
TEST_CASE("Llama 3's ids") { check_golden("tok_llama3", "llama-bpe"); }
TEST_CASE("Qwen 2's ids") { check_golden("tok_qwen2", "qwen2"); }

TEST_CASE("Llama 3 puts its begin token in front when asked") {
  const auto directory = test_data("tok_llama3");
  if (!directory) return;
  PosixFileSystem files;
  const auto tokenizer = Tokenizer::load(files, *directory + "/tokenizer.json").value();
  CHECK(tokenizer.encode("Hello world", true).value() == std::vector<TokenId>{128000, 9906, 1917});
  CHECK(tokenizer.encode("a<|eot_id|>b", false).value() == std::vector<TokenId>{64, 128009, 65});
  const std::vector<TokenId> ids = {128000, 9906, 128009};
  CHECK(tokenizer.decode(ids, true) == "Hello");
  CHECK(tokenizer.decode(ids, false) == "<|begin_of_text|>Hello<|eot_id|>");
  CHECK(tokenizer.vocab_size() == 128256);
}

TEST_CASE("stories260K: SentencePiece-style BPE with byte fallback") {
  const auto directory = test_data("stories260K/hf");
  if (!directory) return;
  PosixFileSystem files;
  const auto tokenizer = Tokenizer::load(files, *directory).value();
  CHECK(tokenizer.vocab_size() == 512);
  CHECK(tokenizer.bos_id() == 1);
  CHECK(tokenizer.eos_id() == 2);
  CHECK(tokenizer.add_bos_token());

  const auto golden =
      json::parse(files.read(*directory + "/golden.json", 1 << 20).value(), "golden.json").value();
  std::vector<TokenId> expected;
  for (const auto& id : json::find(golden, "greedy_ids_from_bos")->get_array()) {
    expected.push_back(static_cast<TokenId>(id.get_int64()));
  }
  // A byte that is no character spoils those before it, which have not been told yet.
  std::vector<TokenId> spoilt;
  for (const char* token : {"<0x48>", "<0xBF>", "<0x0F>"})
    spoilt.push_back(*tokenizer.token_id(token));
  spoilt.push_back(expected.back());
  IncrementalDecoder decoder(tokenizer, true);
  std::string pieces;
  for (const TokenId id : spoilt) pieces += decoder.push(id);
  CHECK(pieces + decoder.finish() == tokenizer.decode(spoilt, true));

  const auto text = tokenizer.decode(expected, true);
  CHECK(text.starts_with("Once upon a time, there was a little girl named Lily."));
  if (const auto stored = json::find_string(golden, "greedy_text")) CHECK(text == *stored);
  std::vector<TokenId> eval_ids;
  for (const auto& id : json::find(golden, "eval_ids")->get_array()) {
    eval_ids.push_back(static_cast<TokenId>(id.get_int64()));
  }
  auto eval = tokenizer.encode(*json::find_string(golden, "eval_text"), true).value();
  eval.resize(std::min(eval.size(), eval_ids.size()));
  CHECK(eval == eval_ids);
  // The model chose tokens, not the tokenizer: the text comes back, not always the same ids.
  const auto ids = tokenizer.encode(text, true).value();
  CHECK(ids.front() == 1);
  CHECK(tokenizer.decode(ids, true) == text);

  // Characters outside the vocabulary become their bytes: <0xC2> is id 0xC2 + 3.
  const auto bytes = tokenizer.encode("\xc2\xbd", false).value();
  CHECK(bytes.size() >= 2);
  CHECK(bytes[bytes.size() - 2] == 0xc2 + 3);
  CHECK(bytes[bytes.size() - 1] == 0xbd + 3);
  CHECK(tokenizer.decode(bytes, true) == "\xc2\xbd");
  const std::vector<TokenId> half = {0xc2 + 3};
  CHECK(tokenizer.decode(half, true) == "\xef\xbf\xbd");
}

}  // namespace
}  // namespace troupe::train
