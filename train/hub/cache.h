#pragma once
// huggingface_hub's cache on this machine, in its layout:
//
//   models--OWNER--NAME/refs/main             the commit of a branch or tag
//   models--OWNER--NAME/blobs/ETAG            contents; ETAG.incomplete: what came so far
//   models--OWNER--NAME/snapshots/COMMIT/...  links to the blobs, by the files' names
//   models--OWNER--NAME/.no_exist/COMMIT/...  empty files: the hub has none of that name
//   .locks/models--OWNER--NAME/ETAG.lock      locked by who downloads it

#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/hub/repository.h"

namespace troupe::train::hub {

class Cache {
 public:
  Cache(FileSystem& files, std::string root) : files_(files), root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  // The commit of the repository's revision, as it was when the hub was asked last.
  std::optional<std::string> commit_of(const Repository& repository) const;
  std::string snapshot_folder(const Repository& repository, const std::string& commit) const;
  // The snapshot of the revision; nothing where there is none.
  std::optional<std::string> find_snapshot(const Repository& repository) const;
  // A file of it, which is a whole one.
  std::optional<std::string> find_file(const Repository& repository, const std::string& file) const;
  bool known_absent(const Repository& repository, const std::string& commit,
                    const std::string& file) const;

  std::string blob(const Repository& repository, const std::string& etag) const;
  std::string lock(const Repository& repository, const std::string& etag) const;

  // That the revision is at this commit; nothing is written for a revision that is one.
  Status write_ref(const Repository& repository, const std::string& commit) const;
  Status note_absent(const Repository& repository, const std::string& commit,
                     const std::string& file) const;
  // Puts the blob into the snapshot under the file's name, by a relative link, or, where the file
  // system has none, itself. Returns the path.
  Result<std::string> place(const Repository& repository, const std::string& commit,
                            const std::string& file, const std::string& etag) const;

 private:
  std::string folder(const Repository& repository) const;
  FileSystem& files_;
  std::string root_;
};

}  // namespace troupe::train::hub
