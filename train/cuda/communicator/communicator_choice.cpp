#include "train/cuda/communicator/communicator_choice.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/suggest.h"
#include "train/cuda/communicator/staged_communicator.h"

namespace troupe::train {
namespace {

constexpr const char* kHostVariable = "NCCL_HOSTID";
constexpr int kNotWanted = -1;  // for a version

struct Introduction {
  char host[128];
  char device[32];
  char uuid[48];
  char without_peer_access[1024];  // UUIDs with a comma behind each
  std::int32_t nccl_version;
};

void put_text(std::span<char> to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), to.size() - 1));
}

Result<std::vector<RankDevice>> introduce(const DeviceCommunicatorOptions& options) {
  const TroupeCudaTable& table = options.nccl.library->table();
  collective::Communicator& host = *options.nccl.host;
  TroupeCudaDevice device{};
  TROUPE_RETURN_IF_ERROR(cuda_status(table, table.device_info(options.device_index, &device),
                                     "asking for the device"));
  TroupeCudaVersions versions{};
  if (table.versions(&versions) != TROUPE_CUDA_OK) versions.nccl = 0;
  if (options.environment->get(kNcclVariable) == "0") versions.nccl = kNotWanted;
  Introduction mine{};
  put_text(mine.host, options.node);
  put_text(mine.device, device.pci_bus);
  put_text(mine.uuid, device.uuid);
  std::string without;
  for (const std::string& uuid : options.without_peer_access) {
    if (without.size() + uuid.size() + 1 >= sizeof mine.without_peer_access) break;
    without += uuid + ",";
  }
  put_text(mine.without_peer_access, without);
  mine.nccl_version = versions.nccl;
  std::vector<Introduction> all(static_cast<std::size_t>(host.world_size()));
  const std::vector<std::size_t> counts(all.size(), sizeof mine);
  TROUPE_RETURN_IF_ERROR(host.all_gather(&mine, all.data(), counts, collective::DataType::kUint8,
                                         Deadline::after(options.nccl.form_timeout)));
  std::vector<RankDevice> ranks;
  for (Introduction& other : all) {
    other.host[sizeof other.host - 1] = other.device[sizeof other.device - 1] = 0;
    other.uuid[sizeof other.uuid - 1] = 0;
    other.without_peer_access[sizeof other.without_peer_access - 1] = 0;
    ranks.push_back({other.host, other.device, other.nccl_version, other.uuid,
                     split_words(other.without_peer_access, ',')});
  }
  return ranks;
}

void apply_and_tell(const DeviceCommunicatorOptions& options, const EnvironmentSetting& setting) {
  options.apply(setting);
  options.notice(fmt::format("{}={}: {}", setting.name, setting.value, setting.reason));
}

Result<std::unique_ptr<DeviceCommunicator>> make_over_host(
    const DeviceCommunicatorOptions& options) {
  const NcclOptions& nccl = options.nccl;
  return make_staged_communicator(
      {.library = nccl.library, .context = nccl.context, .host = nccl.host, .name = nccl.name});
}

}  // namespace

TransportChoice choose_transport(std::span<const RankDevice> ranks) {
  if (ranks.size() == 1)
    return {DeviceTransport::kOverHost, "one rank has nobody to talk to, and needs no NCCL"};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int version = ranks[r].nccl_version;
    if (version >= kNcclVersionMin) continue;
    return {DeviceTransport::kOverHost,
            version == kNotWanted
                ? fmt::format("rank {} is told not to use NCCL ({}=0)", r, kNcclVariable)
            : version == 0
                ? fmt::format("rank {} has no NCCL", r)
                : fmt::format("rank {} has NCCL {}, and {} or later is needed", r,
                              nccl_version_text(version), nccl_version_text(kNcclVersionMin))};
  }
  std::map<std::pair<std::string, std::string>, std::size_t> owners;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto [owner, fresh] = owners.insert({{ranks[r].host, ranks[r].device}, r});
    if (fresh) continue;
    return {DeviceTransport::kNcclSeparateHosts,
            fmt::format("ranks {} and {} share GPU {} of {}, which NCCL refuses within a host",
                        owner->second, r, ranks[r].device, ranks[r].host)};
  }
  return {DeviceTransport::kNccl, "every rank has a GPU of its own"};
}

std::vector<PeerAccess> missing_peer_access(std::span<const RankDevice> ranks) {
  const auto says = [](const RankDevice& rank, const RankDevice& other) {
    const auto& names = rank.without_peer_access;
    return std::find(names.begin(), names.end(), other.uuid) != names.end();
  };
  std::vector<PeerAccess> missing;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) {
      if (ranks[i].host != ranks[j].host) continue;
      if (says(ranks[i], ranks[j]) || says(ranks[j], ranks[i]))
        missing.push_back({static_cast<int>(i), static_cast<int>(j), false});
    }
  }
  return missing;
}

Result<std::unique_ptr<DeviceCommunicator>> make_device_communicator(
    const DeviceCommunicatorOptions& options) {
  TROUPE_CHECK(options.environment && options.nccl.host);
  const std::vector<RankDevice> ranks = TROUPE_TRY(introduce(options));
  const TransportChoice choice = choose_transport(ranks);
  if (choice.transport == DeviceTransport::kOverHost) {
    if (ranks.size() > 1)
      options.notice(fmt::format("collectives go over the host: {}", choice.reason));
    return make_over_host(options);
  }
  if (const auto setting = peer_access_setting(*options.environment, missing_peer_access(ranks)))
    apply_and_tell(options, *setting);
  if (const auto setting = nonblocking_setting(*options.environment))
    apply_and_tell(options, *setting);
  if (choice.transport == DeviceTransport::kNccl) return make_nccl_communicator(options.nccl);
  // Never over what the user has said.
  if (!options.environment->get(kHostVariable))
    apply_and_tell(
        options, {kHostVariable, fmt::format("{}-rank-{}", options.node, options.nccl.host->rank()),
                  choice.reason});
  NcclOptions tried = options.nccl;
  tried.form_timeout = std::min(tried.form_timeout, options.shared_form_timeout);
  auto made = make_nccl_communicator(tried);
  if (made.ok()) return made;
  options.notice(
      fmt::format("collectives go over the host: {}, and separate hosts did not help: {}",
                  choice.reason, made.status().to_string()));
  return make_over_host(options);
}

}  // namespace troupe::train
