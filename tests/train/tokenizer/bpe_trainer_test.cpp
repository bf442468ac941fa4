#include "train/tokenizer/bpe_trainer.h"

#include <doctest/doctest.h>

#include <sstream>

#include "tests/support/test_data.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unicode.h"

namespace troupe::train {
namespace {

TextSource texts(std::vector<std::string> list) {
  return
      [list = std::move(list), next = std::size_t{0}](std::string& text) mutable -> Result<bool> {
        if (next == list.size()) return false;
        text = list[next++];
        return true;
      };
}

BpeTrainerOptions options_of(std::int64_t vocab_size) {
  BpeTrainerOptions options;
  options.vocab_size = vocab_size;
  return options;
}

TEST_CASE("merges equal the reference trainer's") {
  const auto directory = tests::test_data("bpe_train_golden");
  if (!directory) return;
  PosixFileSystem files;
  auto options = options_of(500);
  options.frequency_min = 1;
  const auto trained =
      train_bpe(texts({files.read(*directory + "/corpus.en", 1 << 24).value()}), options).value();
  std::istringstream reference(
      files.read(*directory + "/train-bpe-reference-merges.txt", 1 << 24).value());
  const ByteAlphabet alphabet;
  std::size_t i = 0;
  for (std::string line; std::getline(reference, line); ++i) {
    REQUIRE(i < trained.merges.size());
    CHECK(alphabet.characters_of(trained.merges[i].first) + " " +
              alphabet.characters_of(trained.merges[i].second) ==
          line);
  }
  CHECK(i == trained.merges.size());
}

TEST_CASE("by hand: counts, ties, special tokens") {
  // Words: "aab" 2×, " aab" 1×; pairs aa 3, ab 3, " a" 1. The greater of the tie is (a, b).
  auto options = options_of(256 + 1 + 2);
  const auto trained = train_bpe(texts({"aab<|endoftext|>aab aab"}), options).value();
  REQUIRE(trained.merges.size() == 2);
  CHECK(trained.merges[0] == std::pair<std::string, std::string>("a", "b"));
  CHECK(trained.merges[1] == std::pair<std::string, std::string>("a", "ab"));
  CHECK(trained.word_count == 2);

  // Nothing is left that occurs twice: the vocabulary stays smaller than wanted.
  CHECK(train_bpe(texts({"xy xz"}), options_of(1000)).value().merges.empty());
}

TEST_CASE("the order of the texts does not matter, and a file trained twice is the same") {
  const std::vector<std::string> some = {"the cat sat on the mat", "on the other hand\n",
                                         "1984 cats \xc3\xa9t\xc3\xa9"};
  const auto a = tokenizer_json_of(train_bpe(texts(some), options_of(300)).value());
  const auto b =
      tokenizer_json_of(train_bpe(texts({some[2], some[0], some[1]}), options_of(300)).value());
  CHECK(a == b);
}

TEST_CASE("what is written is a tokenizer that gives texts back") {
  tests::TemporaryDirectory directory;
  PosixFileSystem files;
  auto options = options_of(300);
  options.special_tokens = {"<|endoftext|>", "<|pad|>"};
  options.pad_token = "<|pad|>";
  const auto trained =
      train_bpe(texts({"the cat sat on the mat, the cat that sat", "a hat on a cat"}), options)
          .value();
  REQUIRE(write_trained_tokenizer(files, directory.file("t"), trained, options).ok());
  const auto tokenizer = Tokenizer::load(files, directory.file("t")).value();
  CHECK(tokenizer.vocab_size() == 258 + static_cast<std::int64_t>(trained.merges.size()));
  CHECK(tokenizer.eos_id() == 0);
  CHECK(tokenizer.pad_id() == 1);
  CHECK_FALSE(tokenizer.bos_id());
  const std::string text = "the cat\n\tÜber 🦙\x01";
  const auto ids = tokenizer.encode(text, true).value();
  CHECK(ids.size() < text.size());
  CHECK(tokenizer.decode(ids, true) == text);
  CHECK(tokenizer.encode("a<|endoftext|>", false).value().back() == 0);
}

TEST_CASE("contradicting options and empty texts are refused") {
  CHECK(train_bpe(texts({"a"}), options_of(100)).status().code() == Code::kInvalidArgument);
  auto twice = options_of(300);
  twice.special_tokens = {"<x>", "<x>"};
  twice.eos_token = "";
  CHECK_FALSE(train_bpe(texts({"a"}), twice).ok());
  auto role = options_of(300);
  role.bos_token = "<s>";
  CHECK(train_bpe(texts({"a"}), role).status().message() ==
        "'<s>' must be one of the special tokens");
  CHECK_FALSE(train_bpe(texts({}), options_of(300)).ok());
  const TextSource broken = [](std::string&) -> Result<bool> {
    return Status(Code::kNotFound, "no file");
  };
  CHECK(train_bpe(broken, options_of(300)).status().code() == Code::kNotFound);
}

}  // namespace
}  // namespace troupe::train
