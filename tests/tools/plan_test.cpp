// `troupe plan`: the real program on configurations that fit and that do not.

#include "runtime/base/file_system.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

using std::string;

void write_file(const string& path, const string& text) {
  PosixFileSystem files;
  auto file = files.create(path).value();
  REQUIRE(file->append(text).ok());
  REQUIRE(file->close().ok());
}

// A model's folder with nothing but its configuration, and a data set of one line.
class PlanHome : public TroupeHome {
 public:
  explicit PlanHome(int hidden = 64, int layers = 2) {
    PosixFileSystem files;
    REQUIRE(files.create_directories(file("model")).ok());
    REQUIRE(files.create_directories(file("data")).ok());
    write_file(file("model/config.json"),
               fmt::format(R"({{"model_type": "llama", "hidden_size": {}, "intermediate_size": {},
                  "num_hidden_layers": {}, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "vocab_size": 512, "tie_word_embeddings": true}})",
                           hidden, 2 * hidden, layers));
    string lines;
    for (int i = 0; i < 100; ++i)
      lines += fmt::format("{{\"text\": \"fox number {} jumps over the lazy dog\"}}\n", i);
    write_file(file("data/t.jsonl"), lines);
    write_file(file("data/dataset_info.json"),
               R"({"t": {"file_name": "t.jsonl", "columns": {"prompt": "text"}}})");
  }

  std::vector<string> arguments(const std::vector<string>& more = {}) const {
    std::vector<string> all = {"plan",
                               "stage=pt",
                               "finetuning_type=full",
                               "model_name_or_path=" + file("model"),
                               "train_from_scratch=true",
                               "dataset=t",
                               "dataset_dir=" + file("data"),
                               "cutoff_len=32",
                               "output_dir=" + file("out"),
                               "troupe.threads_per_worker=1",
                               "troupe.train_tokenizer=300",
                               "per_device_train_batch_size=2"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

// The rows of a world size.
std::vector<json::Object> plans_of(const json::Value& answer, std::int64_t world_size) {
  std::vector<json::Object> found;
  for (const json::Value& plan : answer.as_object().at("plans").as_array())
    if (plan.at("world_size").as_int64() == world_size) found.push_back(plan.as_object());
  return found;
}

TEST_CASE("a table for every strategy at the configured and the doubled world size") {
  const PlanHome home;
  const auto result = home.run(home.arguments({"troupe.workers=2", "troupe.strategy=zero2"}));
  CAPTURE(result.out);
  CAPTURE(result.err);
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "world size 2, as configured\n"));
  CHECK(contains(result.out, "\nworld size 4\n"));
  CHECK(contains(result.out, "\n* zero2 "));
  for (const char* strategy : {"ddp", "zero1", "shard_grad_op", "zero3", "hsdp 2×2"})
    CHECK(contains(result.out, string("\n  ") + strategy + " "));
  CHECK(contains(result.out, "2 rows of 32 tokens (cutoff_len: packed rows are that long)"));
  // Nothing was made.
  CHECK(!PosixFileSystem().exists(home.file("out")));
}

TEST_CASE("a plan for CPUs says why it is not one for GPUs") {
  PlanHome home;
  home.more().environment["TROUPE_CUDA_LIBRARY"] = "/nowhere.so";
  const auto result = home.run(home.arguments({"troupe.workers=1"}));
  CHECK(result.exit_code == 0);
  CHECK_MESSAGE(contains(result.err,
                         "notice: the run is on CPUs (troupe.device=auto): no GPU can be used: "
                         "/nowhere.so"),
                result.err);
  const auto asked = home.run(home.arguments({"troupe.workers=1", "troupe.device=cpu"}));
  CHECK(asked.exit_code == 0);
  CHECK_FALSE(contains(asked.err, "notice"));
}

TEST_CASE("the same as JSON") {
  const PlanHome home;
  const json::Value answer = home.run_json(home.arguments(
      {"troupe.workers=2", "troupe.strategy=zero3", "gradient_accumulation_steps=3"}));
  const auto configured = plans_of(answer, 2), doubled = plans_of(answer, 4);
  CHECK(configured.size() == doubled.size());
  int marked = 0;
  for (const json::Object& plan : configured) {
    CHECK(plan.at("fits").as_bool());
    if (!plan.at("configured").as_bool()) continue;
    ++marked;
    CHECK(plan.at("strategy").as_string() == "zero3");
    CHECK(plan.at("sent_formula").as_string() == "9Ψ·(N−1)/N");
    CHECK(plan.at("ranks_on_machine").as_int64() == 2);
  }
  CHECK(marked == 1);
  for (const json::Object& plan : doubled) CHECK(!plan.at("configured").as_bool());
  CHECK(answer.at("micro_batch").at("per_step").as_int64() == 3);
}

