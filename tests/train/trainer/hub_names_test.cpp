// Names on a hub in a configuration, looked up in a cache as huggingface_hub leaves it.

#include "train/trainer/hub_names.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/config/explain.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

const std::string kCommit(40, 'c');

class HubCache {
 public:
  std::string snapshot(const std::string& repository) const {
    return place.file("hf/hub/" + repository + "/snapshots/" + kCommit);
  }
  void put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  void add(const std::string& repository, const std::map<std::string, std::string>& files,
           const std::string& revision = "main") const {
    put(place.file("hf/hub/" + repository + "/refs/" + revision), kCommit);
    for (const auto& [name, text] : files) put(snapshot(repository) + "/" + name, text);
  }

  Result<LoadedConfig> load(const std::string& more,
                            std::map<std::string, std::string, std::less<>> variables = {}) {
    variables["HF_HOME"] = place.file("hf");
    const MapEnvironment environment(variables);
    HubNames names(
        files, environment,
        {.downloads = false, .write = [this](const std::string& text) { said += text; }});
    return load_train_config_text("stage: sft\noutput_dir: out\n" + more, "x.yaml", {}, environment,
                                  files, {.locate = [&](LoadedConfig& loaded, Problems& problems) {
                                    names.locate(loaded, problems);
                                  }});
  }
  LoadedConfig loaded(const std::string& more,
                      std::map<std::string, std::string, std::less<>> variables = {}) {
    auto out = load(more, std::move(variables));
    REQUIRE_MESSAGE(out.ok(), out.status().to_string());
    return std::move(*out);
  }
  std::string refused(const std::string& more,
                      std::map<std::string, std::string, std::less<>> variables = {}) {
    const auto out = load(more, std::move(variables));
    REQUIRE_FALSE(out.ok());
    return out.status().to_string();
  }

  // A data set of this machine.
  std::string own_data() const {
    put(place.file("own/dataset_info.json"), "{}");
    return fmt::format("dataset_dir: {}\ndataset: own\ntemplate: empty\n", place.file("own"));
  }

  troupe::tests::TemporaryDirectory place;
  PosixFileSystem files;
  std::string said;
};

const std::map<std::string, std::string> kModel = {{"config.json", "{}"},
                                                   {"model.safetensors", ""}};

TEST_CASE("names of models and adapters: the cache's folders take their places") {
  HubCache hub;
  hub.add("models--Qwen--Qwen3-0.6B", kModel);
  hub.add("models--a--lora", {{"adapter_config.json", "{}"}, {"adapter_model.safetensors", ""}});
  const std::string lora =
      "finetuning_type: lora\nlora_target: all\n" + hub.own_data() + "model_name_or_path: ";
  const auto loaded = hub.loaded(lora +
                                 "Qwen/Qwen3-0.6B\nadapter_name_or_path: a/lora\n"
                                 "hf_hub_token: hf_sesame\n");
  CHECK(loaded.config.model.model_name_or_path == hub.snapshot("models--Qwen--Qwen3-0.6B"));
  CHECK(loaded.config.finetuning.adapter_name_or_path ==
        std::vector<std::string>{hub.snapshot("models--a--lora")});
  CHECK(contains(loaded.notices.back(), "a/lora at commit cccccccccccc, in the cache"));
  const auto rows = explain(loaded);
  CHECK(contains(explain_table(rows, false), "Qwen/Qwen3-0.6B at commit cccccccccccc"));
  CHECK_FALSE(contains(json::write(explain_json(rows)), "sesame"));
  CHECK_FALSE(contains(json::write(to_json(loaded.config)), "sesame"));

  // A folder of that name comes first; another cache; a revision.
  hub.add("models--Qwen--Other", kModel, "v1");
  CHECK(hub.loaded(lora + "Qwen/Other\nmodel_revision: v1\n").config.model.model_name_or_path ==
        hub.snapshot("models--Qwen--Other"));
  const auto elsewhere = fmt::format("Qwen/Qwen3-0.6B\ncache_dir: {}\n", hub.place.file("empty"));
  CHECK(contains(hub.refused(lora + elsewhere), hub.place.file("empty")));
  CHECK(hub.said.empty());
}

