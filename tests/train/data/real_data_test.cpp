// Real data sets with real tokenizers, and the byte model.

#include <doctest/doctest.h>

#include <cmath>

#include "tests/train/data/support.h"
#include "train/data/byte_model.h"

namespace troupe::train {
namespace {

TEST_CASE("LLaMA-Factory's demo data with Qwen 2's and Llama 3's tokenizers") {
  const auto data = tests::test_data("llamafactory/data");
  if (!data) return;
  PosixFileSystem files;
  for (const auto& [folder, name] :
       {std::pair("tok_qwen2", "qwen"), std::pair("tok_llama3", "llama3")}) {
    const auto path = tests::test_data(folder);
    if (!path) continue;
    const auto tokenizer = Tokenizer::load(files, *path).value();
    DataOptions options;
    options.dataset = {"identity", "alpaca_en_demo"};
    options.dataset_dir = *data;
    options.template_name = name;
    options.max_samples = 40;
    const auto module = build_dataset(files, options, tokenizer).value();
    CHECK(module.train.size() == 80);
    const auto text = module.tokenizer.decode(module.train.ids(0), false);
    const bool qwen = std::string(name) == "qwen";
    CHECK(text.find(qwen ? "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello! I am"
                         : "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>") !=
          std::string::npos);

    options.neat_packing = true;
    options.cutoff_len = 512;
    const auto packed = build_dataset(files, options, tokenizer).value();
    CHECK(packed.train.size() < 80);
    for (std::int64_t i = 0; i < packed.train.size(); ++i) {
      CHECK(packed.train.ids(i).size() == 512);
    }
  }
}

TEST_CASE("pre-training text with stories260K's tokenizer") {
  const auto data = tests::test_data("llamafactory/data");
  const auto path = tests::test_data("stories260K/hf");
  if (!data || !path) return;
  PosixFileSystem files;
  DataOptions options;
  options.stage = DataOptions::Stage::kPretrain;
  options.dataset = {"c4_demo", "wiki_demo"};
  options.dataset_dir = *data;
  options.max_samples = 20;
  options.cutoff_len = 256;
  const auto module = build_dataset(files, options, Tokenizer::load(files, *path).value()).value();
  CHECK(module.train.ids(0).size() == 256);
  CHECK(module.train.ids(0)[0] == 1);  // bos
  CHECK(module.train.token_count() + module.train_report.tokens_dropped ==
        module.train_report.tokens);
}

TEST_CASE("the byte model: by hand, and on English") {
  ByteModel empty;
  CHECK(empty.bits("ab") == doctest::Approx(16));
  CHECK(empty.bits("") == 0);
  ByteModel model;
  model.train("aa");
  // Order 0: n = 2, t = 1: p(a) = (2 + 1/256) / 3. Order 1 behind a: n = 1, t = 1: (1 + p) / 2.
  const double p0 = (2 + 1.0 / 256) / 3, p1 = (1 + p0) / 2;
  CHECK(model.bits("a") == doctest::Approx(-std::log2(p0)));
  CHECK(model.bits("aa") == doctest::Approx(-std::log2(p0) - std::log2(p1)));
  CHECK(model.bits("aaa") == doctest::Approx(-std::log2(p0) - 2 * std::log2(p1)));

  const auto path = tests::test_data("tinyshakespeare/input.txt");
  if (!path) return;
  const auto text = PosixFileSystem().read(*path, 1 << 24).value();
  ByteModel english;
  english.train(std::string_view(text).substr(0, text.size() * 9 / 10));
  const auto held_out = std::string_view(text).substr(text.size() * 9 / 10);
  const double bits = english.bits(held_out) / static_cast<double>(held_out.size());
  CHECK(bits > 2.0);
  CHECK(bits < 3.2);
}

}  // namespace
}  // namespace troupe::train
