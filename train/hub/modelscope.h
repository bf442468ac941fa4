#pragma once
// ModelScope: its API, and its cache on this machine. Files lie in
//
//   models/OWNER--NAME/snapshots/REVISION/...   and datasets/..., whole ones
//
// as version 1.38 and later of its library has them; what an older one downloaded (hub/models/
// OWNER/NAME, dots in NAME written "___") is taken, and added to, where it is.

#include <optional>
#include <string>

#include "train/hub/hub.h"

namespace troupe::train::hub {

// The folder of a model or a data set that has been downloaded.
std::optional<std::string> find_in_modelscope(FileSystem& files, const Settings& settings,
                                              const Repository& repository);

class ModelScope {
 public:
  ModelScope(Settings settings, Services services);

  // As Hub::snapshot(). The commit is the revision: ModelScope tells none.
  Result<Snapshot> snapshot(const Repository& repository, const ChooseFiles& choose);
  // The path of one file.
  Result<std::string> file(const Repository& repository, const std::string& name);

 private:
  struct Entry {
    std::string path, sha256;
    std::uint64_t size_bytes = 0;
  };
  Result<std::vector<Entry>> list(Http& http, const Repository& repository, bool once) const;
  Status fetch(Http& http, const Repository& repository, const std::string& folder,
               const Entry& entry) const;
  std::string lock_path(const Repository& repository, const std::string& file) const;

  const Settings settings_;
  const Services services_;
  const Client client_;
};

}  // namespace troupe::train::hub
