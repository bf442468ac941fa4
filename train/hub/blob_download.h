#pragma once
// The content of one file, from a hub into the cache's blobs.
//
// It is written in order into ETAG.incomplete, hashed as it comes, and renamed when the hash is
// right. What an earlier process left there is gone on from. A large file comes in pieces over
// several connections; what of them has not its turn yet is held in memory.

#include <cstdint>
#include <string>

#include "train/hub/client.h"
#include "train/hub/repository.h"

namespace troupe::train::hub {

// A file's commit, ETag, size and URL, as the hub tells them.
struct FileMetadata {
  std::string commit;
  std::string etag;
  std::uint64_t size_bytes = 0;
  std::string url;     // where the content is
  bool on_hub = true;  // the URL is the hub's own, and takes its token
};

struct BlobRequest {
  const Repository& repository;
  std::string file;  // its name, for people
  FileMetadata metadata;
  std::string path;  // of the blob
  // Asks for the metadata anew: a signed URL holds for an hour or so.
  std::function<Result<FileMetadata>(Http&)> refresh;
  int connections = 1;
  std::uint64_t piece_bytes = 8u << 20;  // what one request brings where there are several
};

// `incomplete`: the file that is written. The caller holds the lock.
Status download_blob(const Client& client, Http& http, const BlobRequest& request,
                     const std::string& incomplete);

}  // namespace troupe::train::hub