TEST_CASE("what the cache lacks: the error says what, and which command fetches it") {
  HubCache hub;
  const std::string full = "finetuning_type: full\n" + hub.own_data() + "model_name_or_path: ";
  const auto none = hub.refused(full + "acme/none\n");
  CHECK(contains(none, "'acme/none' is no folder on this machine"));
  CHECK(contains(none, "'troupe download acme/none' fetches it"));
  CHECK(contains(hub.refused(full + "acme/none\n", {{"HF_HUB_OFFLINE", "1"}}), "HF_HUB_OFFLINE=0"));
  CHECK(contains(hub.refused(full + "./nowhere\n"), "give the model's folder"));
  hub.add("models--acme--part", {{"config.json", "{}"}});
  CHECK(contains(hub.refused(full + "acme/part\n"), "lacks weights in safetensors"));
  CHECK(hub.load(full + "acme/part\ntrain_from_scratch: true\n").ok());
  hub.add("models--acme--shards",
          {{"config.json", "{}"},
           {"a.safetensors", ""},
           {"model.safetensors.index.json",
            R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})"}});
  CHECK(contains(hub.refused(full + "acme/shards\n"), "lacks b.safetensors"));
  CHECK(contains(hub.refused(full + "acme/none\n", {{"USE_MODELSCOPE_HUB", "1"}, {"HOME", "/h"}}),
                 "'USE_MODELSCOPE_HUB=1 troupe download acme/none' fetches it"));
}

TEST_CASE("data sets on a hub: by dataset_info.json, ONLINE, REMOTE:, and by path") {
  HubCache hub;
  hub.add("models--a--m", kModel);
  hub.add("datasets--a--rows", {{"data/train.jsonl", "{}"}, {"data/test.jsonl", "{}"}});
  hub.add("datasets--a--info", {{"dataset_info.json", R"({"far": {"hf_hub_url": "a/rows"}})"}});
  hub.put(hub.place.file("data/dataset_info.json"),
          R"({"here": {"file_name": "x.json"}, "far": {"hf_hub_url": "a/rows", "split": "test"},
              "part": {"hf_hub_url": "a/rows", "split": "train[:10]"},
              "both": {"hf_hub_url": "a/rows", "split": "train[:10%]+test"}})");
  const auto folder = hub.snapshot("datasets--a--rows");
  const std::string start = "finetuning_type: full\nmodel_name_or_path: a/m\ntemplate: empty\n";
  const auto named = fmt::format("dataset_dir: {}\ndataset: ", hub.place.file("data"));
  using Files = std::map<std::string, std::vector<std::string>>;
  CHECK(hub.loaded(start + named + "here,far\n").config.data.hub_files ==
        Files{{"far", {folder + "/data/test.jsonl"}}});
  CHECK(hub.loaded(start + named + "part\n").config.data.hub_files ==
        Files{{"part", {folder + "/data/train.jsonl"}}});
  CHECK(hub.loaded(start + named + "both\n").config.data.hub_files ==
        Files{{"both", {folder + "/data/train.jsonl"}},
              {"both\ntest", {folder + "/data/test.jsonl"}}});
  const auto online = hub.loaded(start + "dataset_dir: ONLINE\ndataset: a/rows\n");
  CHECK(online.config.data.hub_files == Files{{"a/rows", {folder + "/data/train.jsonl"}}});
  CHECK(contains(hub.refused(start + "dataset_dir: ONLINE\ndataset: a/none\n"),
                 "troupe download a/none --repo-type dataset"));
  const auto remote =
      hub.load(start + "dataset_dir: 'REMOTE:a/info'\ndataset: far\n", {{"HF_HUB_OFFLINE", "1"}});
  REQUIRE_MESSAGE(remote.ok(), remote.status().to_string());
  CHECK(remote->config.data.dataset_dir == hub.snapshot("datasets--a--info"));
  CHECK(remote->config.data.hub_files.contains("far"));

  // Rows that say themselves what they are; the entry has become one of files.
  const auto rows = hub.loaded(
                           "finetuning_type: full\nmodel_name_or_path: a/m\n"
                           "troupe.datasets: [{path: a/rows, type: alpaca, split: 'test[:50%]', "
                           "revision: main}]\n")
                        .config.data.rows.datasets;
  REQUIRE(rows.size() == 1);
  CHECK(json::find_string(rows[0], "path") == folder);
  CHECK(json::write(*json::find(rows[0], "data_files")) == R"(["data/test.jsonl"])");
  CHECK(json::find_string(rows[0], "split") == "train[:50%]");
  CHECK_FALSE(json::find(rows[0], "revision"));
}

TEST_CASE("a node that does not share the folder takes the same commit from its own cache") {
  HubCache here, there;
  here.add("models--a--m", kModel);
  const auto folder = there.snapshot("models--a--m");
  const MapEnvironment environment({{"HF_HOME", here.place.file("hf")}});
  CHECK(same_snapshot_here(here.files, environment, {}, folder) == here.snapshot("models--a--m"));
  CHECK_FALSE(same_snapshot_here(here.files, environment, there.place.file("none"), folder));
  CHECK_FALSE(same_snapshot_here(here.files, environment, {}, there.snapshot("models--a--other")));
  CHECK_FALSE(same_snapshot_here(here.files, environment, {}, there.place.file("model")));
  // What is there is taken as it is.
  there.add("models--a--m", kModel);
  CHECK_FALSE(same_snapshot_here(here.files, environment, {}, folder));
}

}  // namespace
}  // namespace troupe::train
