#pragma once
// Names on a hub in a configuration: models, adapters, data sets. Each is looked up once, by the
// process that starts a run, and its folder or files on this machine take the name's place.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "train/config/load.h"
#include "train/config/problems.h"
#include "train/hub/dataset_files.h"
#include "train/hub/hub.h"
#include "train/hub/model_files.h"
#include "train/hub/modelscope.h"

namespace troupe::train {

struct HubNamesOptions {
  // Whether what is not in the cache is fetched; otherwise it is an error that says how to.
  bool downloads = true;
  // Where progress goes, and whether it is a terminal.
  std::function<void(const std::string&)> write;
  bool terminal = false;
};

class HubNames {
 public:
  HubNames(FileSystem& files, const Environment& environment, HubNamesOptions options);

  // For LoadOptions::locate. A folder or file of that name on this machine comes before a hub.
  void locate(LoadedConfig& loaded, Problems& problems);

  // Of a model or an adapter: the folder that the name stands for, itself where it is one or no
  // hub could have it.
  Result<std::string> model_folder(const std::string& name, const hub::ModelFiles& wanted);

  // Of a data set on a hub: the paths of the selected files, in `folder`.
  struct DataFound {
    std::string folder;
    std::vector<std::string> paths;
    std::string where;  // for people
  };
  Result<DataFound> data_files(const std::string& name, const std::string& revision,
                               const hub::DatasetSelection& selection, bool modelscope);

  // What a configuration may say instead of the environment.
  struct Overrides {
    std::string token, modelscope_token, cache, revision = "main";
  };
  void set_overrides(const Overrides& overrides);

  // The hub as it is set up: Hugging Face's, or ModelScope's.
  hub::Hub& hub();
  hub::ModelScope& modelscope();
  bool uses_modelscope() const { return settings_.modelscope; }
  // A snapshot from one of the two.
  Result<hub::Snapshot> snapshot(const hub::Repository& repository, bool modelscope,
                                 const hub::ChooseFiles& choose);
  // Where the last model was found, for people.
  const std::string& where() const { return where_; }

 private:
  void locate_model(LoadedConfig& loaded, Problems& problems);
  void locate_adapters(LoadedConfig& loaded, Problems& problems);
  void locate_named_data(LoadedConfig& loaded, Problems& problems);
  void locate_rows(LoadedConfig& loaded, json::Array& sets, const char* key, Problems& problems);
  hub::Services services();
  Status explained(const hub::Repository& repository, bool modelscope, const Status& why) const;
  static std::string told(const std::string& name, bool modelscope, const hub::Snapshot& snapshot);
  void found(LoadedConfig& loaded, const char* key, const std::string& where);

  FileSystem& files_;
  const HubNamesOptions options_;
  const hub::Settings from_environment_;
  hub::Settings settings_;
  std::string revision_ = "main";
  std::unique_ptr<hub::Progress> progress_;
  std::unique_ptr<hub::Hub> hub_;
  std::unique_ptr<hub::ModelScope> modelscope_;
  std::string where_;
  // What was found before: a configuration may be read twice.
  std::map<std::string, std::pair<std::string, std::string>> folders_;
};

// The same snapshot in this machine's own cache, where a run's folder of one is not here: nodes
// need not share folders for what comes from a hub. Nothing: `folder` is here, or nowhere.
std::optional<std::string> same_snapshot_here(FileSystem& files, const Environment& environment,
                                              const std::optional<std::string>& cache,
                                              const std::string& folder);

}  // namespace troupe::train
