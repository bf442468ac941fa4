// Runs whose base no file holds: adapters are merged into a model's folder first, or a PiSSA
// adapter takes its start out of it.
#include "train/trainer/derived_base.h"

#include "tests/train/trainer/run_fixture.h"
#include "train/adapters/adapter_targets.h"
#include "train/checkpoint/weights.h"
#include "train/model/initialize.h"
#include "train/tensor/convert.h"
#include "train/trainer/export_model.h"
#include "train/trainer/trained_part.h"

namespace troupe::train::tests::derived_base {
namespace {

constexpr const char* kAdapters = "adapter_model.safetensors";

// A model's folder, and adapters of it.
struct BaseFolders {
  explicit BaseFolders(DType type) : config(tiny_model()) {
    json::Object text = config.to_json();
    text["torch_dtype"] = torch_name(type);
    REQUIRE(files.create_directories(base()).ok());
    REQUIRE(write_file_atomically(files, base() + "/config.json", json::write(text)).ok());
    std::vector<StoredTensor> tensors;
    const ParameterLayout layout(config);
    for (const ParameterInfo& info : layout.parameters())
      tensors.push_back({info.name, type, info.shape, {}});
    REQUIRE(write(base() + "/model.safetensors", tensors, type));
  }
  std::string base() const { return directory.file("base"); }

  std::string add_adapter(const std::string& name, const std::vector<std::string>& targets) {
    LoraRequest request;
    request.targets = targets;
    request.rank = 4;
    const AdapterConfig adapter = make_adapter_config(config, request).value();
    std::vector<StoredTensor> tensors;
    for (const ExpectedTensor& tensor :
         adapter_tensors(config, lora_trainables(config, adapter).value()))
      tensors.push_back({"base_model.model." + tensor.name, DType::kF32, tensor.shape, {}});
    const std::string folder = directory.file(name);
    REQUIRE(files.create_directories(folder).ok());
    REQUIRE(write_file_atomically(files, folder + "/adapter_config.json", adapter.to_text()).ok());
    REQUIRE(write(folder + "/" + kAdapters, tensors, DType::kF32));
    return folder;
  }