TEST_CASE("on GPUs: what spares take is counted beside what trainers take") {
  const PlanHome home;
  const auto arguments = home.arguments(
      {"troupe.device=cuda", "troupe.workers=2", "troupe.gpus_per_worker=0.5", "troupe.spares=1"});
  const auto result = home.run(arguments);
  CAPTURE(result.out);
  CHECK(result.exit_code == 0);
  CHECK(
      contains(result.out, "but for spares, which hold a context and no memory of a training: 1"));
  for (const json::Object& plan : plans_of(home.run_json(arguments), 2)) {
    const std::int64_t trainer = plan.at("per_gpu_bytes").at("total").as_int64();
    const std::int64_t spare = plan.at("spare_gpu_bytes").as_int64();
    CHECK(plan.at("spares_per_gpu").as_int64() == 1);
    CHECK(plan.at("gpu_bytes").as_int64() == 2 * trainer + spare);
  }
}

TEST_CASE("what cannot fit is said with what would, as the last line, and a positive code") {
  // 13 G parameters: 200 GiB of state, twice.
  const PlanHome home(8192, 40);
  const auto result = home.run(home.arguments({"troupe.workers=8", "troupe.strategy=ddp"}));
  CAPTURE(result.err);
  CHECK(result.exit_code == 5);
  CHECK(contains(result.out, "too large"));
  CHECK(contains(result.err, "8 trainers of "));
  CHECK(contains(result.err, "are available"));
  CHECK(contains(result.err, "what would fit: "));
  // train refuses it as well, before there are trainers.
  auto arguments = home.arguments({"troupe.workers=8", "troupe.train_tokenizer=270"});
  arguments[0] = "train";
  const auto refused = home.run(arguments);
  CAPTURE(refused.err);
  CHECK(refused.exit_code == 5);
  CHECK(contains(refused.err, "what would fit: "));
  CHECK(!PosixFileSystem().exists(home.file("out/logs")));
  // train refuses it, too, before it allocates anything.
}

TEST_CASE("bad configurations are refused as train refuses them") {
  const PlanHome home;
  const auto refused = [&](const std::vector<string>& more, const string& what) {
    const auto result = home.run(home.arguments(more));
    CAPTURE(result.err);
    CHECK(result.exit_code > 0);
    CHECK(contains(result.err, what));
  };
  refused({"troupe.strategy=zero9"}, "zero9");
  refused({"troupe.workers=3", "troupe.strategy=hsdp", "troupe.mesh=2,2"}, "troupe.mesh=2,2");
  refused({"dataset=nosuch"}, "nosuch");
  refused({"model_name_or_path=" + home.file("nosuch")}, "nosuch");
  refused({"learning_rat=1"}, "learning_rat");
}

