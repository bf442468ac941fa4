#pragma once
// dataset_info.json: what the data sets of a folder are, as LLaMA-Factory's users write it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/data/records.h"

namespace troupe::train {

enum class Formatting { kAlpaca, kSharegpt, kOpenai };

// One entry. Column and tag names; empty: there is no such column. Where an entry has `columns` (or
// `tags`), every name it does not list is empty, as in LLaMA-Factory.
struct DatasetAttributes {
  std::string name;
  std::string file_name;  // a file or a directory, relative to the folder of dataset_info.json
  // What came from a hub; then there is no file_name.
  struct HubSplit {
    std::string split;
    std::vector<std::string> paths;
  };
  std::vector<HubSplit> hub_splits;
  Formatting formatting = Formatting::kAlpaca;
  bool ranking = false;
  std::string split = "train";  // or parts of it: "train[:50%]", "train[2:4]+train[8:]"
  std::optional<std::int64_t> num_samples;

  std::string prompt = "instruction", query = "input", response = "output", history;
  std::string messages = "conversations";
  std::string system, tools;
  std::string chosen, rejected;  // of ranking data
  std::string kto_tag;
  // The columns that the entry names itself, which some row must have.
  std::vector<std::string> named_columns;

  std::string role_tag = "from", content_tag = "value";
  std::string user_tag = "human", assistant_tag = "gpt", observation_tag = "observation",
              function_tag = "function_call", system_tag = "system";
};

// As dataset_dir: every name is that of a data set on a hub.
inline constexpr const char* kOnline = "ONLINE";

// The splits that "train[:50%]+test" names, each once.
std::vector<std::string> split_names(std::string_view split);

// Files of data sets that are on a hub, by the names of their entries; of an entry's second split
// and those behind by hub_key().
using HubFiles = std::map<std::string, std::vector<std::string>>;

// The entries of `names` in dataset_dir/dataset_info.json, in their order. A name without an entry
// is kNotFound ("Undefined dataset X in dataset_info.json."); entries that live in a script or in
// cloud storage, or on a hub and are not among `hub_files`, and columns for images, videos, audios
// are kUnsupported by name.
Result<std::vector<DatasetAttributes>> read_dataset_info(FileSystem& files,
                                                         const std::string& dataset_dir,
                                                         const std::vector<std::string>& names,
                                                         const HubFiles& hub_files = {});

// The files of an entry.
Result<DataFiles> find_data_files(FileSystem& files, const std::string& dataset_dir,
                                  const DatasetAttributes& attributes);

// An entry that is on a hub: what is to be found there.
struct HubEntry {
  std::string name;                    // in dataset_info.json
  std::string hf_hub_url, ms_hub_url;  // names of repositories; either may be empty
  std::string subset, folder;
  std::vector<std::string> splits = {"train"};  // without their parts
};

// Those among `names`; with dataset_dir ONLINE all of them. What is wrong with the file or an entry
// is for read_dataset_info to say.
std::string hub_key(const std::string& name, const std::string& split, bool first);
std::vector<HubEntry> hub_entries(FileSystem& files, const std::string& dataset_dir,
                                  const std::vector<std::string>& names);

}  // namespace troupe::train