  // Random values.
  bool write(const std::string& path, std::vector<StoredTensor>& tensors, DType type) {
    std::vector<std::vector<std::byte>> stored;
    for (const StoredTensor& tensor : tensors) {
      ParameterInfo info{.name = tensor.name, .shape = tensor.shape, .elements = 1};
      for (const std::int64_t width : tensor.shape) info.elements *= width;
      info.initial = {InitialValue::Kind::kUniform, 0.2};
      std::vector<float> values(static_cast<std::size_t>(info.elements));
      initialize_parameter(info, 0.2, 5, 0, values);
      REQUIRE(
          convert_from_float(values, type, stored.emplace_back(values.size() * dtype_size(type)))
              .ok());
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = stored[i];
    return write_safetensors(files, path, tensors, {}).ok();
  }

  troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
  ModelConfig config;
};

struct Run {
  std::string model;
  std::vector<std::string> merged;
  std::string adapter;
  std::string strategy = "ddp";
  int world = 1;
  std::string resume = "";
  std::vector<std::string> saved_whole = {};
  std::optional<PissaStart> pissa = {};
  std::optional<GrownVocabulary> grown = {};
  std::int64_t rows = 0;  // of the vocabulary, where it is grown
};

RunChange changed(const Run& run) {
  return {.world = run.world,
          .batch = 1,
          .accumulation = 12 / run.world,
          .resume = run.resume,
          .change = [=](RunBundle& bundle) {
            if (run.grown) bundle.model.vocab_size = run.rows;
            bundle.grown = run.grown;
            LoraRequest request;
            request.targets = {"q_proj", "down_proj"};
            request.additional_targets = run.saved_whole;
            request.rank = 4;
            request.pissa = run.pissa;
            const AdapterConfig adapter = make_adapter_config(bundle.model, request).value();
            bundle.trainables = lora_trainables(bundle.model, adapter).value();
            bundle.companions = {{"adapter_config.json", adapter.to_text()}};
            bundle.merged_adapters = run.merged;
            bundle.adapter = run.adapter;
            bundle.pissa = run.pissa;
            bundle.config.finetuning.pissa_convert = run.pissa.has_value();
            if (bundle.trainables.unties_head) bundle.model.tie_word_embeddings = false;
            auto& config = bundle.config;
            config.model.train_from_scratch = false;
            config.model.model_name_or_path = run.model;
            config.sharding.strategy = run.strategy;
            config.sharding.deterministic = Deterministic::kAcrossWorldSizes;
            config.training.max_steps = 4;
            config.training.save_steps = 2;
          }};
}

std::string trained(const std::string& output_dir) { return file(output_dir + "/" + kAdapters); }

// The same bits under all strategies, and from a checkpoint on.
std::string trained_everywhere(BaseFolders& folders, const std::string& name, Run run) {
  const std::string out = folders.directory.file(name);
  train(out, changed(run));
  const std::string expected = trained(out);
  Run other = run;
  other.strategy = "zero3";
  other.world = 3;
  train(out + "zero3", changed(other));
  CHECK((trained(out + "zero3") == expected));
  other.strategy = "zero1";
  other.world = 2;
  other.resume = out + "/checkpoint-2";
  train(out + "-resumed", changed(other));
  CHECK((trained(out + "-resumed") == expected));
  return expected;
}

TEST_CASE("adapters merged before training: as if they were in the model's files") {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    CAPTURE(dtype_name(type));
    BaseFolders folders(type);
    const std::string first = folders.add_adapter("first", {"q_proj", "up_proj"});
    const std::string second = folders.add_adapter("second", {"q_proj", "down_proj"});
    ExportRequest request{.base = folders.base(),
                          .adapters = {first, second},
                          .adapter_folder = {},
                          .out = folders.directory.file("merged"),
                          .dtype = type};
    const auto exported = export_model(folders.files, request);
    REQUIRE_MESSAGE(exported.ok(), exported.status().to_string());
    using Whole = std::vector<std::string>;
    for (const Whole& whole : type == DType::kF32 ? std::vector<Whole>{{}, {"embed_tokens", "norm"}}
                                                  : std::vector<Whole>{{"lm_head"}}) {
      const std::string name = whole.empty() ? "new" : whole.front();
      const std::string expected = trained_everywhere(
          folders, name,
          {.model = folders.base(), .merged = {first, second}, .saved_whole = whole});
      const std::string of_files = folders.directory.file(name + "-of-files");
      train(of_files, changed({.model = request.out, .saved_whole = whole}));
      CHECK((trained(of_files) == expected));
      const std::string unmerged = folders.directory.file(name + "-unmerged");
      train(unmerged, changed({.model = folders.base(), .saved_whole = whole}));
      CHECK_FALSE((trained(unmerged) == expected));
    }
    // The last one is trained on.
    if (type == DType::kF32) continue;
    trained_everywhere(folders, "last",
                       {.model = folders.base(), .merged = {first}, .adapter = second});
  }
}

TEST_CASE("a vocabulary that grows: the same bits everywhere, and the model that is exported") {
  BaseFolders folders(DType::kF32);
  const std::int64_t before = folders.config.vocab_size, rows = (before / 64 + 1) * 64;
  const GrownVocabulary grown{.rows_before = before,
                              .seed = 5,
                              .described = {{before + 1, {2, 3}}},
                              .described_noise = false};
  const std::string expected = trained_everywhere(folders, "grown",
                                                  {.model = folders.base(),
                                                   .saved_whole = {"embed_tokens", "lm_head"},
                                                   .grown = grown,
                                                   .rows = rows});
  const std::string out = folders.directory.file("grown");
  REQUIRE(write_file_atomically(folders.files, out + "/tokenizer_config.json", "{}").ok());
  const ExportRequest request{.base = folders.base(),
                              .adapters = {out},
                              .adapter_folder = {},
                              .out = folders.directory.file("whole"),
                              .dtype = DType::kF32};
  const auto exported = export_model(folders.files, request);
  REQUIRE_MESSAGE(exported.ok(), exported.status().to_string());
  const auto model = ModelConfig::parse(file(request.out + "/config.json"), "config.json").value();
  CHECK(model.vocab_size == rows);
  CHECK(folders.files.exists(request.out + "/tokenizer_config.json"));
}

TEST_CASE("rows of new tokens: the mean, noise, descriptions") {
  constexpr std::int64_t kWidth = 64, kBefore = 100, kRows = 128;
  std::vector<float> embedding(kRows * kWidth);
  for (std::size_t i = 0; i < kBefore * kWidth; ++i)
    embedding[i] = static_cast<float>(i / kWidth % 2);
  auto head = embedding;
  const GrownVocabulary grown{.rows_before = kBefore,
                              .seed = 7,
                              .described = {{100, {1, 3}}, {101, {}}},
                              .described_noise = false};
  grown.fill(embedding, kWidth, "embedding", embedding);
  const auto row = [&](std::int64_t at) {
    return std::span(embedding).subspan(at * kWidth, kWidth);
  };
  CHECK(row(99).front() == 1.0f);
  CHECK(std::ranges::all_of(row(100), [](float value) { return value == 1.0f; }));
  CHECK(std::ranges::all_of(row(101), [](float value) { return value == 0.5f; }));
  double sum = 0, squares = 0;
  for (const float value : std::span(embedding).subspan(102 * kWidth)) {
    sum += value - 0.5;
    squares += (value - 0.5) * (value - 0.5);
  }
  const double count = 26 * kWidth;
  CHECK(std::abs(sum / count) < 0.02);
  CHECK(std::sqrt(squares / count) == doctest::Approx(1.0 / 8).epsilon(0.1));
  auto noisy = grown;
  noisy.described_noise = true;
  noisy.fill(head, kWidth, "embedding", embedding);
  CHECK(std::ranges::equal(std::span(head).subspan(102 * kWidth),
                           std::span(embedding).subspan(102 * kWidth)));
  CHECK(head[100 * kWidth] != 1.0f);
  const auto value = noisy.to_json();
  const auto again = GrownVocabulary::from_json(&value).value();
  REQUIRE(again);
  CHECK(again->to_json() == value);
  CHECK_FALSE(GrownVocabulary::from_json(nullptr).value());
}

TEST_CASE("which adapters are merged, which one is trained on") {
  BaseFolders folders(DType::kF32);
  const std::string first = folders.add_adapter("first", {"q_proj"});
  const std::string second = folders.add_adapter("second", {"down_proj"});
  TrainConfig config;
  config.model.model_name_or_path = folders.base();
  FinetuningSection& f = config.finetuning;
  f.type = FinetuningType::kLora;
  std::string key;
  const auto part_of = [&] {
    ModelConfig model = folders.config;
    return trained_part(folders.files, config, model, key);
  };
  const auto part = [&] {
    auto made = part_of();
    REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    return std::move(*made);
  };
  using Folders = std::vector<std::string>;
  f.adapter_name_or_path = {first, second};
  CHECK(part().merged == Folders{first});
  CHECK(part().adapter == second);
  CHECK(part().trainables.lora.front().module.ends_with("down_proj"));
  // Its base is known by the adapters that are merged, too.
  CHECK(part().base->merged.size() == 1);
  f.create_new_adapter = true;
  CHECK(part().merged == Folders{first, second});
  CHECK(part().adapter.empty());
  CHECK(part().trainables.lora.size() == 14);  // the new one: all linear modules
  f.adapter_name_or_path = {first};
  CHECK(part().merged == Folders{first});
  // Without adapters there is nothing to merge.
  f.adapter_name_or_path = {};
  CHECK(part().merged.empty());
  f.pissa_init = true;
  f.pissa_iter = 4;
  CHECK(part().pissa == PissaStart{4});
  // The base without its principal components cannot serve as the reference.
  config.method.stage = TrainingStage::kDpo;
  CHECK(part_of().status().code() == Code::kUnsupported);
  config.method.stage = TrainingStage::kSupervised;
  CHECK(part().adapter_config.find("\"init_lora_weights\": \"pissa_niter_4\"") !=
        std::string::npos);
  f.lora_rank = 64;
  const Status too_high = part_of().status();
  CHECK(too_high.code() == Code::kInvalidArgument);
  CHECK(too_high.context("key") == "pissa_init");
  f.pissa_init = false;
  f.pissa_convert = true;
  CHECK(part_of().status().code() == Code::kInvalidArgument);
  CHECK(key == "pissa_convert");
  f.pissa_convert = false;
  // Embedding and head of a model that ties them become two, and new tokens need rows in both.
  f.type = FinetuningType::kLora;
  f.lora_rank = 4;
  f.adapter_name_or_path = {};
  config.model.resize_vocab = true;
  folders.config.tie_word_embeddings = true;
  const auto tensors = part().trainables.tensors;
  CHECK(part().trainables.unties_head);
  CHECK(std::ranges::count(tensors, "lm_head.weight") == 1);
  CHECK(std::ranges::count(tensors, "model.embed_tokens.weight") == 1);
  f.additional_target = {"embed_tokens"};
  CHECK(part_of().status().message().find("lm_head") != std::string::npos);
  CHECK(key == "additional_target");
  f.additional_target = {};
  config.model.resize_vocab = false;
  folders.config.tie_word_embeddings = false;
  // An adapter beside another base is refused before anything is computed.
  BaseRecord other{.hash = "0123456789abcdef", .merged = {}};
  REQUIRE(
      write_file_atomically(folders.files, first + "/" + kBaseRecordFile, other.to_text()).ok());
  f.adapter_name_or_path = {first};
  for (const bool merge : {false, true}) {
    f.create_new_adapter = merge;
    CHECK(part_of().status().message().find("another base than") != std::string::npos);
    CHECK(key == "adapter_name_or_path");
  }
}

TEST_CASE("PiSSA: one file for all, and the converted adapter computes the same model") {
  for (const std::int64_t iterations : {-1, 4}) {
    CAPTURE(iterations);
    BaseFolders folders(DType::kF32);
    const Run run{.model = folders.base(),
                  .merged = {folders.add_adapter("first", {"q_proj", "up_proj"})},
                  .saved_whole = {"norm"},
                  .pissa = PissaStart{iterations}};
    trained_everywhere(folders, "run", run);
    const std::string out = folders.directory.file("run");
    // The start is the same wherever it was taken.
    CHECK((trained(out + "zero3/pissa_init") == trained(out + "/pissa_init")));
    CHECK((trained(out + "-resumed/pissa_converted") == trained(out + "/pissa_converted")));
    CHECK_FALSE((trained(out) == trained(out + "/pissa_init")));

    // Both belong to the original base; the first is decomposed again.
    const auto merged = [&](const std::string& adapter) {
      auto opened =
          AdaptedModel::open(folders.files, folders.base(), {run.merged.front(), adapter});
      REQUIRE_MESSAGE(opened.ok(), opened.status().to_string());
      return std::move(*opened);
    };
    const AdaptedModel plain = merged(out + "/pissa_converted"), split = merged(out);
    const ParameterLayout layout(folders.config);
    double farthest = 0;
    for (const ParameterInfo& info : layout.parameters()) {
      std::vector<float> a(static_cast<std::size_t>(info.elements)), b = a;
      REQUIRE(plain.read_merged(info, AdaptedModel::Rounding::kStoredType, a).ok());
      REQUIRE(split.read_merged(info, AdaptedModel::Rounding::kStoredType, b).ok());
      for (std::size_t i = 0; i < a.size(); ++i)
        farthest = std::max(farthest, static_cast<double>(std::abs(a[i] - b[i])));
    }
    CHECK(farthest < 1e-6);
  }
}

TEST_CASE("a lost generation of PiSSA goes on from memory, bit for bit") {
  BaseFolders folders(DType::kF32);
  const RunChange change =
      changed({.model = folders.base(), .strategy = "zero3", .world = 2, .pissa = PissaStart{-1}});
  const std::string whole = folders.directory.file("whole");
  const std::string struck = folders.directory.file("struck");
  train(whole, change);
  train_struck(struck, change, 1);
  CHECK((trained(struck) == trained(whole)));
}

}  // namespace
}  // namespace troupe::train::tests::derived_base
