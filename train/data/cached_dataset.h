#pragma once
// A run's samples out of a token cache: taken from there where they were made by the same settings
// of the same files, else made and kept there.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/data/build_dataset.h"
#include "train/data/sample_stream.h"

namespace troupe::train {

// What it returns removes `folder`, while it lives, where a signal ends the program.
using RemoveAtSignal = std::function<std::shared_ptr<void>(const std::string& folder)>;

struct CacheRequest {
  std::string folder;
  // The user named the folder (tokenized_path). Then what is in it is not replaced by what other
  // settings make, and is taken as it is where no data set is named.
  bool named = false;
  bool overwrite = false;  // made anew, whatever is there
  // Of the tokenizer: the text of its files, and what the configuration does to it.
  std::string tokenizer;
  // Who makes it, for others who wait for that.
  std::string holder;
  std::function<void(const std::string& line)> say;
  SampleProgress progress;
  // For what is half made; null: a signal leaves it to the next start, which removes it.
  RemoveAtSignal remove_at_signal;
  std::chrono::seconds wait_max = std::chrono::hours(24);  // for another process that makes it
};

struct CachedDataset {
  DatasetModule module;           // its data sets are mapped
  std::int64_t records = 0;       // rows that the samples to train on were made of
  std::vector<StreamFile> files;  // that were read
  std::string folder;             // the cache
  bool made = false;              // now
  // Nobody could compare it: no data set is named, or its files are not there.
  bool as_it_is = false;
};

// Several processes may ask for one folder at once: one of them makes it, the others wait.
// kFailedPrecondition: a data file changed while it was read, or a named folder holds other samples
// (the message says which settings differ). kInvalidArgument: the folder is somebody else's.
// Damaged caches are made anew, and said.
Result<CachedDataset> cached_dataset(FileSystem& files, const DataOptions& options,
                                     const Tokenizer& tokenizer, const CacheRequest& request);

// A place where a cache may be made: nothing is there, or an empty folder, or a cache. `named`: as
// CacheRequest::named. kInvalidArgument, kUnsupported (Arrow's format) else.
Status check_cache_place(FileSystem& files, const std::string& folder, bool named);

// Whether the folder holds a cache, as far as its name says.
bool holds_token_cache(FileSystem& files, const std::string& folder);

}  // namespace troupe::train
