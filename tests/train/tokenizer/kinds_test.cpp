// Unigram, WordPiece and SentencePiece's tokenizer.model beside Hugging Face's libraries.

#include <doctest/doctest.h>

#include <fstream>

#include "runtime/base/json.h"
#include "tests/support/test_data.h"
#include "train/tokenizer/charsmap.h"
#include "train/tokenizer/sentence_piece.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {
namespace {

std::string golden(const std::string& name) {
  return PosixFileSystem()
      .read(tests::source_dir() + "/tests/golden/tokenizer/" + name, 1 << 20)
      .value();
}

json::Value golden_json(const std::string& name) { return json::parse(golden(name), name).value(); }

std::vector<TokenId> row_ids(const json::Value& ids) {
  std::vector<TokenId> out;
  for (const auto& id : ids.as_array()) out.push_back(static_cast<TokenId>(id.as_int64()));
  return out;
}

// A folder with a golden tokenizer.model and what goes beside it.
struct ModelFolder : tests::TemporaryDirectory {
  explicit ModelFolder(const std::string& name) {
    put("tokenizer.model", golden(name + ".model"));
    put("tokenizer_config.json", golden(name + ".config.json"));
  }
  void put(const std::string& name, const std::string& content) {
    std::ofstream(file(name), std::ios::binary) << content;
  }
  Result<Tokenizer> load() { return Tokenizer::load(files, path()); }
  PosixFileSystem files;
};

void check_kind(const std::string& name, const Tokenizer& tokenizer) {
  const auto texts = golden_json("texts.json");
  const auto expected = golden_json(name + ".golden.json");
  const auto& rows = json::find(expected, "ids")->as_array();
  REQUIRE(rows.size() == texts.as_array().size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string text(texts.as_array()[i].as_string());
    CAPTURE(name);
    CAPTURE(text);
    const auto ids = tokenizer.encode(text, false).value();
    CHECK(ids == row_ids(rows[i]));
    const auto decoded = tokenizer.decode(ids, false);
    CHECK(decoded == std::string(json::find(expected, "text")->as_array()[i].as_string()));
    CHECK(tokenizer.encode(text, false).value() == ids);  // what is remembered is the same
    IncrementalDecoder decoder(tokenizer, false);
    std::string pieces;
    for (const TokenId id : ids) pieces += decoder.push(id);
    CHECK(pieces + decoder.finish() == decoded);
  }
  const std::string fifth(texts.as_array()[4].as_string());
  CHECK(tokenizer.encode(fifth, true).value() == row_ids(*json::find(expected, "special")));
}

TEST_CASE("tokenizer.json of type Unigram and WordPiece") {
  for (const char* name : {"unigram_t5", "unigram_bytes", "unigram_whole", "bert", "bert_cased",
                           "word_piece_stripped"}) {
    check_kind(name,
               Tokenizer::from_text(golden(std::string(name) + ".json"), "", "", name).value());
  }
}

TEST_CASE("SentencePiece's tokenizer.model, and the tokenizer.json that is saved of it") {
  for (const char* name :
       {"llama", "llama_new", "gemma", "bpe_rules", "spm_unigram", "spm_unigram_bytes"}) {
    ModelFolder folder(name);
    const auto tokenizer = folder.load().value();
    check_kind(name, tokenizer);
    tests::TemporaryDirectory saved;
    REQUIRE(tokenizer.save(folder.files, saved.path()).ok());
    const auto again = Tokenizer::load(folder.files, saved.path()).value();
    check_kind(name, again);
    CHECK(again.bos_id() == tokenizer.bos_id());
    CHECK(again.eos_id() == tokenizer.eos_id());
    CHECK(again.add_bos_token() == tokenizer.add_bos_token());
  }
}

TEST_CASE("special tokens beside a tokenizer.model") {
  ModelFolder folder("spm_unigram_bytes");
  auto tokenizer = folder.load().value();
  CHECK(tokenizer.vocab_size() == 350);
  CHECK(tokenizer.bos_id() == 1);
  CHECK(tokenizer.eos_id() == 2);
  CHECK(tokenizer.unk_id() == 0);
  // No class: a Llama's, which puts its begin token in front.
  folder.put("tokenizer_config.json", R"({"pad_token": "<pad>", "add_eos_token": true})");
  folder.put("added_tokens.json", R"({"<more>": 350})");
  tokenizer = folder.load().value();
  CHECK(tokenizer.pad_id() == 351);
  CHECK(tokenizer.vocab_size() == 352);
  CHECK(tokenizer.encode("<more>", true).value() == std::vector<TokenId>{1, 350, 2});
  CHECK(tokenizer.is_special(351));
  CHECK_FALSE(tokenizer.is_special(350));
  folder.put("added_tokens.json", R"({"<more>": 350, "<s>": 7})");
  const auto status = folder.load().status();
  CHECK(status.message().find("'<s>' has the ids") != std::string::npos);
}

TEST_CASE("tokens are added, and special ones split where that is asked for") {
  ModelFolder folder("llama");
  auto tokenizer = folder.load().value();
  const auto before = tokenizer.vocab_size();
  CHECK(tokenizer.add_tokens({"<new>", "<lang>", "<s>"}, false).value() == 1);
  CHECK(tokenizer.add_tokens({"<end>", "<lang>"}, true).value() == 1);
  const auto first = static_cast<TokenId>(before);
  CHECK(tokenizer.token_id("<end>") == first + 1);
  CHECK(tokenizer.is_special(*tokenizer.token_id("<lang>")));
  CHECK_FALSE(tokenizer.is_special(first));
  using Ids = std::vector<TokenId>;
  CHECK(tokenizer.encode("<new><end>", false).value() == Ids{first, first + 1});
  CHECK(tokenizer.add_tokens({""}, false).status().code() == Code::kInvalidArgument);
  CHECK(tokenizer.vocab_size() == before + 2);
  auto split = tokenizer;
  split.set_split_special_tokens(true);
  const auto ids = split.encode("<new><end>", false).value();
  CHECK(ids.size() > 3);
  CHECK(ids.front() == first);
  tests::TemporaryDirectory saved;
  REQUIRE(split.save(folder.files, saved.path()).ok());
  const auto again = Tokenizer::load(folder.files, saved.path()).value();
  CHECK(again.encode("<new><end>", false).value() == ids);
  CHECK(again.token_id("<end>") == first + 1);
}

TEST_CASE("damaged tokenizer.model files are refused or read, and never crash") {
  for (const char* name : {"llama", "spm_unigram"}) {
    ModelFolder folder(name);
    const std::string good = golden(std::string(name) + ".model");
    std::uint32_t noise = 3;
    const auto next = [&] { return noise = noise * 1664525 + 1013904223; };
    for (std::size_t round = 0; round < 60; ++round) {
      auto bytes = good;
      if (round % 2 == 0) {
        bytes.resize(good.size() * round / 60);
      } else {
        for (int i = 0; i < 3; ++i)
          bytes[next() / 64 % bytes.size()] = static_cast<char>(next() >> 24);
      }
      folder.put("tokenizer.model", bytes);
      const auto tokenizer = folder.load();
      if (tokenizer.ok()) CHECK(tokenizer->encode("Hello \xff <x> 水\n", true).ok());
    }
    folder.put("tokenizer.model", "\xff\xff");
    CHECK(folder.load().status().message().find("tokenizer.model: it is no SentencePiece model") !=
          std::string::npos);
  }
}

TEST_CASE("Base64 and maps of characters") {
  for (const std::string text : {"", "a", "ab", "abc", "\xff\x01\x80\x7f"})
    CHECK(from_base64(to_base64(text)) == text);
  CHECK(to_base64("abcd") == "YWJjZA==");
  for (const char* wrong : {"YWJ", "YW!=", "====", "Y=Jj"}) CHECK_FALSE(from_base64(wrong));
  for (const std::string& wrong : {std::string("abc"), std::string("\x08\0\0\0abcd", 8),
                                   std::string("\4\0\0\0\0\0\0\0\xff", 9)})
    CHECK_FALSE(Charsmap::make(wrong).ok());
}

}  // namespace
}  // namespace troupe::train
