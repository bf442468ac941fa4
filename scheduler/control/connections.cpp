#include "scheduler/control/connections.h"

#include <algorithm>

namespace troupe::scheduler {

Status check_version(Context& context, const std::string& who, std::uint32_t version) {
  if (version == wire::kProtocolVersion) return {};
  Status status = error(Code::kProtocol,
                        "{} speaks protocol {}, the head speaks {}: run the "
                        "same version of troupe "
                        "on both ('troupe version' shows it)",
                        who, version, wire::kProtocolVersion);
  context.log("version_refused", status.message());
  return status;
}

const PeerRecord* Connections::find(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

const ClientRecord* Connections::client(ClientId id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second;
}

const ClientRecord* Connections::client_of(PeerId peer) const {
  const PeerRecord* record = find(peer);
  return record == nullptr || record->client_id.empty() ? nullptr : client(record->client_id);
}

std::string Connections::namespace_of(const ClientRecord& client) {
  return client.namespace_name.empty() ? wire::namespace_of_job(client.job_id)
                                       : client.namespace_name;
}

void Connections::introduce_client(PeerId peer, const wire::ClientHello& hello) {
  ClientRecord& client = clients_[hello.client_id];
  client.client_id = hello.client_id;
  client.job_id = hello.job_id;
  client.name = hello.name;
  client.kind = hello.kind;
  client.namespace_name = hello.namespace_name;
  client.peer = peer;
  client.return_by.reset();
  peers_[peer].client_id = hello.client_id;
}

void Connections::report(ClientId id, wire::Work work) {
  wire::Work& before = clients_.at(id).work;
  const auto add_difference = [&](std::uint64_t& total, auto count) {
    const std::uint64_t now = count(work), then = count(before);
    total += now - std::min(now, then);
  };
  const auto of_tasks = [](std::uint64_t wire::TaskWork::*member) {
    return [member](const wire::Work& said) {
      std::uint64_t sum = 0;
      for (const wire::TaskWork& tasks : said.tasks) sum += tasks.*member;
      return sum;
    };
  };
  add_difference(work_done_.tasks, of_tasks(&wire::TaskWork::done));
  add_difference(work_done_.tasks_failed, of_tasks(&wire::TaskWork::failed));
  add_difference(work_done_.tasks_again, of_tasks(&wire::TaskWork::again));
  add_difference(work_done_.pipeline_items, [](const wire::Work& said) { return said.items_done; });
  before = std::move(work);
}

void Connections::closed(PeerId peer) {
  const auto client = clients_.find(peers_.at(peer).client_id);
  if (client != clients_.end() && client->second.peer == peer) {
    client->second.peer = 0;
    await(client->second, context_.now() + context_.config().owner_grace);
  }
  peers_.erase(peer);
}

void Connections::await(ClientRecord& client, TimePoint until) {
  client.return_by = until;
  context_.arm(until, TimerKind::kClient, client.client_id);
  context_.watch_for_pauses(until);
}

std::optional<ClientRecord> Connections::take_gone(const Timer& timer) {
  const auto found = clients_.find(timer.id<ClientId>());
  if (found == clients_.end() || !found->second.return_by ||
      *found->second.return_by > context_.now() || !context_.looked_twice(timer)) {
    return std::nullopt;
  }
  return std::move(clients_.extract(found).mapped());
}

void Connections::excuse_away(Duration pause) {
  for (auto& [id, client] : clients_) {
    if (client.return_by) await(client, *client.return_by + pause);
  }
}

void Connections::await_owner(ClientId owner, JobId job_id) {
  if (clients_.contains(owner)) return;
  ClientRecord& client = clients_[owner];
  client.client_id = owner;
  client.job_id = job_id;
  await(client, context_.now() + context_.config().rejoin_grace);
}

}  // namespace troupe::scheduler
