// Mixing, splitting, packing, the order of rows and the samples of other stages equal
// LLaMA-Factory's.

#include "tests/train/data/lf_golden.h"
#include "train/data/load_conversations.h"
#include "train/data/sampler.h"

namespace troupe::train {
namespace {

TEST_CASE("mixing takes the rows that LLaMA-Factory's takes") {
  const auto root = golden_json("mixing.json");
  if (root.is_null()) return;
  std::vector<std::size_t> sizes;
  for (const auto size : ints_of(root.at("sizes"))) sizes.push_back(static_cast<std::size_t>(size));
  int compared = 0;
  for (const auto& run : root.at("mix").as_array()) {
    const auto strategy = text_of(run, "mix_strategy"), probs = text_of(run, "interleave_probs");
    // Streams are read otherwise; interleave_once is what LLaMA-Factory's datasets do not know.
    if (run.at("streaming").as_bool() || !run.at("result").is_object() || strategy == "concat")
      continue;
    CAPTURE(strategy);
    CAPTURE(probs);
    std::vector<double> shares;
    if (!probs.empty()) shares = {0.7, 0.2, 0.1};
    std::vector<std::pair<std::size_t, std::size_t>> taken;
    REQUIRE(interleave(sizes, strategy, shares,
                       static_cast<std::uint32_t>(run.at("seed").as_int64()),
                       [&](std::size_t set, std::size_t row) {
                         taken.emplace_back(set, row);
                         return Status();
                       })
                .ok());
    const auto& result = run.at("result");
    CHECK(std::ssize(taken) == result.at("total").as_int64());
    const auto& first = result.at("first").as_array();
    for (std::size_t i = 0; i < first.size() && i < taken.size(); ++i)
      REQUIRE(fmt::format("{}:{}", taken[i].first, taken[i].second) == first[i].as_string());
    ++compared;
  }
  CHECK(compared == 8);
}

TEST_CASE("val_size keeps the rows that LLaMA-Factory's keeps") {
  const auto root = golden_json("mixing.json");
  if (root.is_null()) return;
  int compared = 0;
  for (const auto& run : root.at("split").as_array()) {
    DataOptions options;
    options.val_size = run.at("val_size").to_number<double>();
    options.seed = static_cast<std::uint32_t>(run.at("seed").as_int64());
    const auto count = static_cast<std::size_t>(run.at("n").as_int64());
    CAPTURE(count);
    CAPTURE(options.val_size);
    const auto kept = rows_kept_back(options, count);
    if (options.val_size == 1) continue;  // a share or a row: refused by the key
    REQUIRE(kept.ok() == run.at("result").is_object());
    if (!kept) continue;
    const auto order = numpy_permutation(static_cast<std::uint32_t>(count), options.seed);
    const auto& result = run.at("result");
    const auto validation = ints_of(result.at("validation"));
    REQUIRE(validation.size() == *kept);
    CHECK(std::equal(validation.begin(), validation.end(), order.begin()));
    const auto* train = json::find(result, "train");
    const auto rest = ints_of(train ? *train : result.at("train_first"));
    CHECK(std::equal(rest.begin(), rest.end(), order.begin() + std::ssize(validation)));
    ++compared;
  }
  CHECK(compared >= 16);
}

TEST_CASE("packs equal LLaMA-Factory's") {
  const auto root = golden_json("packing.json");
  GoldenTokenizers tokenizers;
  const auto* tokenizer = root.is_null() ? nullptr : tokenizers.get("smollm2-135m");
  if (!tokenizer) return;
  std::vector<Conversation> rows;
  for (const auto& row : root.at("samples").as_array())
    rows.push_back({.messages = {{Role::kUser, text_of(row, "instruction")},
                                 {Role::kAssistant, text_of(row, "output")}}});
  const auto chat = chat_template("chatml").value();
  Tokenizer fixed = *tokenizer;
  std::vector<std::string> notes;
  REQUIRE(fix_special_tokens(chat, fixed, notes).ok());
  EncodeReport report;
  SupervisedOptions options;
  options.cutoff_len = 255;
  TokenDataset alone(TokenDataset::Kind::kSupervised, *fixed.pad_id());
  REQUIRE(encode_supervised(rows, chat, fixed, options, alone, report).ok());
  options.cutoff_len = 256;
  options.packing = true;
  for (const auto& run : root.at("runs").as_array()) {
    const auto batch = json::find_integer(run.at("args"), "preprocessing_batch_size");
    options.preprocessing_batch_size = batch.value_or(1000);
    TokenDataset packed(TokenDataset::Kind::kPacked, *fixed.pad_id());
    REQUIRE(encode_supervised(rows, chat, fixed, options, packed, report).ok());
    const auto& packs = run.at("packs").as_array();
    REQUIRE(packed.size() == std::ssize(packs));
    for (std::int64_t i = 0; i < packed.size(); ++i) {
      CAPTURE(i);
      std::vector<TokenId> ids, labels, lengths;
      for (const auto member : ints_of(packs[static_cast<std::size_t>(i)].at("samples"))) {
        ids = join({ids, ids_of(alone, member)});
        labels = join({labels, labels_of(alone, member)});
        lengths.push_back(static_cast<TokenId>(alone.ids(member).size()));
      }
      ids.resize(256, *fixed.pad_id());
      labels.resize(256, kIgnoredLabel);
      REQUIRE(ids_of(packed, i) == ids);
      REQUIRE(labels_of(packed, i) == labels);
      const auto parts = packed.part_lengths(i);
      REQUIRE(std::vector<TokenId>(parts.begin(), parts.end()) == lengths);
    }
    const auto& last = run.at("last");
    CHECK(ids_of(packed, packed.size() - 1) == ints_of(last.at("input_ids")));
    CHECK(labels_of(packed, packed.size() - 1) == ints_of(last.at("labels")));
  }
  for (const auto& table : root.at("knapsack").as_array()) {
    std::vector<std::int64_t> numbers;
    for (const auto number : ints_of(table.at("numbers"))) numbers.push_back(number);
    const auto groups = greedy_knapsack(numbers, table.at("capacity").as_int64());
    REQUIRE(groups.size() == table.at("out").as_array().size());
    for (std::size_t i = 0; i < groups.size(); ++i)
      CHECK(std::vector<TokenId>(groups[i].begin(), groups[i].end()) ==
            ints_of(table.at("out").as_array()[i]));
  }
  for (const auto& row : root.at("infer_seqlen").as_array()) {
    const auto numbers = ints_of(row);
    CHECK(infer_lengths(numbers[0], numbers[1], numbers[2]) ==
          std::pair<std::int64_t, std::int64_t>(numbers[3], numbers[4]));
  }
}

// The micro-batches of a rank in an epoch.
std::vector<std::vector<TokenId>> batches_of(Sampler& sampler, std::int64_t epoch,
                                             std::int64_t rank) {
  std::vector<std::vector<TokenId>> out;
  SampleCursor cursor{.epoch = epoch};
  for (bool last = false; !last;) {
    const auto plan = sampler.next_step(cursor);
    for (std::int64_t i = 0; i < plan.micro_batch_count(); ++i) {
      const auto samples = plan.samples(i, rank);
      out.emplace_back(samples.begin(), samples.end());
    }
    last = plan.last_of_epoch;
    cursor = plan.after;
  }
  return out;
}

TEST_CASE("ranks see the rows that LLaMA-Factory's ranks see, for three epochs") {
  int compared = 0;
  for (const auto& run : golden_lines("order")) {
    if (run.as_object().contains("streaming")) continue;
    SamplerOptions options;
    options.sample_count = run.at("n").as_int64();
    options.world_size = run.at("world_size").as_int64();
    options.per_device_batch_size = 4;
    options.gradient_accumulation_steps = run.at("gas").as_int64();
    const auto data_seed = json::find_integer(run, "data_seed");
    options.seed = static_cast<std::uint32_t>(data_seed.value_or(run.at("seed").as_int64()));
    if (run.at("group_by_length").as_bool()) {
      options.length_group = options.per_device_batch_size * options.gradient_accumulation_steps;
      auto lengths = std::make_shared<std::vector<std::int32_t>>();
      for (std::int32_t i = 0; i < options.sample_count; ++i) lengths->push_back(1 + 37 * i % 101);
      options.lengths = std::move(lengths);
    }
    options.shuffle = !json::find_bool(run, "disable_shuffling").value_or(false);
    options.drop_last = run.at("drop_last").as_bool();
    auto sampler = Sampler::make(options);
    REQUIRE(sampler.ok() == !run.as_object().contains("error"));
    ++compared;
    if (!sampler) continue;
    CAPTURE(options.sample_count);
    CAPTURE(options.world_size);
    std::int64_t epoch = 0;
    for (const auto& told : run.at("epochs").as_array()) {
      // Of the largest data set the first batches are told, and how many there are.
      const auto* first = json::find(told, "first");
      const auto& ranks = (first ? *first : told).as_array();
      REQUIRE(std::ssize(ranks) == options.world_size);
      for (std::int64_t rank = 0; rank < options.world_size; ++rank) {
        const auto batches = batches_of(*sampler, epoch, rank);
        const auto& expected = ranks[static_cast<std::size_t>(rank)].as_array();
        if (first)
          CHECK(std::ssize(batches) == ints_of(told.at("batches"))[static_cast<std::size_t>(rank)]);
        else
          CHECK(batches.size() == expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i)
          REQUIRE(batches.at(i) == ints_of(expected[i]));
      }
      ++epoch;
    }
  }
  CHECK((compared == 0 || compared == 84));
}

// -- other stages -----------------------------------------------------------------------

Conversation pair_of(const json::Value& told) {
  Conversation out;
  for (const auto& message : told.at("prompt").as_array())
    out.messages.push_back({text_of(message, "role") == "user" ? Role::kUser : Role::kAssistant,
                            text_of(message, "content")});
  out.system = text_of(told, "system");
  const auto& answers = told.at("response").as_array();
  if (answers.size() < 2) {
    out.fault = "one answer";
    return out;
  }
  out.messages.push_back({Role::kAssistant, text_of(answers[0], "content")});
  out.rejected = Message{Role::kAssistant, text_of(answers[1], "content")};
  return out;
}

void check_answer(const AnsweredIds& made, const json::Value& told, const std::string& prefix) {
  const auto ids = ints_of(told.at(prefix + "ids"));
  CHECK(made.ids == ids);
  CHECK(made.labels == labels_of(told, ids, prefix));
}

void check_stage_record(const json::Value& record, const std::vector<Conversation>& pairs,
                        const Tokenizer& tokenizer) {
  const auto stage = text_of(record, "stage");
  SupervisedOptions options;
  options.cutoff_len = record.at("cutoff_len").as_int64();
  const auto chat = chat_template(text_of(record, "template")).value();
  const auto& rows = record.at("rows").as_array();
  std::vector<Conversation> valid;
  for (const auto& pair : pairs) {
    if (pair.fault.empty()) valid.push_back(pair);
  }
  REQUIRE(rows.size() == valid.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (stage == "rm") {
      const auto made = encode_pair(valid[i], chat, tokenizer, options).value();
      check_answer(made.chosen, rows[i].at("chosen"), "");
      check_answer(made.rejected, rows[i].at("rejected"), "");
      continue;
    }
    // As the golden values' makers chose the answers.
    const auto judged = [&](std::size_t row) {
      Conversation out = valid[row];
      out.desirable = row % 3 != 1;
      if (!*out.desirable) out.messages.back() = *out.rejected;
      return out;
    };
    const auto& before = judged((i + valid.size() - 1) % valid.size());
    const auto made =
        encode_feedback(judged(i), before.messages.back(), chat, tokenizer, options).value();
    CHECK(made.desirable == rows[i].at("tag").as_bool());
    check_answer(made.answer, rows[i], "");
    check_answer(made.kl, rows[i], "kl_");
  }
}

void check_pretrain(const json::Value& record, const std::vector<Conversation>& texts,
                    const Tokenizer& tokenizer) {
  PretrainOptions options;
  options.cutoff_len = record.at("block").as_int64();
  options.packing = record.at("packing").as_bool();
  options.eos_token =
      text_of(record, "template") == "llama3" ? "<|end_of_text|>" : text_of(record, "eos");
  TokenDataset made(TokenDataset::Kind::kPretrain, 0);
  EncodeReport report;
  REQUIRE(encode_pretrain(texts, tokenizer, options, made, report).ok());
  const auto& rows = record.at("rows").as_array();
  REQUIRE(made.size() == std::ssize(rows));
  for (std::int64_t i = 0; i < made.size(); ++i)
    CHECK(ids_of(made, i) == ints_of(rows[static_cast<std::size_t>(i)]));
}

TEST_CASE("samples of rm, kto and pt equal LLaMA-Factory's") {
  GoldenTokenizers tokenizers;
  std::vector<Conversation> pairs, texts;
  const auto told = golden_json("inputs/pairs.json");
  if (told.is_null()) return;
  for (const auto& pair : told.as_array()) pairs.push_back(pair_of(pair));
  const auto told_texts = golden_json("inputs/texts.json");
  for (const auto& text : told_texts.as_array())
    texts.push_back({.messages = {{Role::kUser, std::string(text.as_string())}}});
  int compared = 0;
  for (const auto& record : golden_lines("stages")) {
    const auto name = text_of(record, "template"), tokenizer = text_of(record, "tokenizer");
    if (record.as_object().contains("error")) continue;  // broken rows end LLaMA-Factory's run
    // Others take long to read.
    if (tokenizer != "stories260K" && (tokenizer != "tok_gpt2" || name == "llama3")) continue;
    CAPTURE(name);
    CAPTURE(tokenizer);
    const bool pretrain = text_of(record, "stage") == "pt";
    CAPTURE(pretrain);
    const auto* base = tokenizers.get(tokenizer);
    if (!base) return;
    ++compared;
    if (pretrain && name == "llama3") {
      // With stop words added to the vocabulary.
      std::map<TokenId, std::string> added;
      for (const char* word : {"<|eot_id|>", "<|eom_id|>"})
        added[static_cast<TokenId>(base->vocab_size() + std::ssize(added))] = word;
      check_pretrain(record, texts, *tokenizers.get(tokenizer, added));
      continue;
    }
    if (name == "glm4") {
      base = tokenizers.get(tokenizer, {{50257, "<|user|>"}, {50258, "<|observation|>"}});
    }
    Tokenizer fixed = *base;
    std::vector<std::string> notes;
    REQUIRE(fix_special_tokens(chat_template(name).value(), fixed, notes).ok());
    if (pretrain) {
      check_pretrain(record, texts, fixed);
    } else {
      check_stage_record(record, pairs, fixed);
    }
  }
  CHECK(compared == 24);
}

}  // namespace
}  // namespace troupe::train
