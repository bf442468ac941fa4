#pragma once
// A hub and its cache on this machine: files and whole snapshots of repositories, downloaded where
// they are not there and that is allowed.

#include <functional>
#include <string>
#include <vector>

#include "train/hub/blob_download.h"
#include "train/hub/cache.h"
#include "train/hub/client.h"
#include "train/hub/settings.h"

namespace troupe::train::hub {

struct Snapshot {
  std::string folder;
  std::string commit;
  bool asked_hub = false;        // the commit is that of now
  int downloaded = 0;            // files
  std::vector<std::string> all;  // the repository's files; empty where the hub was not asked
};

// Which of a repository's files are wanted.
using ChooseFiles = std::function<Result<std::vector<std::string>>(const Snapshot& found)>;

// Files that are fetched at once.
inline constexpr int kFilesAtATime = 8;
// Does `work` for each of these names, so many at a time, each with a connection of its own. The
// first failure ends it.
Status for_each_file(const Services& services, const std::vector<std::string>& names,
                     int files_at_a_time,
                     const std::function<Status(Http& http, const std::string& name)>& work);

class Hub {
 public:
  Hub(Settings settings, Services services);

  // The path of one file, as huggingface_hub's hf_hub_download.
  Result<std::string> file(const Repository& repository, const std::string& name);

  // The folder with the chosen files at least, as huggingface_hub's snapshot_download. Where the
  // hub cannot be asked: what the cache has.
  Result<Snapshot> snapshot(const Repository& repository, const ChooseFiles& choose);

  const Settings& settings() const { return settings_; }
  const Cache& cache() const { return cache_; }

  int files_at_a_time = kFilesAtATime;
  int connections = 8;  // of a file that is larger than some pieces
  std::uint64_t piece_bytes = 8u << 20;

 private:
  Result<FileMetadata> metadata(Http& http, const Repository& repository, const std::string& name,
                                bool once);
  Result<std::string> fetch(Http& http, const Repository& repository, const std::string& name,
                            const FileMetadata& metadata);
  Result<std::string> fetch_named(Http& http, const Repository& at_commit, const std::string& name);
  void note_commit(const Repository& repository, const std::string& commit);
  Result<Snapshot> info(Http& http, const Repository& repository, bool once);

  const Settings settings_;
  const Services services_;
  const Client client_;
  const Cache cache_;
  std::mutex large_file_;  // one at a time has all the connections
};

// Names that match one of `include` (none: all) and none of `exclude`, patterns of a shell in which
// "*" stands for slashes, too.
std::vector<std::string> matching(const std::vector<std::string>& names,
                                  const std::vector<std::string>& include,
                                  const std::vector<std::string>& exclude);

}  // namespace troupe::train::hub