TEST_CASE("plan, --explain and train refuse the same, in the same words") {
  const PlanHome home;
  PosixFileSystem files;
  REQUIRE(files.create_directories(home.file("vision")).ok());
  write_file(home.file("vision/config.json"),
             R"({"model_type": "qwen2_vl", "hidden_size": 64, "vocab_size": 512})");
  write_file(home.file("data/dataset_info.json"), R"({
      "t": {"file_name": "t.jsonl", "columns": {"prompt": "text"}},
      "pictures": {"file_name": "t.jsonl", "columns": {"prompt": "text", "images": "images"}},
      "broken": {"file_name": "b.jsonl", "columns": {"prompt": "text"}},
      "away": {"file_name": "away.jsonl", "columns": {"prompt": "text"}}})");
  write_file(home.file("data/b.jsonl"), "{\"text\": 7}\n");
  REQUIRE(files.create_directories(home.file("full")).ok());
  write_file(home.file("full/notes.txt"), "mine");
  // A model with a tokenizer that has no template's tokens.
  REQUIRE(files.create_directories(home.file("words")).ok());
  write_file(home.file("words/config.json"),
             files.read(home.file("model/config.json"), 1 << 20).value());
  const auto trained = home.run({"tokenizer", "train", "--vocab-size", "300", "--text",
                                 home.file("data/t.jsonl"), "--out", home.file("words")});
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.err);
  const auto message_of = [&](std::vector<string> arguments, const char* command,
                              const char* more = nullptr) {
    arguments.front() = command;
    if (more) arguments.emplace_back(more);
    const auto result = home.run(arguments);
    CAPTURE(result.out);
    CHECK(result.exit_code > 0);
    const string begin = fmt::format("troupe {}: ", command);
    const auto at = result.err.find(begin);
    if (at == string::npos)
      return fmt::format("no message, but {}: {}", result.exit_code, result.err);
    return fmt::format("{}: {}", result.exit_code, result.err.substr(at + begin.size()));
  };
  for (const auto& [change, what] : std::vector<std::pair<std::vector<string>, string>>{
           {{"stage=sft", "template=nosuch"}, "template: Template nosuch does not exist"},
           {{"dataset=pictures"}, "columns.images is not supported"},
           {{"dataset=broken"}, "the column 'text' must be a string"},
           {{"dataset=away"}, "away.jsonl"},
           {{"eval_dataset=away", "eval_strategy=steps"}, "eval_dataset: "},
           {{"model_name_or_path=" + home.file("vision")}, "qwen2_vl"},
           {{"train_from_scratch=false"}, "model_name_or_path: "},
           {{"troupe.train_tokenizer=null"}, "has no tokenizer.json"},
           {{"output_dir=" + home.file("full")}, "Output directory already exists"},
           {{"troupe.workers=2", "troupe.chaos=kill@step=1,rank=7"}, "troupe.chaos"},
           {{"val_size=200", "eval_strategy=steps"}, "val_size=200 takes 200 of 100 rows"},
           {{"stage=sft", "template=llama3"}, "template llama3 needs '<|eot_id|>'"},
           {{"model_name_or_path=" + home.file("words"), "troupe.train_tokenizer=null",
             "template=llama3"},
            "template llama3 needs '<|eot_id|>'"}}) {
    CAPTURE(what);
    const auto planned = message_of(home.arguments(change), "plan");
    CHECK(contains(planned, what));
    CHECK(message_of(home.arguments(change), "train", "--explain") == planned);
    CHECK(message_of(home.arguments(change), "train") == planned);
  }
  CHECK_FALSE(files.exists(home.file("out")));
}

