#pragma once
// Where Troupe keeps its things on a machine (~/.troupe), and the note that heads leave there for
// tools and drivers: ~/.troupe/current, which lists the heads that run, the newest first.

#include <cstdint>
#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::scheduler {

// $HOME/.troupe. kFailedPrecondition where HOME is not set.
Result<std::string> troupe_directory(const Environment& environment);
// TROUPE_TOKEN_FILE, which the programs of jobs have; else ~/.troupe/token
Result<std::string> default_token_file(const Environment& environment);

// A running head, as it wrote itself down.
struct ClusterRecord {
  std::string host;  // numeric
  std::uint16_t port = 0;
  std::string token_file;  // empty: the head was given its token by --token-stdin
  std::int64_t pid = 0;
  std::string host_name;  // of the machine, whose pid it is: home directories may be shared
  bool insecure = false;  // the head does not encrypt connections between machines
  friend bool operator==(const ClusterRecord&, const ClusterRecord&) = default;
};

// ~/.troupe/current
Result<std::string> cluster_record_path(const Environment& environment);
// Before those of other heads that may still run: when this one ends, they are found again.
Status write_cluster_record(FileSystem& files, const std::string& path,
                            const ClusterRecord& record);
// Of the newest head that is not known to be gone; where all are, of the newest. kNotFound where
// there is no file; kDataLoss where it is not one of records.
Result<ClusterRecord> read_cluster_record(FileSystem& files, const std::string& path);
// Leaves the records of other heads as they are; without any, the file is removed.
Status remove_cluster_record(FileSystem& files, const std::string& path,
                             const ClusterRecord& record);
// Whether the head is known to be gone: it ran on this machine and its process is not there.
bool is_stale(const ClusterRecord& record);

// This machine's host name.
std::string host_name();

// The inverse of net::parse_address.
std::string format_address(const std::string& host, std::uint16_t port);

}  // namespace troupe::scheduler
