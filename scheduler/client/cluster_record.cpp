#include "scheduler/client/cluster_record.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/json.h"

namespace troupe::scheduler {
namespace {

constexpr std::uint64_t kRecordBytesMax = 64 << 10;
constexpr std::size_t kRecordsMax = 32;

Result<std::string> in_troupe_directory(const Environment& environment, const char* name) {
  return join_path(TROUPE_TRY(troupe_directory(environment)), name);
}

json::Object to_json(const ClusterRecord& record) {
  return {{"host", record.host}, {"port", record.port},           {"token_file", record.token_file},
          {"pid", record.pid},   {"host_name", record.host_name}, {"insecure", record.insecure}};
}

std::optional<ClusterRecord> from_json(const json::Value& value) {
  const auto host = json::find_string(value, "host");
  const auto port = json::find_integer(value, "port");
  const auto pid = json::find_integer(value, "pid");
  if (!host || !port || *port <= 0 || *port > 65535 || !pid || *pid <= 0) return std::nullopt;
  return ClusterRecord{*host,
                       static_cast<std::uint16_t>(*port),
                       json::find_string(value, "token_file").value_or(""),
                       *pid,
                       json::find_string(value, "host_name").value_or(""),
                       json::find_bool(value, "insecure").value_or(false)};
}

// The newest head's record is the document, with those of the others in its `others`.
Status write_records(FileSystem& files, const std::string& path,
                     std::span<const ClusterRecord> records) {
  json::Object object = to_json(records.front());
  json::Array others;
  for (const auto& record : records.subspan(1)) others.push_back(to_json(record));
  if (!others.empty()) object["others"] = std::move(others);
  // Not synced: it names a head that a power loss ends, and the loop of a head that comes back
  // would stand still for a slow disk while nodes and drivers wait to be let in again.
  const std::string temporary = path + ".tmp";
  const auto write = [&]() -> Status {
    const auto file = TROUPE_TRY(files.create(temporary, 0600));
    TROUPE_RETURN_IF_ERROR(file->append(json::write(object) + "\n"));
    TROUPE_RETURN_IF_ERROR(file->close());
    return files.rename(temporary, path);
  };
  Status status = write();
  if (!status.ok()) static_cast<void>(files.remove(temporary));
  return status;
}

// Never empty.
Result<std::vector<ClusterRecord>> read_records(FileSystem& files, const std::string& path) {
  const auto text = TROUPE_TRY(files.read(path, kRecordBytesMax));
  const auto value = json::parse(text, path);
  const auto newest = value.ok() ? from_json(*value) : std::nullopt;
  if (!newest) {
    return error(Code::kDataLoss,
                 "{} is not the record of a head: remove it, or name the cluster otherwise "
                 "(--address, TROUPE_ADDRESS)",
                 path);
  }
  std::vector<ClusterRecord> records = {*newest};
  if (const json::Value* others = json::find(*value, "others"); others && others->is_array()) {
    for (const json::Value& other : others->get_array()) {
      if (auto record = from_json(other)) records.push_back(std::move(*record));
    }
  }
  return records;
}

}  // namespace

Result<std::string> troupe_directory(const Environment& environment) {
  const auto home = environment.get("HOME");
  if (!home || home->empty()) {
    return error(Code::kFailedPrecondition,
                 "HOME is not set, so there is no ~/.troupe: set it, or name the cluster and its "
                 "token otherwise (--address or TROUPE_ADDRESS, --token-file or "
                 "TROUPE_TOKEN_FILE; a head also --state-dir)");
  }
  return join_path(*home, ".troupe");
}

Result<std::string> default_token_file(const Environment& environment) {
  if (auto named = environment.get("TROUPE_TOKEN_FILE"); named && !named->empty()) return *named;
  return in_troupe_directory(environment, "token");
}

Result<std::string> cluster_record_path(const Environment& environment) {
  return in_troupe_directory(environment, "current");
}

Status write_cluster_record(FileSystem& files, const std::string& path,
                            const ClusterRecord& record) {
  const std::size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    TROUPE_RETURN_IF_ERROR(files.create_directories(path.substr(0, slash), 0700));
  }
  std::vector<ClusterRecord> records = {record};
  // A file that is damaged tells of nobody.
  for (auto& other : read_records(files, path).value_or({})) {
    const bool replaced = other.host == record.host && other.port == record.port;
    if (!replaced && !is_stale(other) && records.size() < kRecordsMax)
      records.push_back(std::move(other));
  }
  return write_records(files, path, records);
}

Result<ClusterRecord> read_cluster_record(FileSystem& files, const std::string& path) {
  const auto records = TROUPE_TRY(read_records(files, path));
  const auto found = std::ranges::find_if_not(records, is_stale);
  return found == records.end() ? records.front() : *found;
}

Status remove_cluster_record(FileSystem& files, const std::string& path,
                             const ClusterRecord& record) {
  auto records = read_records(files, path);
  if (!records.ok() || std::erase(*records, record) == 0) return {};
  return records->empty() ? files.remove(path) : write_records(files, path, *records);
}

bool is_stale(const ClusterRecord& record) {
  return record.host_name == host_name() && ::kill(static_cast<pid_t>(record.pid), 0) != 0 &&
         errno == ESRCH;
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string format_address(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

}  // namespace troupe::scheduler