TEST_CASE("data says what becomes of the rows, and writes nothing") {
  const PlanHome home;
  PosixFileSystem files;
  REQUIRE(files.create_directories(home.file("words")).ok());
  write_file(home.file("words/config.json"),
             files.read(home.file("model/config.json"), 1 << 20).value());
  REQUIRE(home.run({"tokenizer", "train", "--vocab-size", "300", "--text",
                    home.file("data/t.jsonl"), "--out", home.file("words")})
              .exit_code == 0);
  auto arguments =
      home.arguments({"model_name_or_path=" + home.file("words"), "val_size=10", "packing=false"});
  arguments.front() = "data";
  const auto result = home.run(arguments);
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  CHECK(contains(result.out, "t: 100 rows read, 100 samples kept, 0 dropped\n"));
  CHECK(contains(result.out, "training: 90 samples of "));
  CHECK(contains(result.out, "evaluation: 10 samples of "));
  CHECK(contains(result.out, "nothing is written"));
  CHECK_FALSE(files.exists(home.file("out")));
  const auto answer = home.run_json(arguments);
  const auto& train = answer.at("train");
  CHECK(train.at("samples").as_int64() == 90);
  CHECK(train.at("tokens").as_int64() > 90);
  CHECK(train.at("data_sets").as_array().size() == 1);
  // What the model sees: a pre-training text is trained on whole.
  auto more = arguments;
  more.insert(more.end(), {"--samples", "2", "--eval"});
  const auto shown = home.run(more);
  CHECK_MESSAGE(contains(shown.out, " trained on\n⟦fox number "), (shown.out + shown.err));
  CHECK(contains(shown.out, "sample 1: "));
  CHECK_FALSE(contains(shown.out, "sample 2: "));
  CHECK(contains(shown.out, "samples by their lengths in tokens:\n"));
  more.push_back("--json");
  const auto lines = home.run(more).out;
  const auto first = json::parse(lines.substr(0, lines.find('\n')), "line").value();
  CHECK(first.at("input_ids").as_array().size() == first.at("labels").as_array().size());
  CHECK(json::find_string(first, "text").value().starts_with("fox number "));
  CHECK(std::ranges::count(lines, '\n') == 3);
  more.back() = "val_size=0";
  CHECK(contains(home.run(more).err, "there are no data for evaluation"));
  more.back() = "--samples=many";
  CHECK(home.run(more).exit_code == 2);
  // Without a tokenizer yet there are rows, and no tokens.
  auto untrained = home.arguments();
  untrained.front() = "data";
  CHECK(contains(home.run(untrained).out, "training: 100 rows; "));
  // Axolotl's own command is this one; samples that are too long count as dropped, by data set.
  string much;
  for (int i = 0; i < 200; ++i) much += "fox number 1 jumps ";
  write_file(home.file("qa.jsonl"),
             R"({"instruction": "fox number 1", "output": "jumps over"})"
             "\n" +
                 fmt::format(R"({{"instruction": "{}", "output": "jumps over"}})", much) + "\n");
  write_file(home.file("a.yml"),
             fmt::format("base_model: {}\nreinit_weights: true\ndatasets:\n  - path: {}\n    type: "
                         "alpaca\nsequence_len: 500\nmicro_batch_size: 1\n"
                         "gradient_accumulation_steps: 1\nlearning_rate: 0.001\nnum_epochs: 1\n"
                         "output_dir: {}\n",
                         home.file("words"), home.file("qa.jsonl"), home.file("out")));
  const auto preprocess = home.run({"run", "--", "axolotl", "preprocess", home.file("a.yml")});
  CHECK_MESSAGE(preprocess.exit_code == 0, preprocess.err);
  CHECK_MESSAGE(contains(preprocess.out, "2 rows read, 1 sample kept, 1 dropped\n"),
                preprocess.out);
  CHECK_FALSE(contains(preprocess.out, "world size"));
  CHECK_FALSE(contains(preprocess.out, "packed"));
  const auto packed = home.run({"data", home.file("a.yml"), "sample_packing=true"});
  CHECK_MESSAGE(
      contains(packed.out, "packed in the first epoch into 1 micro-batch of at most 500 tokens\n"),
      (packed.out + packed.err));
  // Counts that show why there is nothing to train on are told before that.
  const auto few =
      home.run({"data", home.file("a.yml"), "sample_packing=true", "troupe.workers=5"});
  CHECK(few.exit_code == 2);
  CHECK_MESSAGE(contains(few.out, "2 rows read, 1 sample kept"), (few.out + few.err));
  CHECK(contains(few.err, "packing leaves nothing to train on"));
}

TEST_CASE("--explain shows every key beside the problems") {
  const PlanHome home;
  auto arguments = home.arguments({"learning_rate=fast", "dataset=nosuch", "--explain"});
  arguments.front() = "train";
  const auto table = home.run(arguments);
  CHECK(table.exit_code == 2);
  CHECK(contains(table.err, "Undefined dataset nosuch"));
  const auto row_of = [&](const string& key) {
    const auto at = table.out.find("\n" + key + " ");
    return at == string::npos ? string()
                              : table.out.substr(at + 1, table.out.find('\n', at + 1) - at);
  };
  CHECK(contains(row_of("learning_rate"), "fast"));
  CHECK(contains(row_of("learning_rate"), "refused"));
  CHECK(contains(row_of("dataset"), "refused"));
  CHECK(contains(row_of("cutoff_len"), "implemented"));
  CHECK_FALSE(contains(table.out, "world size)"));
  arguments.emplace_back("--json");
  CHECK(json::parse(home.run(arguments).out, "rows").value().as_array().size() > 100);
}

TEST_CASE(
    "all problems are told at once: settings, the environment, files, what is not there last") {
  PlanHome home;
  home.more().environment = {{"NNODES", "x"}, {"USE_MCA", "1"}};
  const auto result =
      home.run(home.arguments({"model_name_or_path=org/model", "stage=sft", "finetuning_type=oft",
                               "template=nosuch", "learning_rat=1", "dataset=nosuch"}));
  CAPTURE(result.err);
  CHECK(result.exit_code == 2);
  for (const char* what : {"finetuning_type=oft", "Template nosuch", "learning_rat", "NNODES",
                           "USE_MCA", "Undefined dataset nosuch", "'org/model' is no folder"})
    CHECK(contains(result.err, what));
  CHECK(result.err.find("finetuning_type=oft") < result.err.find("'org/model'"));
  CHECK(result.err.find("USE_MCA") < result.err.find("'org/model'"));
}

}  // namespace
}  // namespace troupe::tests
